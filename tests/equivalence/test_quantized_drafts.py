"""A draft with weights of four bits changes what is accepted, and nothing else."""

import copy

import pytest
import torch
from bits import decode_bits, rows_that_differ, some_rows, wide_lm
from helpers import CHUNK, REQUESTS, assert_equal, decode, ragged_steps, vary

from specproof import Engine, EngineConfig
from specproof.audit.auditor import audit_engine
from specproof.drafters import Cascade, Suffix
from specproof.errors import ConfigError
from specproof.lm import LM
from specproof.numerics.artifact import compiler
from specproof.numerics.quantized import is_quantized
from specproof.reference import decode_reference
from specproof.step import StepRecord

FAMILIES = ["llama", "gemma3_text", "gpt2", "opt"]
ROWS = some_rows([(1, 12), (60, 14), (150, 9), (23, 16), (124, 11)])


def copied(lm: LM) -> LM:
    return LM(copy.deepcopy(lm.model))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("drafter", ["model", "cascade", "short-head"])
def test_rows_are_the_reference_and_many_drafts_are_right(family, drafter):
    lm = wide_lm(family, torch.float32)
    truth = vary([decode_reference(lm, request) for request in REQUESTS])
    drafts = copied(lm)
    config = EngineConfig(
        batch_size=3, prefill_chunk=CHUNK, draft_bits=4, draft_head=50 if drafter == "short-head" else None
    )
    given = Cascade(Suffix(size=4), drafts) if drafter == "cascade" else drafts
    outputs, records, engine = decode(lm, given, config, REQUESTS)
    assert_equal(outputs, truth, f"{drafter} of four bits")
    assert engine.statistics.acceptance_rate > 0.1, engine.statistics.acceptance_rate
    assert engine.statistics.acceptance_rate < 1, "the draft is the target itself"
    assert ragged_steps(records) > 0


def test_the_drafts_of_a_row_are_the_same_in_any_batch():
    """So acceptance can be reproduced: what was drafted, by row and place, at batch 1 and 4."""
    lm = wide_lm("llama", torch.float32)
    drafted = []
    for batch_size in (1, 4):
        config = EngineConfig(batch_size=batch_size, prefill_chunk=16, draft_bits=4, share_prefixes=False)
        _, records, engine = decode(lm, copied(lm), config, ROWS)
        if not engine.numerics.invariant:
            pytest.skip(f"no invariant numerics here: {engine.numerics.reason}")
        drafted.append(by_row(records))
    assert drafted[0] == drafted[1]
    assert len({token for drafts in drafted[0].values() for token in drafts}) > 12


def by_row(records: list[StepRecord]) -> dict[tuple[str, int], tuple[int, ...]]:
    """(row, where its drafts begin) -> the drafts."""
    return {(row.request_id, row.start): row.drafted for record in records for row in record.rows}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_those_of_target_only_to_the_bit(dtype):
    lm = wide_lm("llama", dtype)
    alone = decode_bits(lm, ROWS, method="target-only", batch_size=1)
    ours = decode_bits(lm, ROWS, copied(lm), batch_size=3, num_draft_tokens=4, prefill_chunk=32, draft_bits=4)
    assert not rows_that_differ(ours, alone)


@pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")
def test_compiled_drafts_of_four_bits():
    lm = wide_lm("llama", torch.bfloat16)
    options = {"compile": True, "prefill_chunk": 32}
    alone = decode_bits(lm, ROWS, method="target-only", batch_size=1, **options)
    drafts = copied(lm)
    ours = decode_bits(lm, ROWS, drafts, batch_size=3, num_draft_tokens=4, draft_bits=4, **options)
    assert not rows_that_differ(ours, alone)
    engine = Engine(lm, drafts, EngineConfig(draft_bits=4, **options))
    assert is_quantized(engine.drafter.quick.lm.model)  # type: ignore[union-attr]
    assert engine.drafter.quick.numerics.invariant  # type: ignore[union-attr]
    assert engine.drafter.quick.numerics.compiled  # type: ignore[union-attr]


@pytest.mark.parametrize("level", ["light", "full"])
def test_an_audit_finds_nothing(level):
    lm = wide_lm("llama", torch.float32)
    engine = Engine(lm, copied(lm), EngineConfig(batch_size=3, prefill_chunk=CHUNK, draft_bits=4))
    audit = audit_engine(engine, REQUESTS, level)
    assert audit.crash is None
    assert not audit.violations, audit.violations[:3]
    assert engine.statistics.accepted > 0


def test_an_audit_sees_a_draft_of_four_bits_that_loses_its_place():
    lm = wide_lm("llama", torch.float32)
    engine = Engine(lm, copied(lm), EngineConfig(batch_size=3, prefill_chunk=CHUNK, draft_bits=4))
    commit = engine.drafter.commit  # type: ignore[union-attr]
    engine.drafter.commit = lambda accepted: commit(dict.fromkeys(accepted, 5))  # type: ignore[union-attr]
    audit = audit_engine(engine, REQUESTS, "light")
    assert any(violation.invariant == "draft-in-sync" for violation in audit.violations), audit.violations[:3]


def test_the_target_itself_can_draft_with_four_bits():
    lm = wide_lm("llama", torch.float32)
    truth = vary([decode_reference(lm, request) for request in REQUESTS])
    config = EngineConfig(batch_size=3, prefill_chunk=CHUNK, draft_bits=4)
    outputs, _, engine = decode(lm, lm, config, REQUESTS)
    assert_equal(outputs, truth, "the target, with four bits")
    audit = audit_engine(Engine(lm, lm, config), REQUESTS, "light")
    assert not audit.violations, audit.violations[:3]
    weights = {id(parameter) for parameter in lm.model.parameters()}
    assert all(id(p) in weights for p in engine.drafter.quick.lm.model.parameters())  # type: ignore[union-attr]


def test_a_dtype_in_which_four_bits_are_slow_is_told():
    lm = wide_lm("llama", torch.float32)
    with pytest.warns(UserWarning, match="quick in bfloat16 only; in float32 this draft takes longer"):
        Engine(lm, copied(lm), EngineConfig(draft_bits=4))


@pytest.mark.parametrize("method", ["eqspec", "exspec", "rollback"])
def test_a_layout_that_pads_says_that_it_cannot(method):
    with pytest.raises(ConfigError, match=f"draft_bits needs the slotted layout, and method '{method}' has another"):
        EngineConfig(method, draft_bits=4)
