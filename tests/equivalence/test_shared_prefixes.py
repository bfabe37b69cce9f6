"""Prompts that begin alike: what a row took over is what it would have computed, to the bit."""

from collections import Counter
from functools import cache

import pytest
import torch
from bits import Bits, decode_bits, rows_that_differ, wide_lm
from families import VOCAB, tiny_lm
from helpers import assert_equal, vary
from hypothesis import given, settings
from hypothesis import strategies as st

from specproof import Engine, EngineConfig, Request
from specproof.audit.auditor import audit_engine
from specproof.drafters import PromptLookup
from specproof.kv.cells import Cells
from specproof.lm import LM
from specproof.prefixes import LEAST
from specproof.reference import decode_reference

BEGINS = [[(7 * i + 5 * i * i + 3 * k) % VOCAB for i in range(150)] for k in range(2)]
# (which beginning, how much of it, tokens of its own, limit): past windows (37), blocks (64), chunks; one prompt twice.
SHAPES = [(0, 140, 9, 7), (0, 140, 1, 5), (0, 90, 33, 6), (0, 140, 9, 7), (1, 70, 20, 9), (1, 70, 3, 4), (0, 12, 6, 8)]
FAMILIES = ["llama", "gemma3_text", "mistral", "gpt2", "opt"]
DTYPES = [torch.float32, torch.bfloat16]


def prompt(number: int, begin: int, common: int, own: int) -> list[int]:
    return [*BEGINS[begin][:common], *((11 * number % 5 + 2 * i * i + i) % VOCAB for i in range(own))]


ROWS = [Request(prompt(i, *shape[:3]), shape[3], request_id=f"row{i}") for i, shape in enumerate(SHAPES)]


@cache
def target(family: str, dtype: torch.dtype) -> LM:
    return wide_lm(family, dtype)


@cache
def alone(family: str, dtype: torch.dtype) -> dict[str, Bits]:
    found = decode_bits(target(family, dtype), ROWS, method="target-only", batch_size=1, share_prefixes=False)
    assert len({token for bits in found.values() for token in bits.output.token_ids}) > 8, "the outputs do not vary"
    assert not any(bits.output.num_shared for bits in found.values())
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_that_take_over_a_prefix_have_the_bits_of_a_row_alone(family, dtype):
    truth = alone(family, dtype)
    for method, batch_size, chunk in (("target-only", 1, 256), ("specproof", 3, 50), ("specproof", 8, 256)):
        drafts = PromptLookup() if method == "specproof" else None
        found = decode_bits(
            target(family, dtype), ROWS, drafts, method=method, batch_size=batch_size, prefill_chunk=chunk
        )
        assert not rows_that_differ(found, truth), (family, dtype, method, batch_size)
        shared = [bits.output.num_shared for bits in found.values()]
        assert sum(length > 0 for length in shared) >= 4, shared
        assert shared[-1] == 0, "too little in common"


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(
    family=st.sampled_from(["llama", "gemma3_text", "gpt2"]),
    dtype=st.sampled_from(DTYPES),
    batch_size=st.integers(1, 6),
    chunk=st.integers(1, 160),
    k=st.integers(0, 5),
    order=st.permutations(range(len(ROWS))),
    kept=st.integers(2, len(ROWS)),
    draft=st.sampled_from(["none", "prompt-lookup", "target"]),
)
def test_no_batch_chunk_or_order_changes_a_bit_of_rows_that_share(
    family, dtype, batch_size, chunk, k, order, kept, draft
):
    lm, truth = target(family, dtype), alone(family, dtype)
    drafter = {"none": None, "prompt-lookup": PromptLookup(), "target": lm}[draft]
    config = {"batch_size": batch_size, "prefill_chunk": chunk, "num_draft_tokens": k}
    found = decode_bits(lm, [ROWS[i] for i in order[:kept]], drafter, **config)
    assert not rows_that_differ(found, {name: truth[name] for name in found}), (family, dtype, config)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    family=st.sampled_from(["llama", "mistral", "opt"]),
    shapes=st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 60), st.integers(1, 12), st.integers(1, 9)), min_size=2, max_size=7
    ),
    batch_size=st.integers(1, 5),
    chunk=st.integers(1, 80),
    k=st.integers(0, 4),
    draft=st.sampled_from(["none", "prompt-lookup", "target"]),
    cancelled=st.integers(0, 12),
)
def test_tokens_are_the_references_under_audit_also_after_a_run_that_was_given_up(
    family, shapes, batch_size, chunk, k, draft, cancelled
):
    lm = float64(family)
    requests = [Request(prompt(i, *shape[:3]), shape[3], request_id=f"row{i}") for i, shape in enumerate(shapes)]
    drafter = {"none": None, "prompt-lookup": PromptLookup(), "target": lm}[draft]
    engine = Engine(lm, drafter, EngineConfig(batch_size=batch_size, prefill_chunk=chunk, num_draft_tokens=k))
    engine.submit(requests)
    for _ in range(cancelled):
        if engine.num_unfinished:
            engine.step()
    engine.abandon()
    assert engine.layout.nbytes == 0
    audit = audit_engine(engine, requests)
    assert audit.clean, [str(violation) for violation in audit.first] or audit.crash
    assert_equal(audit.outputs, [decode_reference(lm, request) for request in requests], (family, batch_size, chunk, k))
    assert engine.layout.nbytes == 0


