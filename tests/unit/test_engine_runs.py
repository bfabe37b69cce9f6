"""The engine between runs: streams that are closed, left open or mixed up; and what a run reports."""

import pytest
from families import tiny_lm
from helpers import REQUESTS, assert_equal, noisy_copy, references, target

from specproof import METHODS, Engine, EngineConfig, Request
from specproof.drafters import PromptLookup
from specproof.errors import ConfigError, RequestError


@pytest.fixture(params=["specproof", "exspec"])
def engine(request) -> Engine:
    return Engine(target("llama"), noisy_copy("llama"), EngineConfig(request.param, batch_size=3, window=4))


def test_a_closed_stream_gives_its_memory_back_and_the_engine_can_be_used_again(engine):
    stream = engine.stream(REQUESTS)
    next(stream)
    assert engine.layout.nbytes > 0
    stream.close()
    assert engine.layout.nbytes == 0
    assert engine.drafter.layout.nbytes == 0
    assert_equal(engine.generate(REQUESTS), references("llama"), engine.config)


def test_a_stream_closed_at_a_row_that_could_not_be_served_leaves_nothing_behind(engine):
    stream = engine.stream([Request([999]), *REQUESTS])
    assert next(stream).finish_reason == "error"
    stream.close()
    assert_equal(engine.generate(REQUESTS), references("llama"), engine.config)


def test_a_second_stream_is_refused_and_does_not_disturb_the_first(engine):
    stream = engine.stream(REQUESTS)
    outputs = [next(stream)]
    with pytest.raises(ConfigError, match="decoding already"):
        engine.generate(REQUESTS)
    outputs += stream
    assert_equal(sorted(outputs, key=lambda output: output.request_id), references("llama"), engine.config)


def test_an_old_stream_that_is_closed_late_does_not_end_a_newer_one(engine):
    """All its rows were read, but not its end; so it may still be open when the next one runs."""
    old = engine.stream(REQUESTS[:1])
    next(old)
    new = engine.stream(REQUESTS)
    outputs = [next(new)]
    old.close()
    outputs += new
    assert_equal(sorted(outputs, key=lambda output: output.request_id), references("llama"), engine.config)


def test_two_requests_of_one_name_are_refused_by_that_name(engine):
    with pytest.raises(RequestError, match="'twice' is given twice"):
        engine.generate([Request([1], request_id="twice"), Request([2], request_id="twice")])
    with pytest.raises(RequestError, match="'1' is given twice"):
        engine.generate([Request([1], request_id="1"), Request([2])])


def test_nothing_to_decode_gives_nothing(engine):
    assert engine.generate([]) == []
    assert engine.statistics.steps == 0


def test_a_drafter_is_refused_by_a_method_that_does_not_draft():
    with pytest.raises(ConfigError, match="target-only"):
        Engine(target("llama"), PromptLookup(), EngineConfig("target-only"))


@pytest.mark.parametrize("method", METHODS)
def test_records_outputs_and_statistics_tell_one_story(method):
    drafts = noisy_copy("llama") if METHODS[method].drafts else None
    engine = Engine(target("llama"), drafts, EngineConfig(method, batch_size=3, window=4, prefill_chunk=8))
    records = []
    engine.observers.append(records.append)
    outputs = {output.request_id: output for output in engine.generate(REQUESTS)}

    assert [record.index for record in records] == list(range(len(records)))
    admitted = [name for record in records for name in record.admitted]
    assert sorted(admitted) == sorted(outputs)
    for request in REQUESTS:
        output = outputs[request.request_id]
        steps = [row for record in records for row in record.rows if row.request_id == request.request_id]
        chunks = [c for record in records for c in record.prefilled if c.request_id == request.request_id]
        assert [chunk.start for chunk in chunks] == [sum(c.length for c in chunks[:i]) for i in range(len(chunks))]
        assert sum(chunk.length for chunk in chunks) == len(request.prompt_ids) - 1
        assert output.token_ids == tuple(token for step in steps for token in step.emitted)
        at = len(request.prompt_ids) - 1
        for step in steps:
            assert step.start == at
            assert step.emitted[: step.num_accepted] == step.drafted[: step.num_accepted]
            at += len(step.emitted)
        assert output.num_steps == len(steps) == sum(output.acceptance_histogram)
        assert output.num_drafted == sum(len(step.drafted) for step in steps)
        assert output.num_accepted == sum(step.num_accepted for step in steps)
        assert output.acceptance_histogram == tuple(
            sum(step.num_accepted == j for step in steps) for j in range(1 + max(step.num_accepted for step in steps))
        )
    statistics = engine.statistics
    assert statistics.emitted == sum(len(output.token_ids) for output in outputs.values())
    assert statistics.drafted == sum(output.num_drafted for output in outputs.values())
    assert statistics.accepted == sum(output.num_accepted for output in outputs.values())
    assert (statistics.accepted > 0) == (drafts is not None)
    assert statistics.row_steps == sum(output.num_steps for output in outputs.values())
    assert statistics.finished == len(REQUESTS)
    assert statistics.steps == len(records)


def test_a_model_may_draft_for_itself_in_another_object():
    """Same weights, own KV: accepted always, over prompts in chunks, refills and rows of every length."""
    engine = Engine(
        tiny_lm("qwen3", seed=1).model, tiny_lm("qwen3", seed=1).model, EngineConfig(batch_size=2, prefill_chunk=8)
    )
    assert_equal(engine.generate(REQUESTS), references("qwen3"), "self-draft")
    assert engine.statistics.acceptance_rate == 1
