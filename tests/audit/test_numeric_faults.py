"""Other arithmetic is not lost synchronisation: faults of the numbers, planted in the target of engine and judge."""

import pytest
import torch

from specproof import Engine, EngineConfig, Request
from specproof.audit import audit_traces
from specproof.audit.numeric_faults import NUMERIC_FAULTS
from specproof.audit.trace_row import Trace
from specproof.lm import LM, random_lm
from specproof.reference import decode_reference

LIMIT, VOCAB = 64, 509
SIZE = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "head_dim": 8, "max_position_embeddings": 160, "tie_word_embeddings": False,
}  # fmt: skip
REQUESTS = [Request([(7 * i + 11 * k + 3) % VOCAB for i in range(3 + 2 * k)], LIMIT) for k in range(8)]
NUMERIC = {"exact", "tie", "near-tie", "width-variance", "batch-variance"}


def classes(lm: LM, outputs) -> set[str]:
    traces = [Trace(k, str(k), r, tuple(ids)) for k, (r, ids) in enumerate(zip(REQUESTS, outputs, strict=True))]
    assert len({token for ids in outputs for token in ids}) > 50
    return {row.cls for row in audit_traces(lm, traces, plain_rows=0).rows}


def plain(lm: LM) -> list[tuple[int, ...]]:
    return [decode_reference(lm, request).token_ids for request in REQUESTS]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NUMERIC_FAULTS)
def test_a_numeric_fault_comes_out_as_rounding_of_some_shape_and_never_as_synchronisation(name, dtype):
    lm = random_lm("llama", 1, dtype, **SIZE)
    with NUMERIC_FAULTS[name](lm):
        one_by_one = plain(lm)
        drafted = Engine(lm, lm, EngineConfig(num_draft_tokens=5)).generate(REQUESTS)
        found = [classes(lm, one_by_one), classes(lm, [output.token_ids for output in drafted])]
    assert set.union(*found) <= NUMERIC, found


def test_activations_rounded_where_wide_are_a_difference_of_width():
    lm = random_lm("llama", 1, torch.float32, **SIZE)
    sound = plain(lm)
    with NUMERIC_FAULTS["int8-when-wide"](lm):
        one_by_one = plain(lm)
        assert one_by_one != sound  # prompts are wide
        assert classes(lm, one_by_one) == {"width-variance"}


def test_the_faults_are_gone_behind_them_and_their_logits_differ_within():
    lm = random_lm("llama", 1, torch.float32, **SIZE)
    ids = torch.tensor([REQUESTS[3].prompt_ids])
    before = lm.plain_forward(ids)[0]
    for name, fault in NUMERIC_FAULTS.items():
        with fault(lm):
            assert not torch.equal(lm.plain_forward(ids)[0], before), name
        assert torch.equal(lm.plain_forward(ids)[0], before), name


@pytest.mark.parametrize("name", ["int8-when-wide", "bfloat16-head"])
def test_an_engine_with_other_arithmetic_than_its_judge_never_passes_unseen(name):
    lm = random_lm("llama", 1, torch.float32, **SIZE)
    with NUMERIC_FAULTS[name](lm):
        outputs = plain(lm)
    found = classes(lm, outputs)
    assert "unexplained" in found
    assert found <= {"exact", "unexplained"}
