"""The left-padded layout realigns where rows end apart, in a fixed number of operations, and not otherwise."""

from collections import Counter
from collections.abc import Callable

import pytest
from families import tiny_lm

from specproof.kv import LeftPadded
from specproof.kv.cells import Cells
from specproof.kv.layout import Feed


@pytest.fixture
def moves(monkeypatch) -> Counter:
    """How often the content of cells is moved, by name of the operation."""
    counts: Counter[str] = Counter()

    def count(name: str, original: Callable) -> None:
        def counted(*args):
            counts[name] += 1
            return original(*args)

        monkeypatch.setattr(Cells, name, counted)

    count("rearrange", Cells.rearrange)
    count("copy_from", Cells.copy_from)
    return counts


def layout_with(starts: dict[str, int]) -> LeftPadded:
    layout = LeftPadded(tiny_lm("llama"), "sdpa")
    for row, start in starts.items():
        layout.admit(row, start)
    layout.forward([Feed(row, 0, [1] * start) for row, start in starts.items()])
    return layout


def test_rows_that_advance_alike_are_never_moved_until_the_rectangle_is_full(moves):
    layout = layout_with({"a": 40, "b": 25})
    layout.forward([Feed("a", 40, [1], 0, 1), Feed("b", 25, [1], 0, 1)])
    moves.clear()
    for step in range(1, 4):
        layout.forward([Feed("a", 40 + step, [1], 0, 1), Feed("b", 25 + step, [1], 0, 1)])
        assert not layout.realigned
    assert not moves


def test_rows_that_advance_unevenly_are_realigned_by_one_operation_whatever_their_number(moves):
    for count in (2, 5):
        starts = {f"row{i}": 40 + i for i in range(count)}
        layout = layout_with(starts)
        layout.forward([Feed(row, start, [1, 2], 0, 2) for row, start in starts.items()])
        moves.clear()
        layout.forward([Feed(row, start + 1 + i % 2, [1], 0, 1) for i, (row, start) in enumerate(starts.items())])
        assert layout.realigned
        assert moves == {"rearrange": 1}


def test_a_rollback_by_the_same_number_in_all_rows_needs_no_move(moves):
    starts = {"a": 40, "b": 30, "c": 20}
    layout = layout_with(starts)
    layout.forward([Feed(row, start, [1, 2, 3], 0, 3) for row, start in starts.items()])
    moves.clear()
    layout.forward([Feed(row, start + 1, [4, 5], 0, 2) for row, start in starts.items()])
    assert not layout.realigned
    assert not moves


def test_rows_of_equal_length_are_batched_without_realigning_wherever_they_waited():
    """What EXSPEC gains: members come from the pool, none of them is shifted against another."""
    starts = {"a": 10, "b": 10, "c": 17}
    layout = layout_with(starts)
    layout.forward([Feed("c", 17, [1], 0, 1)])
    layout.forward([Feed("a", 10, [1], 0, 1), Feed("b", 10, [1], 0, 1)])
    assert not layout.realigned
    layout.forward([Feed("a", 11, [1], 0, 1), Feed("c", 18, [1], 0, 1)])
    assert layout.realigned
