"""Packed linear layers: the same products, the same bits for any number of rows, and back again without a trace."""

import copy
import gc
import weakref

import pytest
import torch
from families import tiny_lm
from torch import nn

from specproof import Engine, EngineConfig, Request
from specproof.errors import ConfigError
from specproof.lm import LM
from specproof.numerics.packed import arrange, is_packed, unpack, why_not
from specproof.reference import decode_reference

PACKABLE = [dtype for dtype in (torch.float32, torch.bfloat16, torch.float16) if why_not(dtype) is None]
FAMILIES = ["llama", "gpt2", "opt"]


def test_float32_and_bfloat16_can_be_packed_here_and_float64_says_why_not():
    assert PACKABLE[:2] == [torch.float32, torch.bfloat16]
    assert "float64" in (why_not(torch.float64) or "")


@pytest.mark.parametrize("dtype", PACKABLE)
@pytest.mark.parametrize(("outputs", "inputs"), [(48, 32), (61, 40), (128, 1536)])
def test_a_row_has_the_same_bits_among_any_number_of_rows(dtype, outputs, inputs):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(inputs, outputs, dtype=dtype))
    states = torch.randn(70, inputs, dtype=dtype)
    with torch.inference_mode():
        plain = model(states)
        arrange(model, packed=True)
        packed = model(states)
        assert torch.allclose(plain.double(), packed.double(), rtol=2**-7 if dtype.itemsize == 2 else 1e-5, atol=1e-4)
        assert packed.unique().numel() > outputs
        for block in (None, 64):
            arrange(model, packed=True, block=block)
            for count in range(1, 71):
                assert torch.equal(model(states[:count]), packed[:count]), (block, count)
                assert torch.equal(model(states[-count:]), packed[-count:]), (block, count)
        assert model(states[:0]).shape == (0, outputs)
        assert torch.equal(model(states.view(7, 2, 5, inputs)), packed.view(7, 2, 5, outputs))


@pytest.mark.parametrize("family", FAMILIES)
def test_unpacking_gives_back_every_module_parameter_and_bit(family):
    lm = tiny_lm(family, dtype=torch.bfloat16, tie_word_embeddings=True)
    before = copy.deepcopy(lm.model.state_dict())
    modules, parameters = dict(lm.model.named_modules()), dict(lm.model.named_parameters())
    size = sum(p.nbytes for p in parameters.values())
    arrange(lm.model, packed=True)
    assert is_packed(lm.model)
    held = sum(p.nbytes for p in parameters.values())
    assert held < size / 2, f"the unpacked weights are still held: {held} of {size} bytes"
    assert [name for name, module in lm.model.named_modules() if module is not modules[name]]
    lm.unpack()
    assert not is_packed(lm.model)
    assert all(module is modules[name] for name, module in lm.model.named_modules())
    assert all(parameter is parameters[name] for name, parameter in lm.model.named_parameters())
    after = lm.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    head, embedding = lm.model.get_output_embeddings(), lm.model.get_input_embeddings()
    assert head.weight is embedding.weight
    assert not next(lm.model.parameters()).is_inference()


@pytest.mark.parametrize("first", [0, 1])
def test_two_models_that_share_their_layers_are_unpacked_together_whoever_packed_them(first):
    whole = tiny_lm("llama", dtype=torch.float32)
    models = [whole, whole.with_head(range(40))]
    ids = torch.tensor([[1, 2, 3, 4]])
    plain = [lm.plain_forward(ids)[0] for lm in models]
    layers = dict(whole.model.named_modules())
    for lm in (models[first], models[1 - first]):
        arrange(lm.model, packed=True)
    for lm, logits in zip(models, plain, strict=True):
        assert torch.equal(lm.plain_forward(ids)[0], logits)
        assert not any(is_packed(other.model) for other in models)
        assert all(module is layers[name] for name, module in whole.model.named_modules())
        arrange(models[first].model, packed=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_model_still_copies_saves_and_runs_and_refuses_to_be_moved(family):
    lm = tiny_lm(family, dtype=torch.float32)
    ids = torch.tensor([[1, 2, 3, 4]])
    plain = lm.model(ids).logits
    weights = copy.deepcopy(lm.model.state_dict())
    arrange(lm.model, packed=True)
    with torch.inference_mode():
        assert torch.allclose(lm.model(ids).logits, plain, atol=1e-3)
    twin = copy.deepcopy(lm.model)
    assert not is_packed(twin)
    assert torch.equal(twin(ids).logits, plain)
    saved = lm.model.state_dict()
    assert saved.keys() >= weights.keys()
    assert all(torch.equal(saved[name], weights[name]) for name in weights)
    assert LM(lm.model).vocab_size == lm.vocab_size  # another wrapper of a packed model
    with pytest.raises(ConfigError, match="unpack"):
        lm.model.to(torch.float64)
    unpack(lm.model)


def test_the_reference_is_computed_with_the_models_own_weights_whatever_an_engine_left():
    lm = tiny_lm("llama", dtype=torch.float32)
    request = Request([5, 6, 7], max_new_tokens=12)
    before = decode_reference(lm, request)
    one, other = Engine(lm, lm), Engine(lm, config=EngineConfig(numerics="fast"))  # two engines over one model
    for _ in range(2):
        for engine in (one, other):
            assert engine.generate([request])[0].token_ids == before.token_ids
            assert is_packed(lm.model)
        assert decode_reference(lm, request) == before
        assert not is_packed(lm.model)
    assert len(set(before.token_ids)) > 3
    one.generate([request])
    one.close()
    assert not is_packed(lm.model)
    assert other.generate([request])[0].token_ids == before.token_ids


def test_pack_off_leaves_the_model_as_it_is():
    lm = tiny_lm("llama", dtype=torch.float32)
    engine = Engine(lm, config=EngineConfig(pack=False))
    engine.generate([Request([5, 6, 7], max_new_tokens=4)])
    assert not is_packed(lm.model)
    assert not engine.numerics.packed
    with pytest.raises(ConfigError, match="pack"):
        EngineConfig(numerics="invariant", pack=False)


def test_a_packed_model_that_nobody_uses_is_given_up():
    lm = tiny_lm("llama", dtype=torch.float32)
    arrange(lm.model, packed=True)
    gone = weakref.ref(lm.model)
    del lm
    gc.collect()
    assert gone() is None
