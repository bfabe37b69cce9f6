"""Heads padded to different sizes, and equal logits."""

import copy

import pytest
import torch
from families import VOCAB, tiny_lm
from helpers import assert_equal, decode, target, vary
from probes import PER_ROW, SPECULATIVE, config, right, rows, solo

from specproof import Engine, Request
from specproof.drafters import Scripted
from specproof.errors import DrafterError
from specproof.lm import LM


def resized(lm: LM, rows_: int) -> LM:
    """The model with another number of embedding and head rows; new head rows win whenever they are looked at."""
    model = copy.deepcopy(lm.model)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    for layer, fill in ((embedding, 0.5), (head, 0.0)):
        old = layer.weight.data
        new = torch.full((rows_, old.shape[1]), fill, dtype=old.dtype)
        new[: min(rows_, len(old))] = old[:rows_]
        layer.weight = torch.nn.Parameter(new)
    model.config.vocab_size = rows_
    if rows_ > lm.vocab_size:
        # A bias of its own on the padding rows: their logits are above all others.
        forward = head.forward
        bias = torch.zeros(rows_, dtype=torch.float64)
        bias[lm.vocab_size :] = 1e3
        head.forward = lambda hidden: forward(hidden) + bias
    return LM(model)


@pytest.mark.parametrize("method", PER_ROW)
def test_ids_that_only_the_drafts_larger_head_has_are_never_drafted(method):
    draft = resized(target("llama"), 80)
    assert draft.plain_forward(torch.tensor([[5, 6]]))[0].argmax() % 80 >= VOCAB, "the padding rows do not win"
    requests = rows((4, 11), limit=24)
    outputs, records, engine = decode(target("llama"), draft, config(method), requests)
    assert_equal(outputs, vary(solo(target("llama"), requests)), method)
    assert max(token for record in records for row in record.rows for token in row.drafted) < VOCAB
    assert engine.statistics.drafted == engine.statistics.accepted > 20, "but for its padding it is the target"


@pytest.mark.parametrize("method", PER_ROW)
def test_a_draft_with_a_smaller_head_drafts_what_it_knows(method):
    draft = resized(target("llama"), 50)
    requests = [
        Request([5, 49, 7], max_new_tokens=20, request_id="row0"),
        Request([5, 50, 7], max_new_tokens=20, request_id="row1"),  # 50 is the first id that the draft does not have
    ]
    truth = vary(solo(target("llama"), requests))
    outputs, records, engine = decode(target("llama"), draft, config(method), requests)
    assert_equal(outputs, truth, method)
    assert any(token >= 50 for token in truth[0].token_ids), "the target never leaves the draft's vocabulary"
    drafted = {
        name: [t for r in records for row in r.rows if row.request_id == name for t in row.drafted]
        for name in ("row0", "row1")
    }
    assert drafted["row1"] == []
    assert drafted["row0"] != []
    assert max(drafted["row0"]) < 50
    assert engine.statistics.accepted > 0


@pytest.mark.parametrize("method", SPECULATIVE)
def test_equal_logits_go_to_the_lowest_id_in_draft_and_target(method):
    lm = tiny_lm("llama", seed=1)
    head = lm.model.get_output_embeddings().weight.data
    head[30:60] = head[:30]  # each of these ids ties exactly with the one 30 below it
    requests = rows((4, 9, 1), limit=30)
    truth = vary(solo(lm, requests))
    tied = sum(margin == 0 for reference in truth for margin in reference.margins)
    assert tied > 60, f"only {tied} ties"
    outputs, _, engine = decode(lm, lm, config(method), requests)
    assert_equal(outputs, truth, method)
    assert not any(30 <= token < 60 for output in outputs for token in output.token_ids)
    if method != "rollback":
        assert engine.statistics.accepted == engine.statistics.drafted > 0


def test_a_draft_beyond_the_targets_vocabulary_is_an_error_that_names_the_row():
    engine = Engine(target("llama"), Scripted(lambda row, k: [VOCAB]), config("specproof"))
    with pytest.raises(DrafterError, match=f"row1: draft {VOCAB} is no id of the target's vocabulary"):
        engine.generate([Request([1, 2], max_new_tokens=4, request_id="row1")])
    engine.drafter = right(2)
    requests = rows((4, 6))
    assert_equal(engine.generate(requests), solo(target("llama"), requests), "after the error")


def test_an_end_id_that_the_head_does_not_have_bans_nothing():
    lm = LM(tiny_lm("llama", seed=1, eos_token_id=VOCAB + 3).model)
    assert lm.eos_ids == frozenset()
    requests = rows((4, 6), min_new_tokens=3)
    outputs, _, _ = decode(lm, None, config("target-only"), requests)
    assert_equal(outputs, solo(lm, requests), "end id outside the head")
