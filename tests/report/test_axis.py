"""Where values lie on a plot's axes."""

from hypothesis import given
from hypothesis import strategies as st

from specproof.report.axis import MOST_TICKS, ZERO_GAP, CountAxis, LogAxis

MARGINS = st.lists(st.floats(1e-300, 1e300) | st.sampled_from([0.0, float("inf"), float("nan")]), max_size=8)


def test_a_decade_is_as_long_everywhere_and_zero_has_a_place_of_its_own():
    axis = LogAxis.around([0.0, 0.002, 0.5, 30.0])
    assert (axis.low, axis.high, axis.has_zero) == (-3, 2, True)
    assert (axis.at(0), axis.at(1e-3), axis.at(100)) == (0.0, ZERO_GAP, 1.0)
    steps = [axis.at(10.0 ** (k + 1)) - axis.at(10.0**k) for k in range(-3, 2)]
    assert max(steps) - min(steps) < 1e-12
    assert axis.ticks[0] == (0.0, "0")
    assert [label for _, label in axis.ticks[1:]] == ["0.001", "0.01", "0.1", "1", "10", "100"]


def test_decades_far_from_one_are_written_as_powers():
    assert [label for _, label in LogAxis.around([2e-16]).ticks] == ["10⁻¹⁶", "10⁻¹⁵"]


@given(MARGINS)
def test_any_margin_lies_on_its_axis_in_order(values):
    axis = LogAxis.around(values)
    places = [axis.at(value) for value in sorted(value for value in values if value == value)]
    assert all(0 <= place <= 1 for place in places)
    assert places == sorted(places)
    assert 2 <= len(axis.ticks) <= MOST_TICKS + 1


@given(st.integers(0, 10**6))
def test_counts_have_few_round_ticks_from_zero_on(high):
    ticks = CountAxis(high).ticks
    assert ticks[0] == (0.0, "0")
    assert 1 <= len(ticks) <= MOST_TICKS
    assert all(0 <= at <= 1 for at, _ in ticks)
    assert high == 0 or len(ticks) >= 2