def damaged(original):
    """The ledger says that all is well; the keys were copied wrongly."""

    def copy_from(cells, other, source, index):
        original(cells, other, source, index)
        for keys in cells.keys.values():
            keys[:, index[-1]] *= 1.5

    return copy_from


def test_level_full_computes_copied_kv_anew():
    for plant, caught in ((False, set()), (True, {"kv-matches"})):
        engine = Engine(float64("mistral"), None, EngineConfig(batch_size=3))
        with pytest.MonkeyPatch.context() as patch:
            if plant:
                patch.setattr(Cells, "copy_from", damaged(Cells.copy_from))
            audit = audit_engine(engine, ROWS[:3], "full")
        assert audit.crash is None
        assert engine.statistics.shared > 100
        assert {violation.invariant for violation in audit.first} == caught


@cache
def float64(family: str) -> LM:
    return tiny_lm(family, seed=1)


def run(batch_size: int, requests=tuple(ROWS), drafter=None, **config) -> tuple[Engine, list]:
    engine, records = Engine(float64("llama"), drafter, EngineConfig(batch_size=batch_size, **config)), []
    engine.observers.append(records.append)
    truth = vary([decode_reference(engine.target, request) for request in requests])
    assert_equal(engine.generate(requests), truth, (batch_size, config))
    return engine, records


@pytest.mark.parametrize("batch_size", [1, 4, 8])
def test_each_prompt_token_is_computed_or_taken_over_once_and_the_counts_say_so(batch_size):
    engine, records = run(batch_size)
    computed = Counter(
        chunk.request_id for record in records for chunk in record.prefilled for _ in range(chunk.length)
    )
    shared = {share.request_id: share.length for record in records for share in record.shared}
    for request in ROWS:
        name = request.request_id
        assert computed[name] + shared.get(name, 0) == len(request.prompt_ids) - 1, "all but the pending token"
    assert engine.statistics.prefilled == computed.total()
    assert engine.statistics.shared == sum(shared.values()) > 0
    off, _ = run(batch_size, share_prefixes=False)
    assert off.statistics.shared == 0
    assert off.statistics.prefilled == engine.statistics.prefilled + engine.statistics.shared


