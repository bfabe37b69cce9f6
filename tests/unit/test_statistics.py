"""Sums over steps."""

import warnings
from collections import Counter

import pytest

from specproof.statistics import ZERO_ACCEPTANCE_DRAFTS, Statistics
from specproof.step import PrefillChunk, RowStep, SharedPrefix, StepRecord


def record(*rows: RowStep, **fields) -> StepRecord:
    nothing = {
        "index": 0,
        "admitted": (),
        "prefilled": (),
        "finished": (),
        "refilled": 0,
        "grouped": False,
        "realigned": False,
    }
    return StepRecord(**{**nothing, "rows": rows, **fields})


def step(drafted: int, accepted: int) -> RowStep:
    return RowStep("row", 0, (7,) * drafted, accepted, accepted, (7,) * (accepted + 1))


def test_rates_are_none_where_their_denominator_is_zero():
    statistics = Statistics()
    assert statistics.acceptance_rate is None
    assert statistics.mean_accepted_length is None
    statistics(record(prefilled=(PrefillChunk("row", 0, 5),)))
    assert statistics.acceptance_rate is None
    assert statistics.mean_accepted_length is None
    statistics(record(step(0, 0)))
    assert statistics.acceptance_rate is None
    assert statistics.mean_accepted_length == 1


def test_steps_are_summed_up():
    statistics = Statistics()
    statistics(record(prefilled=(PrefillChunk("a", 0, 5), PrefillChunk("b", 2, 3)), refilled=2))
    statistics(record(shared=(SharedPrefix("b", "a", 2), SharedPrefix("c", "a", 20))))
    statistics(record(step(5, 5), step(5, 2), grouped=True))
    statistics(record(step(3, 0), step(0, 0), realigned=True))
    assert statistics == Statistics(
        steps=4,
        row_steps=4,
        emitted=6 + 3 + 1 + 1,
        drafted=13,
        right=7,
        accepted=7,
        prefilled=8,
        shared=22,
        grouped_steps=1,
        realigned_steps=1,
        refilled=2,
        judged_at=Counter({0: 3, 1: 2, 2: 2, 3: 1, 4: 1}),
        right_at=Counter({0: 2, 1: 2, 2: 1, 3: 1, 4: 1}),
    )
    assert statistics.acceptance_by_place == [2 / 3, 1, 1 / 2, 1, 1]
    assert statistics.acceptance_rate == 7 / 13
    assert statistics.mean_accepted_length == 11 / 4


def test_many_drafts_without_one_acceptance_warn_once():
    statistics = Statistics()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(ZERO_ACCEPTANCE_DRAFTS // 10 - 1):
            statistics(record(step(5, 0), step(5, 0)))
    with pytest.warns(UserWarning, match=f"none of {ZERO_ACCEPTANCE_DRAFTS} draft tokens was right"):
        statistics(record(step(5, 0), step(5, 0)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(100):
            statistics(record(step(5, 0)))


def test_a_single_acceptance_prevents_the_warning():
    statistics = Statistics()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        statistics(record(step(5, 1)))
        for _ in range(ZERO_ACCEPTANCE_DRAFTS):
            statistics(record(step(5, 0)))
    assert statistics.drafted > ZERO_ACCEPTANCE_DRAFTS


def test_target_only_decoding_never_warns():
    statistics = Statistics()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(10 * ZERO_ACCEPTANCE_DRAFTS):
            statistics(record(step(0, 0)))
    assert statistics.emitted == 10 * ZERO_ACCEPTANCE_DRAFTS
