"""How many drafts are asked for and verified changes nothing of what is decoded, however badly it is decided."""

import copy
import random
from functools import cache

import pytest
import torch
from helpers import DRAFTERS, REQUESTS, assert_equal, decode, drafter, noisy_copy, references, target
from priced import decode_priced
from probes import config, rows, solo

from specproof import Engine, EngineConfig
from specproof.assembly import as_drafter
from specproof.audit.auditor import audit_engine
from specproof.config import METHODS
from specproof.drafters import Cascade, ModelDrafter, PromptLookup, Suffix
from specproof.drafters.drafter import NextDraft
from specproof.drafters.proposal import Proposal
from specproof.errors import ConfigError
from specproof.lm import LM
from specproof.pace import Outlook
from specproof.step import StepRecord

SPECULATIVE = [name for name in METHODS if METHODS[name].drafts]
NEW = ("suffix", "cascade", "cascade-lookup", "short-head")


class Random:
    """An adversary: any part of any proposal, any rows in any round, whole steps without drafts."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.decisions = 0

    def asks(self, outlook: Outlook) -> bool:
        self.decisions += 1
        return self._random.random() < 0.8

    def go_on(self, nexts: list[NextDraft]) -> list[bool]:
        self.decisions += 1
        return [self._random.random() < 0.7 for _ in nexts]

    def cut(self, proposal: Proposal) -> Proposal:
        self.decisions += 1
        return proposal.cut({row: self._random.randint(0, count) for row, count in proposal.counts.items()}, 0.0, 0.0)

    def __call__(self, record: StepRecord) -> None:
        pass


@cache
def short_headed(family: str) -> LM:
    return noisy_copy(family).with_head(range(3, 40))


def any_drafter(name: str, family: str, method: str) -> object:
    options = config(method)
    match name:
        case "suffix":
            return Suffix([references(family)[0].token_ids])
        case "cascade":
            return Cascade(Suffix(size=2), model_drafter(noisy_copy(family), family, options))
        case "cascade-lookup":
            return Cascade(PromptLookup(min_ngram=2), model_drafter(noisy_copy(family), family, options))
        case "short-head":
            return short_headed(family)
    return drafter(name, family)


def model_drafter(lm: LM, family: str, options: EngineConfig) -> ModelDrafter:
    made = as_drafter(lm, target(family), None, None, options)
    assert isinstance(made, ModelDrafter)
    return made


@pytest.mark.filterwarnings("ignore:none of .* draft tokens was right")
@pytest.mark.parametrize("method", SPECULATIVE)
@pytest.mark.parametrize("drafts", [*NEW, *(name for name in DRAFTERS if name != "none")])
def test_random_plans_give_equal_output(method, drafts):
    options = EngineConfig(method, batch_size=3, window=4, num_draft_tokens=4, prefill_chunk=8)
    for seed in range(2):
        pace = Random(seed)
        engine = Engine(target("qwen3"), any_drafter(drafts, "qwen3", method), options, pace=pace)  # type: ignore[arg-type]
        lengths = []
        engine.observers.append(lambda record, found=lengths: found.extend(len(row.drafted) for row in record.rows))
        assert_equal(engine.generate(REQUESTS), references("qwen3"), (method, drafts, seed))
        assert pace.decisions > 20
        assert len(set(lengths)) > 2, "the plans do not vary"


@pytest.mark.filterwarnings("ignore:none of .* draft tokens was right")
@pytest.mark.parametrize("method", SPECULATIVE)
@pytest.mark.parametrize("drafts", NEW)
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt_neox"])
def test_new_drafters_give_equal_output_with_a_fixed_k_and_adaptively(family, method, drafts):
    for adaptive in (False, True):
        options = EngineConfig(method, batch_size=3, window=4, num_draft_tokens=4, prefill_chunk=8, adaptive=adaptive)
        outputs, _, engine = decode(target(family), any_drafter(drafts, family, method), options, REQUESTS)
        assert_equal(outputs, references(family), (family, method, drafts, adaptive))
        assert adaptive or engine.statistics.drafted > 10


@pytest.mark.parametrize("drafts", ["prompt-lookup", "scripted", "noisy-copy", *NEW])
@pytest.mark.parametrize("family", ["qwen2", "mistral"])
def test_adaptive_plans_give_equal_output_where_they_draft_much_and_where_they_draft_nothing(family, drafts):
    drafted = []
    for price in (lambda n: 0.05 + 0.001 * n, lambda n: 0.01 * n):
        made = any_drafter(drafts, family, "specproof")
        outputs, records, _ = decode_priced(
            target(family), made, REQUESTS, price, batch_size=3, num_draft_tokens=8, prefill_chunk=8, adaptive=True
        )
        assert_equal(outputs, references(family), (family, drafts))
        drafted.append(sum(len(row.drafted) for record in records for row in record.rows))
    assert drafted[0] >= drafted[1]


@pytest.mark.parametrize("method", ["specproof", "eqspec"])
@pytest.mark.parametrize("drafts", ["cascade", "short-head", "noisy-copy"])
def test_every_invariant_holds_at_level_full_under_random_plans(method, drafts):
    """The draft's KV among them: committed tokens only, though rows drop out of rounds and of whole steps."""
    requests = rows((3, 8, 5, 21), limit=24)
    made = any_drafter(drafts, "llama", method)
    engine = Engine(target("llama"), made, config(method, batch_size=3), pace=Random(3))  # type: ignore[arg-type]
    found = audit_engine(engine, requests, "full")
    assert found.clean, (found.crash, found.first)
    assert_equal(found.outputs, solo(target("llama"), requests), (method, drafts))
    assert engine.statistics.accepted > 5


