"""A causal model as one function, and loading it."""

import copy
import warnings

import pytest
import torch
from families import FAMILIES, VOCAB, tiny_lm

from specproof.errors import ConfigError, UnsupportedModelError
from specproof.kv import LAYOUTS
from specproof.kv.layout import Feed
from specproof.lm import KNOWN_FAMILIES, LM, load_model

IDS = [5, 9, 8, 7, 30, 2]


def our_logits(lm, layout: str = "slotted", attention: str = "sdpa") -> torch.Tensor:
    rows = LAYOUTS[layout](lm, attention)
    rows.admit("row", len(IDS))
    return rows.forward([Feed("row", 0, IDS, 0, len(IDS))])


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal but for rounding: products depend on how their operands lie in memory, and loaded weights lie elsewhere."""
    return bool((one - other).abs().max() < 1e-12)


def plain_logits(lm) -> torch.Tensor:
    return lm.plain_forward(torch.tensor([IDS]))[0][0]


@pytest.fixture
def folder(tmp_path):
    """A tiny model as save_pretrained writes it."""
    tiny_lm("llama", seed=1).model.save_pretrained(tmp_path)
    return tmp_path


# --- forward --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_our_forward_gives_the_models_own_logits(family, layout, attention):
    lm = tiny_lm(family, seed=1)
    ours, plain = our_logits(lm, layout, attention), plain_logits(lm)
    assert plain.argmax(-1).unique().numel() > 1, "the model repeats one token"
    assert (ours - plain).abs().max() < 1e-10, f"{family}, {layout}, {attention}"


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_the_model_is_left_as_it_was(implementation):
    lm = tiny_lm("gemma3_text", seed=1)
    lm.model.set_attn_implementation(implementation)
    weights = copy.deepcopy(lm.model.state_dict())
    config = lm.model.config.to_dict()
    before = plain_logits(lm)

    our_logits(lm)

    assert lm.model.config._attn_implementation == implementation
    assert lm.model.config.to_dict() == config
    assert all(torch.equal(tensor, weights[name]) for name, tensor in lm.model.state_dict().items())
    assert same(plain_logits(lm), before)


def test_the_model_is_left_as_it_was_when_a_forward_fails():
    lm = tiny_lm("llama", seed=1)
    before = lm.model.config._attn_implementation
    rows = LAYOUTS["slotted"](lm, "sdpa")
    rows.admit("row", 1)
    with pytest.raises(IndexError):
        rows.forward([Feed("row", 0, [VOCAB], 0, 1)])
    assert lm.model.config._attn_implementation == before


def test_logits_are_computed_for_the_wanted_tokens_only():
    lm = tiny_lm("llama", seed=1)
    seen = []
    lm.model.get_output_embeddings().register_forward_hook(
        lambda module, inputs, output: seen.append(inputs[0].shape[:-1])
    )
    rows = LAYOUTS["slotted"](lm, "sdpa")
    for name in ("a", "b", "c"):
        rows.admit(name, 4)
    logits = rows.forward([Feed("a", 0, [1, 2, 3, 4]), Feed("b", 0, [5, 6, 7], 0, 2), Feed("c", 0, [8], 0, 1)])
    assert seen == [(1, 3)]
    assert logits.shape == (3, VOCAB)


# --- what is read from a model --------------------------------------------------------------------------------------


def test_a_window_is_found_in_every_layer_that_has_one():
    windows = {family: tiny_lm(family).windows for family in FAMILIES}
    assert windows["mistral"] == (7, 7)
    assert windows["phi3"] == (7, 7)
    assert windows["gemma3_text"] == (7, None)
    assert all(
        found == (None, None) for family, found in windows.items() if family not in ("mistral", "phi3", "gemma3_text")
    )
    assert tiny_lm("mistral", sliding_window=None).windows == (None, None)
    assert tiny_lm("qwen2", use_sliding_window=True, sliding_window=9, max_window_layers=1).windows == (None, 9)


def test_the_eos_ids_are_the_set_of_the_generation_config():
    def eos(generation, config=None) -> frozenset[int]:
        model = tiny_lm("llama").model
        model.config.eos_token_id, model.generation_config.eos_token_id = config, generation
        return LM(model).eos_ids

    assert eos([3, 9]) == {3, 9}
    assert eos(4, config=7) == {4}, "the generation config goes first"
    assert eos(None, config=7) == {7}
    assert eos(None) == set()
    assert eos(0) == {0}
    assert eos([5, VOCAB, -1]) == {5}, "ids that the head does not have cannot be chosen"


def test_vocabulary_context_and_family_are_the_models():
    lm = tiny_lm("gpt2", n_positions=33)
    assert (lm.vocab_size, lm.context, lm.family) == (VOCAB, 33, "gpt2")
    assert (lm.dtype_name, lm.device.type) == ("float64", "cpu")
    assert not lm.model.training


def test_every_family_in_the_tests_is_known_and_every_known_one_is_tested():
    assert set(FAMILIES) == KNOWN_FAMILIES


def test_settings_that_would_change_the_choice_are_named_in_a_warning():
    model = tiny_lm("llama").model
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LM(model)
    model.generation_config.repetition_penalty = 1.3
    with pytest.warns(UserWarning, match=r"repetition_penalty=1\.3"):
        LM(model)


# --- loading --------------------------------------------------------------------------------------------------------


def test_a_folder_is_loaded_in_the_dtype_asked_for(folder):
    lm = load_model(folder, dtype="float64")
    assert same(plain_logits(lm), plain_logits(tiny_lm("llama", seed=1)))
    assert not same(plain_logits(lm), plain_logits(tiny_lm("llama", seed=2)))
    assert load_model(str(folder), dtype="bfloat16").dtype_name == "bfloat16"
    assert load_model(folder).dtype_name == "float32"
    assert load_model(folder, dtype="auto").dtype_name == "float64", "as the weights were saved"


def test_pickled_weights_are_refused_unless_allowed(folder):
    weights = tiny_lm("llama", seed=1).model.state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match="cannot load"):
        load_model(folder, dtype="float64")
    lm = load_model(folder, dtype="float64", allow_pickle=True)
    assert same(plain_logits(lm), plain_logits(tiny_lm("llama", seed=1)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float8"}, "dtype is 'float8'; known: float32, bfloat16"),
        ({"device": "nowhere"}, "device 'nowhere' cannot be used"),
        pytest.param(
            {"device": "cuda:77"},
            "device 'cuda:77' cannot be used",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="has CUDA"),
        ),
    ],
)
def test_an_option_that_cannot_work_is_refused_by_name(folder, options, message):
    with pytest.raises(ConfigError, match=message):
        load_model(folder, **options)


def test_a_folder_that_holds_no_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no config\.json"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UnsupportedModelError, match="cannot load"):
        load_model(tmp_path)
