"""Chances follow what became of drafts: in one row, and in all."""

import pytest

from specproof.pace.acceptance import MOST, ROW_FACTORS, Acceptance


def learnt(right: int) -> Acceptance:
    """Drafts of four rows that had a chance of 0.5 in any row; of ten, so many were right."""
    made = Acceptance()
    for _ in range(20):
        for row in range(4):
            for i in range(10):
                made.learn_row(f"row{row}", i < right, 0.5)
        made.end_step()
    return made


@pytest.mark.parametrize("right", [3, 4, 6])
def test_a_row_is_given_what_its_drafts_came_to(right):
    assert learnt(right).in_row("row0", 0.5) == pytest.approx(right / 10, rel=0.05)


def test_a_new_row_begins_like_the_others():
    made = learnt(3)
    assert made.in_row("new", 0.5) == pytest.approx(0.3, rel=0.1)
    for _ in range(20):
        made.learn_row("new", True, 0.9)
    assert made.in_row("new", 0.5) > 0.45
    made.forget_row("new")
    assert made.in_row("new", 0.5) < 0.4


def test_factors_are_bounded():
    low, high = ROW_FACTORS
    assert learnt(0).in_row("row0", 0.5) == pytest.approx(0.5 * low, rel=0.05)
    assert learnt(10).in_row("row0", 0.5) == pytest.approx(0.5 * high)
    assert learnt(10).in_row("row0", 0.97) == MOST
