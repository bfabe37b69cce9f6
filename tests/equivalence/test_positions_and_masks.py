"""A row's positions, mask and window are its own, whatever shape the batch has."""

import pytest
import torch
from families import VOCAB, tiny_lm
from helpers import assert_equal, decode, target, vary
from probes import PER_ROW, SPECULATIVE, config, free_run, prompt, right, rows, solo

from specproof import Engine, Request
from specproof.drafters import Scripted
from specproof.errors import UnsupportedModelError
from specproof.kv.slotted import Slotted
from specproof.lm import LM


@pytest.mark.parametrize("method", SPECULATIVE)
def test_a_prompt_of_one_token_alone_and_beside_a_long_one(method):
    requests = [
        Request([5], max_new_tokens=64, request_id="row0"),
        Request(prompt(40), max_new_tokens=30, request_id="row1"),
    ]
    truth = vary(solo(target("llama"), requests))
    for batch in (requests[:1], requests, requests[::-1]):
        outputs, records, _ = decode(target("llama"), right(lambda row: len(row.token_ids) % 4), config(method), batch)
        assert sum(len(row.drafted) for record in records for row in record.rows) > 50
        assert_equal(outputs, truth[:1] if len(batch) == 1 else truth if batch is requests else truth[::-1], method)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("method", ["target-only", *SPECULATIVE])
def test_a_short_row_beside_a_long_one_is_right_at_its_first_token_and_does_not_drift_after_it(method, attention):
    for family in ("llama", "opt"):
        requests = rows((3, 40), limit=24)
        truth = solo(target(family), requests)
        outputs, _, _ = decode(target(family), None, config(method, attention=attention), requests)
        for output, reference in zip(outputs, truth, strict=True):
            where = f"{output.request_id} of {family}, {method}, {attention}"
            assert output.token_ids[0] == reference.token_ids[0], f"first token wrong: prefill; {where}"
        assert_equal(outputs, truth, (method, attention, "right at first, then drifting"))


def test_each_forward_is_fed_the_positions_that_follow_what_is_cached(monkeypatch):
    """The flat forward: decoding rows, then prompt chunks, each from its `cached_len` on, no gap."""
    fed, orders = [], []
    forward, of_layout = LM.forward, Slotted.forward

    def watched(self, ids, position_ids, kv, columns):
        fed.append((ids[0].tolist(), position_ids[0].tolist()))
        return forward(self, ids, position_ids, kv, columns)

    def ordered(self, feeds, device_ids=None):
        logits = of_layout(self, feeds, device_ids)
        lengths = {feed.row: feed.length for feed in feeds}
        orders.append({row: lengths[row] for row in self.rows})
        return logits

    monkeypatch.setattr(LM, "forward", watched)
    monkeypatch.setattr(Slotted, "forward", ordered)
    requests = rows((1, 14, 4, 30, 2), limit=15)
    outputs, records, _ = decode(
        target("llama"), right(lambda row: len(row.token_ids) % 3), config("specproof"), requests
    )
    known = {r.request_id: [*r.prompt_ids, *o.token_ids] for r, o in zip(requests, outputs, strict=True)}
    cached = dict.fromkeys(known, 0)
    mixed = 0
    for record, lengths, (ids, positions) in zip(records, orders, fed, strict=True):
        order = list(lengths)
        decoding = sorted(record.rows, key=lambda row: order.index(row.request_id))
        chunks = sorted(record.prefilled, key=lambda chunk: order.index(chunk.request_id))
        assert [part.request_id for part in (*decoding, *chunks)] == order
        mixed += bool(chunks and decoding)
        expected, at = [], 0
        for row in decoding:
            assert row.start == cached[row.request_id]
            own = [known[row.request_id][row.start], *row.drafted]  # drafts behind the row's end are fed, not recorded
            assert ids[at : at + len(own)] == own
            assert lengths[row.request_id] >= len(own)
            expected += range(row.start, row.start + lengths[row.request_id])
            at = len(expected)
            cached[row.request_id] += 1 + row.num_accepted
        for chunk in chunks:
            assert chunk.start == cached[chunk.request_id]
            expected += range(chunk.start, chunk.start + chunk.length)
            cached[chunk.request_id] += chunk.length
        assert positions == expected, f"step {record.index}"
    assert mixed > 2, "prefill and decoding never shared a forward"


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["mistral", "gemma3_text", "qwen2"])
def test_rows_grow_past_their_sliding_window_from_below_and_start_beyond_it(family, attention):
    sliding = {"use_sliding_window": True, "max_window_layers": 1} if family == "qwen2" else {}
    lm = tiny_lm(family, seed=1, sliding_window=8, **sliding)
    assert 8 in lm.windows
    requests = rows((6, 40, 1), limit=40)
    truth = vary(solo(lm, requests))
    everything = solo(tiny_lm(family, seed=1, sliding_window=150, **sliding), requests)
    assert any(a.token_ids != b.token_ids for a, b in zip(everything, truth, strict=True)), (
        "the window changes nothing here"
    )
    known = {
        request.request_id: (len(request.prompt_ids), r.token_ids) for request, r in zip(requests, truth, strict=True)
    }

    def script(row, k):
        at = len(row.token_ids) - known[row.request_id][0]
        return [(t + (j >= at % 5)) % VOCAB for j, t in enumerate(known[row.request_id][1][at : at + k])]

    for method in SPECULATIVE:
        outputs, _, engine = decode(lm, Scripted(script), config(method, attention=attention), requests)
        assert 0 < engine.statistics.accepted < engine.statistics.drafted
        assert_equal(outputs, truth, (family, method, attention))


