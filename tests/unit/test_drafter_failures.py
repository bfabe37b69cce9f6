"""A drafter that fails ends the run with one error, and the engine goes on to the next run."""

import pytest
from helpers import REQUESTS, assert_equal, references, target

from specproof import Engine, EngineConfig, Request
from specproof.drafters import Confidence, HostDrafts, Suffix
from specproof.errors import ConfigError, DrafterError


class Failing:
    """Fails in its second `propose`, or wherever `at` says."""

    def __init__(self, at: str = "propose") -> None:
        self.at, self.calls = at, 0

    def _maybe(self, where: str) -> None:
        self.calls += where == self.at
        if where == self.at and self.calls == 2:
            raise ValueError("boom")

    def propose(self, rows, k):
        self._maybe("propose")
        return [[1] for _ in rows]

    def commit(self, accepted):
        self._maybe("commit")

    def release(self, request_id):
        self._maybe("release")


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("at", ["propose", "commit", "release"])
def test_after_a_failure_the_engine_decodes_other_rows(at, adaptive):
    engine = Engine(target("llama"), Failing(at), EngineConfig(batch_size=2, adaptive=adaptive, num_draft_tokens=4))
    with pytest.raises(DrafterError, match="the drafter failed: ValueError: boom"):
        engine.generate([Request([5, 6, i], max_new_tokens=30, request_id=f"a{i}") for i in range(4)])
    (short,) = engine.generate([Request([5], max_new_tokens=1, request_id="z")])
    assert len(short.token_ids) == 1
    assert_equal(engine.generate(REQUESTS), references("llama"), at)


def test_a_release_that_fails_when_a_stream_is_closed_leaves_nothing_behind():
    engine = Engine(target("llama"), Failing("release"), EngineConfig(batch_size=2, num_draft_tokens=4))
    stream = engine.stream([Request([5, 6, i], max_new_tokens=5 + 20 * i) for i in range(3)])
    next(stream)
    with pytest.raises(DrafterError, match="boom"):
        stream.close()
    assert_equal(engine.generate(REQUESTS), references("llama"), "after")


@pytest.mark.parametrize("confidence", [None, Confidence(["x"], [0.5]), Confidence("x", None), Confidence("x", ["1"])])  # type: ignore[list-item, arg-type]
@pytest.mark.parametrize("adaptive", [False, True])
def test_a_confidence_that_is_none_is_told(confidence, adaptive):
    class Odd:
        def propose(self, rows, k):
            return HostDrafts([[1] for _ in rows], [confidence for _ in rows])

    engine = Engine(target("llama"), Odd(), EngineConfig(batch_size=2, adaptive=adaptive, num_draft_tokens=4))
    with pytest.raises(DrafterError):
        engine.generate(REQUESTS)


@pytest.mark.parametrize("given", [{"size": 0}, {"size": 2.5}, {"memory": -1}, {"corpus": ["abc"]}, {"corpus": [1, 2]}])
def test_a_suffix_index_of_nonsense_is_refused(given):
    with pytest.raises(ConfigError):
        Suffix(**given)


def test_settings_that_are_no_switch_and_no_number_are_refused():
    with pytest.raises(ConfigError, match="adaptive"):
        EngineConfig(adaptive="no")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="draft_head"):
        EngineConfig(draft_head=True)
