"""Which drafts are worth their price: against every other choice."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specproof.pace.plan import plan_drafts

CHANCES = st.lists(st.floats(0.01, 1.0), max_size=3)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    rows=st.lists(CHANCES, min_size=1, max_size=4),
    prices=st.lists(st.floats(0.1, 5.0), min_size=13, max_size=13),
    margin=st.sampled_from([1.0, 1.02, 1.5]),
)
def test_no_other_lengths_give_more_tokens_per_second_whatever_the_price_list(rows, prices, margin):
    gains = [[_product(chances[: j + 1]) for j in range(len(chances))] for chances in rows]

    def rate(lengths):
        gain = sum(sum(chances[:length]) for chances, length in zip(gains, lengths, strict=True))
        return (len(rows) + gain) / prices[sum(lengths)]

    lengths = plan_drafts(gains, lambda n: prices[n], len(rows), margin)

    best = max(rate(other) for other in product(*(range(len(chances) + 1) for chances in gains)))
    nothing = rate([0] * len(rows))
    if best > 1.000001 * margin * nothing:
        assert rate(lengths) == pytest.approx(best, rel=1e-9)
    elif any(lengths):
        assert rate(lengths) >= margin * nothing * (1 - 1e-9)


def _product(chances):
    result = 1.0
    for chance in chances:
        result *= chance
    return result


def test_a_dearer_draft_is_left_out_and_a_free_one_is_taken():
    gains = [[0.9, 0.8], [0.3]]
    assert plan_drafts(gains, lambda n: 1.0, 2) == [2, 1]
    assert plan_drafts(gains, lambda n: 1.0 + 0.3 * n, 2) == [2, 0]
    assert plan_drafts(gains, lambda n: 1.0 + n, 2) == [0, 0]


def test_a_price_that_jumps_once_is_paid_where_enough_drafts_follow():
    """One draft alone would not pay; taken together they do: a greedy choice, one by one, would stop at none."""

    def price(n):
        return 1.0 if n == 0 else 2.0

    assert plan_drafts([[0.9]], price, 1) == [0]
    assert plan_drafts([[0.9, 0.81, 0.73]], price, 1) == [3]


def test_a_gain_within_the_margin_is_no_gain():
    assert plan_drafts([[0.11]], lambda n: 1 + 0.1 * n, 1) == [1]
    assert plan_drafts([[0.11]], lambda n: 1 + 0.1 * n, 1, margin=1.02) == [0]


def test_rows_without_drafts_get_none():
    assert plan_drafts([[], [0.5], []], lambda n: 1.0, 3) == [0, 1, 0]
    assert plan_drafts([], lambda n: 1.0, 0) == []