@pytest.mark.parametrize("method", SPECULATIVE)
def test_more_than_a_hundred_steps_of_rejected_drafts_each_add_exactly_one_token(method):
    requests = rows((2, 9), limit=110)
    truth = vary(solo(target("llama"), requests))
    outputs, records, engine = decode(target("llama"), right(0), config(method), requests)
    assert_equal(outputs, truth, method)
    emitting = [row for record in records for row in record.rows]
    assert all(len(row.emitted) == 1 and row.num_accepted == 0 for row in emitting)
    assert sum(len(row.drafted) == 5 for row in emitting) > 200
    assert [output.num_steps for output in outputs] == [110, 110]
    assert engine.statistics.accepted == 0


@pytest.mark.parametrize("method", PER_ROW)
def test_any_number_of_draft_tokens_gives_the_same_ids(method):
    requests = rows((7, 1, 20), limit=30)
    truth = vary(solo(target("llama"), requests))
    steps = {}
    for k in range(9):
        outputs, _, engine = decode(target("llama"), right(99), config(method, num_draft_tokens=k), requests)
        assert_equal(outputs, truth, (method, f"K = {k}"))
        assert engine.statistics.drafted == engine.statistics.accepted
        steps[k] = [output.num_steps for output in outputs]
    assert steps == {k: [-(-30 // (k + 1))] * 3 for k in range(9)}, "full acceptance emits K + 1 tokens a step"


@pytest.mark.parametrize("method", SPECULATIVE)
def test_a_first_draft_that_is_wrong_is_never_committed(method):
    truth = free_run((5, 6, 7))
    request = Request([5, 6, 7], max_new_tokens=40)
    wrong = Scripted(lambda row, k: [(truth[len(row.token_ids) - 3] + 1) % VOCAB])
    outputs, records, _ = decode(target("llama"), wrong, config(method), [request])
    assert outputs[0].token_ids == truth
    assert sum(row.drafted != () for record in records for row in record.rows) == 39


def test_a_model_whose_rotation_follows_the_longest_row_is_kept_where_it_does_not():
    """LongRoPE has other frequencies for all positions once one of them lies beyond the original context."""
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 24}
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    options = {"sliding_window": None, "rope_parameters": {**rope, **factors}, "original_max_position_embeddings": 24}
    lm = tiny_lm("phi3", seed=1, **options)
    assert lm.context == 24
    requests = rows((3, 20, 5, 30), limit=12)
    truth = solo(lm, requests[:3])
    outputs, _, _ = decode(lm, None, config("target-only"), requests)
    assert_equal(outputs[:3], truth, "longrope")
    assert [len(output.token_ids) for output in outputs] == [12, 4, 12, 0]
    assert "context holds 24" in str(outputs[3].error)
    beyond = LM(lm.model)
    beyond.context = 160
    mixed, _, _ = decode(beyond, None, config("target-only"), [requests[0], requests[3]])
    assert mixed[0].token_ids != truth[0].token_ids, "a long neighbour changes nothing here: the limit is not needed"


def test_a_window_that_the_layers_have_and_our_masks_have_not_is_refused():
    lm = LM(tiny_lm("mistral", seed=1).model)
    lm.windows = (None,) * len(lm.windows)
    with pytest.raises(UnsupportedModelError, match="MistralAttention 0 has a window of 7, but its config gives None"):
        Engine(lm, None, config("target-only")).generate(rows((3,)))


def test_the_models_own_attention_is_back_in_place_after_decoding():
    lm = tiny_lm("llama", seed=1)
    before = lm.model.config._attn_implementation
    ids = torch.tensor([prompt(12)])
    logits, _ = lm.plain_forward(ids)
    Engine(lm, None, config("target-only")).generate(rows((3, 4)))
    assert lm.model.config._attn_implementation == before
    assert torch.equal(lm.plain_forward(ids)[0], logits)