def test_a_cascade_asks_its_model_for_the_rows_in_which_nothing_occurred_before():
    asked = []

    class Told(ModelDrafter):
        def propose(self, rows, max_tokens):
            asked.append({row.request_id for row in rows})
            return super().propose(rows, max_tokens)

    made = model_drafter(noisy_copy("llama"), "llama", config("specproof"))
    lookup = PromptLookup(min_ngram=2)
    engine = Engine(target("llama"), Cascade(lookup, Told(made.lm, made.layout, 61)), EngineConfig(batch_size=3))
    sources = {"both": 0}

    def check(record):
        names = {row.request_id for row in record.rows if row.drafted}
        sources["both"] += bool(names & asked[-1]) and bool(names - asked[-1]) if asked else 0

    engine.observers.append(check)
    assert_equal(engine.generate(REQUESTS), references("llama"), "cascade")
    assert sources["both"] > 0, "no step in which both drafted"
    assert engine.drafter.model.layout.nbytes == 0  # type: ignore[union-attr]


def test_a_cascade_takes_any_model_and_an_engine_makes_a_drafter_of_it():
    engine = Engine(
        target("llama"), Cascade(PromptLookup(min_ngram=2), noisy_copy("llama")), EngineConfig(batch_size=3)
    )
    assert_equal(engine.generate(REQUESTS), references("llama"), "cascade")
    assert isinstance(engine.drafter, Cascade)
    assert isinstance(engine.drafter.model, ModelDrafter)
    with pytest.raises(ConfigError, match="is no model"):
        Engine(target("llama"), Cascade(PromptLookup(), 3))


def test_a_head_cannot_be_cut_to_more_ids_than_it_has():
    with pytest.raises(ConfigError, match="draft_head is 62, and the draft's head has 61 ids"):
        Engine(target("llama"), noisy_copy("llama"), EngineConfig(draft_head=62))


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "gpt_neox", "gemma3_text", "glm4"])
def test_a_short_head_chooses_what_the_whole_head_would_among_its_ids(family):
    import torch

    lm, ids = target(family), [0, 3, 4, 17, 18, 19, 40, 60]
    short = lm.with_head(ids)
    tokens = torch.tensor([[5, 9, 8, 30, 2]])
    whole, cut = lm.plain_forward(tokens)[0], short.plain_forward(tokens)[0]
    assert torch.equal(cut, whole[..., ids]) or torch.allclose(cut, whole[..., ids], atol=1e-12)
    assert lm.plain_forward(tokens)[0].shape[-1] == 61, "the model itself was cut"
    assert short.head_ids == tuple(ids)
    assert lm.head_ids is None


def test_a_short_head_drafts_its_ids_only_and_keeps_those_that_end_a_text():
    from specproof.assembly import frequent_ids

    lm = target("llama")
    assert frequent_ids(lm, None, 5) == [0, 1, 2, 3, 4]
    outputs, records, engine = decode(lm, noisy_copy("llama"), EngineConfig(batch_size=3, draft_head=30), REQUESTS)
    assert_equal(outputs, references("llama"), "cut to 30 ids")
    drafted = {token for record in records for row in record.rows for token in row.drafted}
    assert len(drafted) > 5
    assert max(drafted) < 30
    assert engine.statistics.accepted > 0


@pytest.mark.filterwarnings("ignore:none of .* draft tokens was right")
def test_a_draft_model_whose_logits_are_no_numbers_only_costs_time():
    for value in (torch.nan, torch.inf):
        drafts = LM(copy.deepcopy(noisy_copy("llama").model))
        with torch.no_grad():
            drafts.model.get_output_embeddings().weight[7] = value
        outputs, records, _ = decode_priced(
            target("llama"), drafts, REQUESTS, lambda n: 0.05 + 0.001 * n, batch_size=3, prefill_chunk=8, adaptive=True
        )
        assert_equal(outputs, references("llama"), f"a draft with {value}")
        assert any(row.drafted for record in records for row in record.rows)
