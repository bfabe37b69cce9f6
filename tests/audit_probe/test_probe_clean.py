"""Loops that are right give no alarm, with prompts known or not."""

import pytest
import torch
from families import tiny_lm
from probe_subjects import PROMPTS, draft, noisy, target

from specproof.audit.probe import Probe
from specproof.baselines import MaskedHoles, rounds
from specproof.errors import ConfigError
from specproof.reference import decode_reference
from specproof.request import Request

FAMILIES = ("llama", "opt", "gpt2", "mistral", "gemma3_text", "gpt_neox", "qwen2")
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
KNOWN = pytest.mark.parametrize("known", [True, False], ids=["prompts known", "prompts unknown"])
ROWS = [list(prompt) for prompt in PROMPTS[:4]]


def generate(model, prompts, **options):
    ids, mask = rounds.pad_left(prompts, 0, model.device)
    defaults = {"max_new_tokens": 12, "pad_token_id": 0, "do_sample": False}
    return model.generate(ids, attention_mask=mask.long(), **{**defaults, **options})


def assert_clean(probe: Probe, forwards: int = 2) -> None:
    report = probe.report()
    assert report.first is None, str(report)
    assert report.unknown == 0
    assert report.forwards >= forwards


@KNOWN
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_generate_on_a_left_padded_batch(family, dtype, known):
    model = tiny_lm(family, seed=1, dtype=dtype).model
    with Probe(model, ROWS if known else None) as probe:
        generate(model, ROWS)
    assert_clean(probe, 12)


@KNOWN
@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference(family, known):
    lm = tiny_lm(family, seed=1)
    with Probe(lm.model, ROWS[1:2] if known else None) as probe:
        decode_reference(lm, Request(ROWS[1], max_new_tokens=12))
    assert_clean(probe, 13)


@KNOWN
@pytest.mark.parametrize("family", FAMILIES)
def test_assisted_generation_and_prompt_lookup_at_batch_1(family, known):
    lm = tiny_lm(family, seed=1)
    for options in ({"assistant_model": noisy(lm.model)}, {"prompt_lookup_num_tokens": 3}):
        with Probe(lm.model, ROWS[3:] if known else None) as probe:
            generate(lm.model, ROWS[3:], **options)
        assert_clean(probe)


@KNOWN
@pytest.mark.parametrize("family", ["llama", "opt"])
def test_masked_holes(family, known):
    with Probe(target(family).model, ROWS if known else None, max_new_tokens=32) as probe:
        MaskedHoles().generate(target(family).model, draft(family), ROWS)
    assert_clean(probe)


@KNOWN
@pytest.mark.parametrize("options", [{"cache_implementation": "static"}, {"use_cache": False}], ids=str)
def test_generate_with_a_static_cache_or_none(options, known):
    model = target("llama").model
    with Probe(model, ROWS if known else None) as probe:
        generate(model, ROWS, **options)
    assert_clean(probe, 12)


def test_generate_with_eager_attention_and_its_float_masks():
    model = tiny_lm("llama", seed=1, dtype=torch.float32).model
    model.set_attn_implementation("eager")
    with Probe(model, ROWS) as probe:
        generate(model, ROWS)
    assert_clean(probe, 12)


@KNOWN
def test_rows_that_end_early_and_are_fed_padding_from_then_on(known):
    model = tiny_lm("llama", seed=1).model
    third = generate(model, ROWS)[0, -10].item()
    model.generation_config.eos_token_id = third
    with Probe(model, ROWS if known else None) as probe:
        out = generate(model, ROWS)
    assert (out[0, -5:] == 0).all(), "row 0 should have ended"
    assert_clean(probe)


@pytest.mark.parametrize("options", [{"do_sample": True}, {"num_beams": 3}, {"repetition_penalty": 1.5}], ids=str)
def test_sampling_beams_and_processors_when_told_that_the_loop_is_not_greedy(options):
    model = target("llama").model
    torch.manual_seed(0)
    with Probe(model, greedy=False) as probe:
        generate(model, ROWS, **options)
    assert_clean(probe, 12)


def test_two_batches_one_after_another_without_prompts():
    model = target("llama").model
    with Probe(model) as probe:
        generate(model, ROWS)
        generate(model, ROWS[::-1][:2])
    assert_clean(probe, 24)


def test_the_model_is_left_without_hooks_even_after_an_error():
    model = target("llama").model
    with pytest.raises(ValueError, match="stop here"), Probe(model):
        raise ValueError("stop here")
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_output_and_logits_are_those_of_the_model_without_a_probe():
    model = target("opt").model
    plain = generate(model, ROWS)
    with Probe(model):
        assert torch.equal(generate(model, ROWS), plain)


def test_what_was_recorded_tells_what_the_loop_gave_and_what_the_model_made_up():
    for family, implied in (("llama", [2, 3]), ("opt", [0, 1])):
        model = target(family).model
        with Probe(model) as probe:
            rounds.forward(model, torch.tensor([[0, 0, 5, 6]]), torch.tensor([[0, 0, 1, 1]]), None, None)
        (seen,) = probe.seen
        assert (seen.gave_positions, seen.gave_mask, seen.cached) == (False, True, 0)
        assert seen.position_ids is not None
        assert seen.position_ids[0, 2:].tolist() == implied


def test_kv_that_no_watched_forward_wrote_is_said_to_be_unknown_and_not_judged():
    model = target("llama").model
    _, cache = rounds.forward(model, torch.tensor([[5, 6, 7]]), None, None, None)
    with Probe(model) as probe:
        rounds.forward(model, torch.tensor([[8]]), None, None, cache)
    assert probe.report().first is None
    assert probe.report().unknown == 1
    assert "not judged" in str(probe.report())


def test_outputs_need_prompts():
    with Probe(target("llama").model) as probe:
        pass
    with pytest.raises(ConfigError, match="prompts"):
        probe.report([[1]])