def test_rows_that_enter_together_compute_a_common_prefix_once_though_all_ended_together_before():
    """Two batches of four. Row 0 computes what is common, and emits a step before the others of its batch."""
    requests = [Request([*BEGINS[0][:100], 3 * i, i], 13 if i == 0 else 12, request_id=str(i)) for i in range(8)]
    engine, records = run(4, requests)
    assert [record.admitted for record in records if record.admitted] == [tuple("0123"), tuple("4567")]
    assert engine.statistics.shared == 7 * 100
    assert [(s.request_id, s.length) for s in records[1].shared] == [(name, 100) for name in "123"]
    last = next(record for record in records if "4" in record.admitted)
    assert [s.request_id for s in last.shared] == list("4567"), "from rows that had ended, without waiting"
    assert engine.layout.nbytes == 0


def test_decoding_rows_are_not_held_up_and_a_row_waits_for_its_part_only():
    """a computes 120 tokens in chunks of 20; b has 40 in common, and goes on when these are there, or nearly."""
    a = Request([*BEGINS[0][:120], 1], 5, request_id="a")
    b = Request([*BEGINS[0][:40], 2, 3, 4], 5, request_id="b")
    early = Request(BEGINS[1][:4], 12, request_id="early")
    _, records = run(3, [early, a, b], prefill_chunk=20)
    assert all(any(row.request_id == "early" for row in record.rows) for record in records[1:10])
    taken = next(record for record in records if record.shared)
    before = sum(
        chunk.length for record in records[: taken.index] for chunk in record.prefilled if chunk.request_id == "a"
    )
    assert 40 - LEAST < before < 40 + 20
    assert taken.shared[0].length == min(before, 40)


def test_memory_stays_within_its_bound_while_rows_share():
    engine = Engine(float64("llama"), None, EngineConfig(batch_size=3, prefill_chunk=64))
    forward, asked, seen = engine.layout.forward, {}, []

    def watched(feeds, device_ids=None):
        for feed in feeds:
            asked[feed.row] = max(asked.get(feed.row, 0), len(known[feed.row]), feed.end)
        logits = forward(feeds, device_ids)
        cells, live = engine.layout.slots.cells, set(engine._running)
        assert cells.rows * cells.capacity <= 1.25 * max(asked[name] for name in live if name in asked) * len(live)
        seen.append(cells.rows)
        return logits

    known = {request.request_id: request.prompt_ids for request in ROWS}
    engine.layout.forward = watched
    engine.generate(ROWS)
    assert engine.statistics.shared > 2 * LEAST
    assert {1, 3} <= set(seen), "it shrinks as rows finish"


def test_a_draft_model_takes_over_too_and_drafts_the_same():
    lm = float64("llama")
    draft = tiny_lm("llama", seed=4, num_hidden_layers=1)
    drafts, fed = [], []
    for share in (True, False):
        engine, records = run(4, drafter=draft, share_prefixes=share)
        drafts.append({(row.request_id, row.start): row.drafted for record in records for row in record.rows})
        engine = Engine(lm, draft, EngineConfig(batch_size=4, share_prefixes=share))
        counted = engine.drafter.layout  # type: ignore[union-attr]
        forward, count = counted.forward, Counter()

        def watched(feeds, device_ids=None, forward=forward, count=count):
            count["tokens"] += sum(feed.length for feed in feeds)
            return forward(feeds, device_ids)

        counted.forward = watched
        engine.generate(ROWS)
        fed.append(count["tokens"])
        assert counted.nbytes == 0
    assert fed[0] < fed[1] - 200
    both = drafts[0].keys() & drafts[1].keys()
    assert sum(len(drafts[0][key]) for key in both) > 20
    assert all(drafts[0][key] == drafts[1][key] for key in both)


@pytest.mark.parametrize("parts", [{"method": "eqspec"}, {"method": "exspec"}, {"layout": "left-padded"}])
def test_rectangles_share_nothing(parts):
    engine, _ = run(4, drafter=PromptLookup(), **parts)
    assert engine.statistics.shared == 0
