"""Time per row and sums over rows, from hand-made records."""

from specproof.jobs.clock import RowClock
from specproof.jobs.tally import Tally
from specproof.request import Output
from specproof.statistics import Statistics
from specproof.step import StepRecord


def record(admitted=(), finished=()):
    outputs = tuple(Output(request_id, 1, (5,), "x", "length") for request_id in finished)
    return StepRecord(0, tuple(admitted), (), (), outputs, 0, False, False)


def test_a_row_takes_from_the_start_of_the_step_that_admitted_it_to_the_end_of_its_last():
    times = iter([0.0, 10.0, 11.0, 13.0, 16.0])
    clock = RowClock(now=lambda: next(times))
    clock.start()  # 10
    clock(record(admitted=["a", "b"]))  # 10 to 11
    clock(record(finished=["a"]))  # 11 to 13
    clock(record(admitted=["c"], finished=["b", "c"]))  # 13 to 16
    assert [clock.take(name) for name in "abc"] == [3.0, 6.0, 3.0]


def test_a_row_that_was_never_admitted_has_no_time():
    clock = RowClock()
    clock(record(finished=["refused"]))
    assert clock.take("refused") is None


def test_rows_of_earlier_runs_count_as_rows_but_not_as_speed():
    result = {"finish_reason": "length", "token_ids": [1, 2, 3], "steps": 2, "drafted": 4, "accepted": 1}
    tally = Tally()
    tally.add(result, resumed=True)
    tally.add(result)
    summary = tally.summary(Statistics(steps=2, emitted=3), seconds=2.0)
    assert (summary["rows"], summary["resumed_rows"], summary["tokens"], summary["new_tokens"]) == (2, 1, 6, 3)
    assert (summary["tokens_per_second"], summary["acceptance_rate"], summary["mean_accepted_length"]) == (
        1.5,
        0.25,
        1.5,
    )


def test_nothing_done_has_no_rates():
    summary = Tally().summary(Statistics(), seconds=0.1)
    assert [summary[key] for key in ("tokens_per_second", "acceptance_rate", "mean_accepted_length")] == [None] * 3
