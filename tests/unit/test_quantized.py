"""Linear layers of four bits: near the layer that they stand for, each row by itself, everything else shared."""

import pytest
import torch
from bits import wide_lm
from families import tiny_lm
from torch import nn

from specproof.config import EngineConfig
from specproof.errors import ConfigError
from specproof.lm import LM
from specproof.numerics.choose import INVARIANT, choose_numerics
from specproof.numerics.packed import arrange, is_packed, why_not
from specproof.numerics.probe import probe
from specproof.numerics.quantized import GROUP, QuantizedLinear, is_quantized

DTYPES = [torch.float32, torch.bfloat16]
SHAPES = [(48, 32), (61, 40), (128, 1536)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_weights_are_off_by_half_a_step_of_sixteen_at_most(dtype, outputs, inputs):
    torch.manual_seed(0)
    layer = nn.Linear(inputs, outputs, dtype=dtype)
    with torch.inference_mode():
        layer.weight[3] = 0.25  # a group of equal weights
        layer.weight[4, :GROUP] = 100 * layer.weight[4, :GROUP]
        seen = QuantizedLinear(layer)(torch.eye(inputs, dtype=dtype)) - layer.bias  # (in, out): the weights themselves
        off = (seen.T.double() - layer.weight.double()).abs()
        groups = [layer.weight[:, at : at + GROUP].double() for at in range(0, inputs, GROUP)]
        step = torch.cat([(g.amax(1) - g.amin(1))[:, None].expand_as(g) / 15 for g in groups], dim=1)
        rounding = 2**-6 if dtype == torch.bfloat16 else 1e-5
        largest = torch.cat([g.abs().amax(1)[:, None].expand_as(g) for g in groups], dim=1) + layer.bias.abs()[:, None]
        # Where zeros were added to a group, they are part of its range.
        whole = inputs - inputs % GROUP
        assert (off <= 0.5 * step + rounding * (largest + step))[:, :whole].all()
        assert (off[:, whole:] <= largest[:, whole:] / 7).all()
        assert off.max() > 0.1 * step.max(), "nothing was rounded"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_a_row_has_the_same_bits_among_any_number_of_rows(dtype, outputs, inputs):
    torch.manual_seed(0)
    layer = QuantizedLinear(nn.Linear(inputs, outputs, dtype=dtype))
    states = torch.randn(70, inputs, dtype=dtype)
    with torch.inference_mode():
        whole = layer(states)
        assert whole.shape == (70, outputs)
        assert whole.unique().numel() > outputs
        for count in range(1, 71):
            assert torch.equal(layer(states[:count]), whole[:count]), count
            assert torch.equal(layer(states[-count:]), whole[-count:]), count
        assert layer(states[:0]).shape == (0, outputs)
        assert torch.equal(layer(states.view(7, 2, 5, inputs)), whole.view(7, 2, 5, outputs))


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "gemma3_text"])
def test_a_quantized_model_is_near_its_original_which_stays_as_it_was(family):
    lm = tiny_lm(family, dtype=torch.float32, tie_word_embeddings=True)
    before = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    modules = list(lm.model.modules())
    small = lm.quantized()
    assert is_quantized(small.model)
    assert not is_quantized(lm.model)
    assert list(lm.model.modules()) == modules
    assert all(torch.equal(tensor, before[name]) for name, tensor in lm.model.state_dict().items())
    shared = {id(parameter) for parameter in lm.model.parameters()}
    assert all(id(parameter) in shared for parameter in small.model.parameters())
    assert small.model.get_input_embeddings().weight is lm.model.get_input_embeddings().weight
    ids = torch.tensor([[5, 9, 8, 30, 2, 17]])
    truth, found = lm.plain_forward(ids)[0], small.plain_forward(ids)[0]
    off = (found - truth).std() / truth.std()
    assert 1e-4 < off < 0.5, off


def test_a_model_that_is_packed_can_be_quantized():
    lm = tiny_lm("llama", dtype=torch.float32)
    if why_not(torch.float32):
        pytest.skip("nothing can be packed here")
    alone = lm.quantized()
    ids = torch.tensor([[5, 9, 8, 30, 2, 17]])
    before = alone.plain_forward(ids)[0]
    arrange(lm.model, packed=True)
    again = lm.quantized()
    assert not is_packed(lm.model)
    assert torch.equal(again.plain_forward(ids)[0], before)


def test_quantized_numerics_are_invariant_and_the_probe_has_seen_it():
    small = wide_lm("llama", torch.float32).quantized()
    numerics = choose_numerics(small, EngineConfig(batch_size=2))
    assert numerics.invariant, numerics.reason
    assert not numerics.packed


def test_the_probe_catches_a_quantized_product_that_depends_on_its_rows(monkeypatch):
    small = wide_lm("llama", torch.float32).quantized()
    forward = QuantizedLinear.forward

    def careless(self, states):
        return forward(self, states) * (1 + 1e-6 * (states.flatten(0, -2).shape[0] > 5))

    monkeypatch.setattr(QuantizedLinear, "forward", careless)
    found = [f for f in probe(small, "sdpa", "slotted", INVARIANT, 64) if f.op.startswith("linear")]
    assert found
    assert all(any("number of rows" in said for said in finding.depends_on) for finding in found), found


def test_what_cannot_be_quantized_is_named():
    with pytest.raises(ConfigError, match=r"cannot be quantized: .*q_proj is float64; bfloat16, float16 and float32"):
        tiny_lm("llama").quantized()
    lm = tiny_lm("llama", dtype=torch.float32)
    lm.model.get_submodule("model.layers.1.mlp.up_proj").register_forward_hook(lambda *_: None)
    with pytest.raises(
        ConfigError, match=r"layers\.1\.mlp\.up_proj is no ordinary .* \(Linear\), or something is hooked to it; leave"
    ):
        lm.quantized()
    other = LM(tiny_lm("llama", dtype=torch.float32).model)
    with torch.device("meta"):
        other.model.get_submodule("model.layers.0.mlp").up_proj = nn.Linear(32, 48)
    with pytest.raises(ConfigError, match=r"up_proj is on meta, and the kernel is for the CPU"):
        other.quantized()


@pytest.mark.parametrize("bits", [8, 4.0, True, "4", 0])
def test_only_four_bits_are_known(bits):
    with pytest.raises(ConfigError, match=r"draft_bits is .*; it must be 4, or None"):
        EngineConfig(draft_bits=bits)
