"""Linear layers with weights of four bits, for a draft model.

A forward of few rows takes as long as reading its weights does. What such a model drafts is judged by the target like
any draft, so nothing of the rounding reaches the output.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from specproof.errors import ConfigError
from specproof.numerics.linear import Substitute, bias_of, dense_weight, is_plain, linear_shape

BITS = 4
GROUP = 32  # weights of one output that share a scale
OUTPUTS = 16  # that the kernel computes together

# None where this PyTorch has no such operators.
_PACK: Any = getattr(torch.ops.aten, "_convert_weight_to_int4pack_for_cpu", None)
_PRODUCT: Any = getattr(torch.ops.aten, "_weight_int4pack_mm_for_cpu", None)


class QuantizedLinear(Substitute):
    """Computes each row by itself: its bits do not depend on the others, nor on their number.

    weight: (out, in / 2) uint8, in the kernel's order. scales: (in / GROUP, out, 2), of each group the scale and the
    middle. Zeros are added to make whole groups of inputs and of OUTPUTS.
    """

    weight: Tensor
    scales: Tensor

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        weight = dense_weight(original)
        outputs, inputs = weight.shape
        self.shape = outputs, inputs, bias_of(original) is not None
        self.added = -inputs % GROUP
        whole, scales = _rounded(pad(weight, (0, self.added, 0, -outputs % OUTPUTS)))
        self.register_buffer("weight", _PACK(whole, 1))
        self.register_buffer("scales", scales)
        self.register_parameter("bias", bias_of(original))  # type: ignore[arg-type]

    def forward(self, states: Tensor) -> Tensor:
        """states: (..., in) -> (..., out)."""
        outputs, inputs, _ = self.shape
        rows = states.reshape(-1, inputs)
        rows = pad(rows, (0, self.added)) if self.added else rows
        out = _PRODUCT(rows, self.weight, GROUP, self.scales).narrow(1, 0, outputs)
        if self.bias is not None:
            out = out + self.bias
        return out.view(*states.shape[:-1], outputs)


def quantized(model: nn.Module) -> nn.Module:
    """The same model with quantized linear layers. All other tensors are shared.

    Raises ConfigError, naming the layer, for what cannot be quantized.
    """
    tensors = (*model.parameters(), *model.buffers())
    other = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    made: dict[int, QuantizedLinear] = {}
    for name, module in list(other.named_modules(remove_duplicate=False)):
        if linear_shape(module) is None:
            continue
        if (why := _why_not(module)) is not None:
            raise ConfigError(f"the draft cannot be quantized: {name} {why}; leave draft_bits out")
        if id(module) not in made:
            made[id(module)] = QuantizedLinear(module)
        parent, _, child = name.rpartition(".")
        other.get_submodule(parent)._modules[child] = made[id(module)]
    return other


def is_quantized(model: nn.Module) -> bool:
    """Whether all its linear layers are."""
    linear = [module for module in model.modules() if linear_shape(module) is not None]
    return bool(linear) and all(isinstance(module, QuantizedLinear) for module in linear)


def _why_not(module: nn.Module) -> str | None:
    if not is_plain(module):
        return f"is no ordinary linear layer ({type(module).__name__}), or something is hooked to it"
    weight = module.get_parameter("weight")
    if weight.device.type != "cpu":
        return f"is on {weight.device}, and the kernel is for the CPU"
    if weight.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"is {str(weight.dtype).removeprefix('torch.')}; bfloat16, float16 and float32 can be"
    if _PACK is None or _PRODUCT is None:
        return f"needs operators that PyTorch {torch.__version__} does not have; 2.13 has them"
    return None


def _rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(out, in) -> whole numbers of 0 to 15, int32, and scales: weight ~ (whole - 8) * scale + middle."""
    most = 2**BITS - 1
    groups = weight.float().unflatten(1, (-1, GROUP))
    low, high = groups.aminmax(dim=2, keepdim=True)
    scale = ((high - low) / most).clamp(min=1e-8).to(weight.dtype)
    middle = (low + 8 * scale.float()).to(weight.dtype)
    whole = ((groups - middle.float()) / scale.float()).round().add(8).clamp(0, most)
    scales = torch.stack([scale, middle], dim=-1)[:, :, 0].transpose(0, 1).contiguous()  # (in / GROUP, out, 2)
    return whole.flatten(1).to(torch.int32), scales
