"""An engine outlives what goes wrong in it: bad drafters, streams given up, names given twice."""

from functools import cache

import pytest
from families import VOCAB
from helpers import assert_equal, noisy_copy, target, vary
from probes import SPECULATIVE, config, right, rows, solo

from specproof import Engine, Request
from specproof.drafters import PromptLookup, Scripted
from specproof.errors import ConfigError, DrafterError, RequestError
from specproof.reference import Reference

REQUESTS = rows((5, 12, 1, 8, 3), limit=9)


@cache
def truth() -> tuple[Reference, ...]:
    return vary(solo(target("llama"), REQUESTS))


def usable(engine: Engine, where: object) -> None:
    """The engine decodes REQUESTS as if nothing had happened, and holds no memory afterwards."""
    assert_equal(engine.generate(REQUESTS), truth(), where)
    assert engine.layout.nbytes == 0


class Failing:
    """Right for some steps, then it answers as it is told, once."""

    def __init__(self, answer):
        self.calls, self._answer, self._good = 0, answer, right(2)

    def propose(self, rows_, max_tokens):
        self.calls += 1
        if self.calls != 3:
            return self._good.propose(rows_, max_tokens)
        return self._answer(rows_, max_tokens)


def _raise(rows_, max_tokens):
    raise ZeroDivisionError("inside the drafter")


WRONG = {
    "it raises": (_raise, "the drafter failed: ZeroDivisionError: inside the drafter"),
    "nothing": (lambda rows_, k: None, "answered None"),
    "a number": (lambda rows_, k: 5, "answered 5"),
    "too few rows": (lambda rows_, k: [[1]] * (len(rows_) - 1), "answered [0-9] rows of [0-9]"),
    "too many rows": (lambda rows_, k: [[1]] * (len(rows_) + 1), "answered [0-9] rows of [0-9]"),
    "an id a row": (lambda rows_, k: [1] * len(rows_), "row row[0-9]: the drafter answered 1"),
    "text": (lambda rows_, k: ["ab"] * len(rows_), "row row[0-9]: the drafter answered 'ab'"),
    "too many ids": (lambda rows_, k: [[1] * (k + 1)] * len(rows_), "6 drafts proposed, at most 5"),
    "ids out of range": (lambda rows_, k: [[VOCAB]] * len(rows_), f"draft {VOCAB} is no id"),
    "negative ids": (lambda rows_, k: [[-1]] * len(rows_), "draft -1 is no id"),
    "fractions": (lambda rows_, k: [[1.0]] * len(rows_), "draft 1.0 is no id"),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("method", ["specproof", "exspec"])
def test_a_drafter_that_fails_or_answers_wrongly_is_named_and_the_engine_goes_on_afterwards(method, what):
    answer, why = WRONG[what]
    engine = Engine(target("llama"), Failing(answer), config(method, batch_size=3, window=4))
    with pytest.raises(DrafterError, match=why):
        engine.generate(REQUESTS)
    usable(engine, (method, what))


@pytest.mark.parametrize("method", SPECULATIVE)
def test_a_stream_may_be_closed_at_any_row_and_the_engine_used_again(method):
    requests = [*REQUESTS, Request([-1], request_id="bad")]
    for drafter in (noisy_copy("llama"), PromptLookup()):
        engine = Engine(target("llama"), drafter, config(method, batch_size=2, window=3))
        for rows_read in (0, 1, 3, 5):
            stream = engine.stream(requests)
            read = [next(stream).request_id for _ in range(rows_read + 1)]
            assert read[0] == "bad", "what cannot be served is known first"
            stream.close()
            usable(engine, (method, f"closed after {rows_read + 1} rows"))


def test_two_streams_at_once_are_refused_and_the_first_is_not_harmed():
    engine = Engine(target("llama"), right(2), config("specproof", batch_size=2))
    stream = engine.stream(REQUESTS)
    outputs = [next(stream)]
    with pytest.raises(ConfigError, match="decoding already"):
        next(engine.stream(rows((4,))))
    with pytest.raises(ConfigError, match="decoding already"):
        engine.generate(rows((4,)))
    outputs += stream
    known = {request.request_id: t for request, t in zip(REQUESTS, truth(), strict=True)}
    assert len(outputs) == len(REQUESTS)
    assert_equal(outputs, [known[output.request_id] for output in outputs], "the first stream")
    usable(engine, "after both")


def test_rows_come_as_they_finish_and_generate_puts_them_in_order():
    requests = [Request([3, 4], limit, request_id=f"row{limit}") for limit in (30, 2, 12)]
    engine = Engine(target("llama"), right(0), config("specproof"))
    assert [output.request_id for output in engine.stream(requests)] == ["row2", "row12", "row30"]
    assert [output.request_id for output in engine.generate(requests)] == ["row30", "row2", "row12"]


def test_a_name_given_twice_is_refused_before_anything_is_decoded():
    engine = Engine(target("llama"), right(2), config("specproof"))
    for names in (("a", "b", "a"), (None, "b", "0")):  # a row without a name is called by its index
        twice = [Request([1, 2], 4, request_id=name) for name in names]
        with pytest.raises(RequestError, match=f"request_id '{names[0] or 0}' is given twice"):
            engine.generate(twice)
    assert engine.statistics.steps == 0
    usable(engine, "after names given twice")


def test_an_observer_that_raises_leaves_the_engine_usable():
    engine = Engine(target("llama"), noisy_copy("llama"), config("specproof", batch_size=2))

    def fail(record):
        if record.index == 4:
            raise ValueError("seen enough")

    engine.observers.append(fail)
    with pytest.raises(ValueError, match="seen enough"):
        engine.generate(REQUESTS)
    usable(engine, "after an observer raised")


def test_options_that_would_be_ignored_are_refused():
    with pytest.raises(ConfigError, match="'target-only' does not draft"):
        Engine(target("llama"), PromptLookup(), config("target-only"))
    with pytest.raises(ConfigError, match="window is 2, smaller than batch_size 4"):
        config("exspec", window=2)
    for option, value in (
        ("method", "magic"),
        ("layout", "paged"),
        ("scheduler", "fair"),
        ("commit", "all"),
        ("attention", "flash"),
    ):
        with pytest.raises(ConfigError, match=f"{option} is '{value}'; known: "):
            config(**{"method": "specproof", option: value})
    for option, value in (
        ("batch_size", 0),
        ("num_draft_tokens", -1),
        ("prefill_chunk", 0),
        ("window", 1.5),
        ("batch_size", True),
    ):
        with pytest.raises(ConfigError, match=f"{option} is {value}; it must be a whole number"):
            config("specproof", **{option: value})


def test_a_drafter_without_a_proposal_for_anyone_costs_a_step_a_token():
    engine = Engine(target("llama"), Scripted(lambda row, k: []), config("specproof"))
    usable(engine, "no drafts")
    assert engine.statistics.drafted == 0
    assert engine.statistics.mean_accepted_length == 1
