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
from specproof.numerics.opaque import at_most
from specproof.numerics.packed import Product, arrange, is_packed, unpack, why_not
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
            with at_most(block):
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
def test_a_packed_model_still_copies_saves_and_runs(family, tmp_path):
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
    torch.save(lm.model, tmp_path / "model.pt")
    read = torch.load(tmp_path / "model.pt", weights_only=False)
    assert torch.equal(read(ids).logits, plain)
    assert is_packed(lm.model)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_model_that_is_converted_or_loaded_gets_its_weights_back_first(family):
    lm = tiny_lm(family, dtype=torch.float32)
    ids = torch.tensor([[1, 2, 3, 4]])
    weights = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    arrange(lm.model, packed=True)
    lm.model.to(torch.float64)
    assert not is_packed(lm.model)
    assert {p.dtype for p in lm.model.parameters()} == {torch.float64}
    assert all(torch.equal(tensor.double(), weights[name].double()) for name, tensor in lm.model.state_dict().items())
    lm.model.to(torch.float32)
    arrange(lm.model, packed=True)
    halved = {name: tensor / 2 if tensor.is_floating_point() else tensor for name, tensor in weights.items()}
    lm.model.load_state_dict(halved)
    assert not is_packed(lm.model)
    assert all(torch.equal(tensor, halved[name]) for name, tensor in lm.model.state_dict().items())
    with torch.inference_mode():
        plain = lm.model(ids).logits
        arrange(lm.model, packed=True)
        assert torch.allclose(lm.model(ids).logits, plain, atol=1e-3)


def test_an_engine_refuses_a_model_that_was_converted_behind_its_back():
    lm = tiny_lm("llama", dtype=torch.float32)
    engine = Engine(lm)
    engine.generate([Request([5, 6, 7], max_new_tokens=4)])
    lm.model.to(torch.float64)
    with pytest.raises(ConfigError, match="was float32 when the engine was made, and is float64; make another engine"):
        engine.generate([Request([5, 6, 7], max_new_tokens=4)])


@pytest.mark.parametrize("number", [0, 1, 5])
def test_packing_that_is_interrupted_gives_everything_back(number, monkeypatch):
    lm = tiny_lm("llama", dtype=torch.float32)
    modules, weights = dict(lm.model.named_modules()), copy.deepcopy(lm.model.state_dict())
    ids, made = torch.tensor([[1, 2, 3, 4]]), []
    plain = lm.model(ids).logits

    def interrupted(*given):
        made.append(given)
        if len(made) > number:
            raise KeyboardInterrupt
        return Product(*given)

    monkeypatch.setattr("specproof.numerics.packed.Product", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Engine(lm, config=EngineConfig(numerics="fast")).generate([Request([5, 6, 7], max_new_tokens=4)])
    assert not is_packed(lm.model)
    assert all(module is modules[name] for name, module in lm.model.named_modules())
    assert all(torch.equal(tensor, weights[name]) for name, tensor in lm.model.state_dict().items())
    assert torch.equal(lm.model(ids).logits, plain)


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


def test_layers_that_read_the_same_states_are_one_product_and_right_whatever_they_are_given():
    class Layer(nn.Module):
        def __init__(self, others: tuple[nn.Module, ...] = ()) -> None:
            super().__init__()
            made = (nn.Linear(32, 48), nn.Linear(32, 16), nn.Linear(32, 16))
            self.q_proj, self.k_proj, self.v_proj = others or made

    torch.manual_seed(0)
    one, biasless = Layer(), Layer()
    biasless.v_proj = nn.Linear(32, 16, bias=False)
    shared = Layer((one.q_proj, nn.Linear(32, 16), nn.Linear(32, 16)))
    model = nn.ModuleList([one, biasless, shared])
    names = ("q_proj", "k_proj", "v_proj")
    states = [torch.randn(5, 32) for _ in range(3)]
    with torch.inference_mode():
        plain = [[getattr(layer, name)(x) for name in names] for layer in model for x in states]
        arrange(model, packed=True)
        assert len({getattr(one, name).product for name in names}) == 1
        assert len({getattr(biasless, name).product for name in names}) == 3
        assert one.q_proj is shared.q_proj
        assert len({getattr(shared, name).product for name in names}) == 3
        found = [[getattr(layer, name)(x) for name in names] for layer in model for x in states]
        for theirs, ours in zip(plain, found, strict=True):
            assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(theirs, ours, strict=True))
        # Each layer by itself, in any order, again and again, with other states between.
        for number, name in ((0, "q_proj"), (0, "q_proj"), (2, "v_proj"), (1, "k_proj"), (0, "q_proj"), (2, "v_proj")):
            for at in (0, 1, 0):
                assert torch.equal(getattr(one, name)(states[at]), found[at][number]), (name, at)
    unpack(model)
    with torch.inference_mode():
        again = [[getattr(layer, name)(x) for name in names] for layer in model for x in states]
    assert all(torch.equal(a, b) for old, new in zip(plain, again, strict=True) for a, b in zip(old, new, strict=True))
