"""Requests at the borders, and requests that cannot be served: each is defined, and none harms another row."""

import numpy as np
import pytest
import torch
from families import VOCAB, tiny_lm
from helpers import REQUESTS, assert_equal, decode, noisy_copy, references, target, vary
from probes import SPECULATIVE, TOY, Toy, config, prompt, right, rows, solo

from specproof import METHODS, Engine, EngineConfig, Request
from specproof.drafters import PromptLookup, Scripted
from specproof.lm import LM
from specproof.reference import decode_reference


def beside(bad: Request, method: str = "specproof", tokenizer: Toy | None = TOY):
    """The output of a request between good ones, whose outputs must be what they are without it."""
    good = rows((5, 12, 1), limit=9)
    engine = Engine(target("llama"), right(2), config(method, batch_size=2, window=3), tokenizer)  # type: ignore[arg-type]
    outputs = engine.generate([good[0], bad, *good[1:]])
    assert_equal([outputs[0], *outputs[2:]], vary(solo(target("llama"), good)), f"beside {bad}")
    return outputs[1]


BAD = {
    "an id beyond the vocabulary": (Request([1, VOCAB]), f"prompt_ids has {VOCAB}"),
    "a negative id": (Request([1, -1, 2]), "prompt_ids has -1"),
    "a fraction": (Request([1.0, 2.0]), "prompt_ids must be a sequence of token ids.*float"),  # type: ignore[list-item]
    "text for ids": (Request("abc"), "prompt_ids must be a sequence of token ids.*str"),  # type: ignore[arg-type]
    "nothing for ids": (Request(None), "prompt_ids must be a sequence of token ids.*NoneType"),  # type: ignore[arg-type]
    "a batch for ids": (Request([[1, 2]]), "prompt_ids must be a sequence of token ids.*list"),  # type: ignore[list-item]
    "no token allowed": (Request([1], max_new_tokens=0), "max_new_tokens is 0"),
    "a negative limit": (Request([1], max_new_tokens=-4), "max_new_tokens is -4"),
    "a fractional limit": (Request([1], max_new_tokens=2.5), "max_new_tokens is 2.5"),  # type: ignore[arg-type]
    "no limit": (Request([1], max_new_tokens=None), "max_new_tokens is None"),  # type: ignore[arg-type]
    "a limit of truth": (Request([1], max_new_tokens=True), "max_new_tokens is True"),
    "a negative minimum": (Request([1], min_new_tokens=-1), "min_new_tokens is -1"),
    "a minimum above the limit": (Request([1], 4, min_new_tokens=5), "min_new_tokens 5 exceeds max_new_tokens 4"),
    "a stop that is not a tuple": (Request([1], stop="end"), "stop is 'end'"),  # type: ignore[arg-type]
    "an empty stop": (Request([1], stop=("a", "")), "stop is .*none empty"),
    "a stop of ids": (Request([1], stop=(3,)), "stop is "),  # type: ignore[arg-type]
    "no stops at all": (Request([1], stop=None), "stop is None"),  # type: ignore[arg-type]
    "a stop id beyond the vocabulary": (Request([1], stop_token_ids=(VOCAB,)), f"stop_token_ids has {VOCAB}"),
    "a single stop id": (Request([1], stop_token_ids=5), "stop_token_ids must be a sequence"),  # type: ignore[arg-type]
    "an empty prompt": (Request([]), "the prompt is empty"),
    "a prompt as long as the context": (Request(prompt(160)), "160 tokens.*context holds 160"),
    "a prompt longer than the context": (Request(prompt(500)), "500 tokens.*context holds 160"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_request_that_cannot_be_served_is_an_error_row_that_says_why(what):
    request, why = BAD[what]
    output = beside(request)
    assert output.finish_reason == "error"
    assert output.token_ids == ()
    assert output.stop is None
    assert output.num_steps == 0
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(output.error)


def test_stop_strings_without_a_tokenizer_are_an_error_row():
    assert "stop strings need a tokenizer" in str(beside(Request([1], stop=("a",)), tokenizer=None).error)


@pytest.mark.parametrize("method", SPECULATIVE)
def test_only_bad_requests_or_none_at_all_end_without_a_step(method):
    engine = Engine(target("llama"), right(2), config(method))
    assert engine.generate([]) == []
    assert [output.finish_reason for output in engine.generate([Request([]), Request([-1])])] == ["error", "error"]
    assert engine.statistics.steps == 0


def test_ids_may_come_as_tuples_arrays_or_tensors():
    plain = rows((7,), limit=9)[0]
    truth = solo(target("llama"), [plain])
    for ids in (tuple(plain.prompt_ids), np.array(plain.prompt_ids), torch.tensor(plain.prompt_ids)):
        outputs, _, _ = decode(target("llama"), right(2), config("specproof"), [Request(ids, max_new_tokens=9)])  # type: ignore[arg-type]
        assert_equal(outputs, truth, type(ids))


@pytest.mark.parametrize("method", ["target-only", *SPECULATIVE])
def test_empty_prompts_begin_with_bos_where_there_is_one_and_are_errors_where_not(method):
    good = rows((4, 13), limit=12)
    mixed = [Request([], 12, request_id="empty0"), good[0], Request([], 12, request_id="empty1"), good[1]]
    drafter = None if method == "target-only" else PromptLookup()
    truth = vary(solo(target("llama"), [Request([7], 12), good[0], Request([7], 12), good[1]]))
    with_bos = LM(target("llama").model)
    with_bos.bos_id = 7
    outputs, _, _ = decode(with_bos, drafter, config(method), mixed)
    assert_equal(outputs, truth, (method, "BOS from the model"))
    assert [output.prompt_len for output in outputs] == [1, 4, 1, 13]
    told = Engine(target("llama"), drafter, config(method), Toy(TOY.pieces, bos_id=7))  # type: ignore[arg-type]
    assert_equal(told.generate(mixed), truth, (method, "BOS from the tokenizer"))
    outputs, _, _ = decode(target("llama"), drafter, config(method), mixed)
    assert [output.finish_reason for output in outputs] == ["error", "length", "error", "length"]
    assert "no BOS" in str(outputs[0].error)
    assert_equal([outputs[1], outputs[3]], [truth[1], truth[3]], method)


@pytest.mark.parametrize("family", ["llama", "opt", "gpt2"])
@pytest.mark.parametrize("method", ["target-only", *SPECULATIVE])
def test_prompt_and_limit_one_below_at_and_above_the_context(method, family):
    """Learned positions have nothing behind the last one: a filler or draft beyond it would raise."""
    sizes = {"n_positions": 32} if family == "gpt2" else {"max_position_embeddings": 32}
    lm = tiny_lm(family, seed=1, **sizes)
    assert lm.context == 32
    cases = [(20, 11), (20, 12), (20, 13), (31, 1), (31, 2), (30, 50), (3, 29), (1, 100), (2, 4)]
    requests = [Request(prompt(n, i), max_new_tokens=m, request_id=f"row{i}") for i, (n, m) in enumerate(cases)]
    requests += [Request(prompt(n), request_id=f"long{n}") for n in (32, 33)]
    truth = vary(solo(lm, requests[:-2]))
    drafters = [None] if method == "target-only" else [PromptLookup(), lm]
    for drafter in drafters:
        outputs, _, engine = decode(lm, drafter, config(method, num_draft_tokens=8), requests)
        assert_equal(outputs[:-2], truth, (method, family, drafter))
        assert [len(output.token_ids) for output in outputs[:-2]] == [min(m, 32 - n) for n, m in cases]
        assert {output.finish_reason for output in outputs[:-2]} == {"length"}
        assert ["32" in str(output.error) for output in outputs[-2:]] == [True, True]
        if drafter is lm and method != "rollback":
            assert engine.statistics.accepted == engine.statistics.drafted > 20


@pytest.mark.parametrize("chunk", [1, 3, 8, 200])
@pytest.mark.parametrize("method", SPECULATIVE)
def test_a_prompt_may_be_computed_in_chunks_of_any_size(method, chunk):
    requests = rows((8, 9, 10, 1, 41), limit=10)
    outputs, records, _ = decode(target("llama"), noisy_copy("llama"), config(method, prefill_chunk=chunk), requests)
    assert_equal(outputs, vary(solo(target("llama"), requests)), (method, f"chunks of {chunk}"))
    computed = {
        name: sum(c.length for r in records for c in r.prefilled if c.request_id == name)
        for name in ("row0", "row3", "row4")
    }
    assert computed == {"row0": 7, "row3": 0, "row4": 40}, "prefill is the prompt without its last token"


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_a_row_that_ended_without_numbers_lends_its_beginning_to_nobody(batch_size):
    lm = tiny_lm("llama", seed=1)
    common = prompt(24)
    good = [Request([*common, 7, n], max_new_tokens=9, request_id=f"row{n}") for n in range(3)]
    truth = vary(decode_reference(lm, request) for request in good)
    used = {token for found in truth for token in found.token_ids} | {*common, *range(8)}
    bad = next(token for token in range(VOCAB) if token not in used)
    with torch.no_grad():
        lm.model.get_input_embeddings().weight[bad] = torch.nan
    engine = Engine(lm, None, EngineConfig("target-only", batch_size=batch_size))
    outputs = engine.generate([Request([*common, bad], max_new_tokens=9), *good])
    assert outputs[0].finish_reason == "error"
    assert_equal(outputs[1:], truth, "behind a row that was wiped")
    assert engine.statistics.shared > 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_row_whose_logits_are_no_numbers_is_an_error_and_harms_nobody(method, batch_size):
    """One token's embedding is NaN; the row that has it leaves a place behind that others take."""
    lm = tiny_lm("llama", seed=1)
    truth = references("llama")
    used = {token for found in truth for token in found.token_ids} | {t for r in REQUESTS for t in r.prompt_ids}
    bad = next(token for token in range(VOCAB) if token not in used)
    with torch.no_grad():
        lm.model.get_input_embeddings().weight[bad] = torch.nan
    broken = [Request([3, bad, *range(n)], 9, request_id=f"nan{n}") for n in (30, 2, 0)]
    requests = [broken[0], *REQUESTS[1:4], broken[1], REQUESTS[0], *REQUESTS[4:], broken[2]]
    for drafter in (None,) if method == "target-only" else (PromptLookup(), right(2)):
        engine = Engine(lm, drafter, EngineConfig(method, batch_size=batch_size, num_draft_tokens=3, prefill_chunk=8))
        outputs = {output.request_id: output for output in engine.generate(requests)}
        for request in broken:
            output = outputs[request.request_id]
            assert (output.finish_reason, output.token_ids) == ("error", ())
            assert "logits are not numbers" in output.error
        assert_equal([outputs[request.request_id] for request in REQUESTS], truth, f"{method} beside NaN")


@pytest.mark.parametrize("method", SPECULATIVE)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_draft_whose_states_are_no_numbers_costs_time_only_and_so_does_the_filler(method, batch_size):
    """Ids that no row has, the lowest among them, have NaN as embedding; one is drafted behind right drafts."""
    lm = tiny_lm("llama", seed=1)
    requests = [Request([t or 1 for t in request.prompt_ids], 9, request_id=request.request_id) for request in REQUESTS]
    truth = vary(decode_reference(lm, request) for request in requests)
    used = {token for found in truth for token in found.token_ids} | {t for r in requests for t in r.prompt_ids}
    unused = [token for token in range(VOCAB) if token not in used]
    with torch.no_grad():
        lm.model.get_input_embeddings().weight[unused] = torch.nan
    known = {request.request_id: found.token_ids for request, found in zip(requests, truth, strict=True)}
    assert unused[0] == 0, "fillers are not tried"

    def spoil(row, max_tokens):
        at = len(row.token_ids) - row.prompt_len
        return [*known[row.request_id][at : at + at % 3], unused[0]][:max_tokens] if at % 2 else []

    options = EngineConfig(method, batch_size=batch_size, num_draft_tokens=4, prefill_chunk=8)
    engine = Engine(lm, Scripted(spoil), options)
    assert_equal(engine.generate(requests), truth, f"{method}, drafts that are not numbers")
    assert engine.statistics.accepted > 0
