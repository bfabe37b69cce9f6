"""What a linear layer is: PyTorch's own, Transformers' Conv1D, or what stands in for one."""

from torch import Tensor, nn


class Substitute(nn.Module):
    """Stands in for a linear layer.

    shape: (out, in, has a bias) of the product that it calls, which may be that of several layers.
    """

    shape: tuple[int, int, bool]


def linear_shape(module: nn.Module) -> tuple[int, int, bool] | None:
    """(out, in, has a bias) of the product that a linear layer computes; None for any other module."""
    if isinstance(module, Substitute):
        return module.shape
    if isinstance(module, nn.Linear):
        return module.out_features, module.in_features, module.bias is not None
    if is_conv1d(module):
        inputs, outputs = module.get_parameter("weight").shape
        return outputs, inputs, True
    return None


def is_plain(module: nn.Module) -> bool:
    """An ordinary linear layer with nothing hooked to it."""
    if type(module) is not nn.Linear and not is_conv1d(module):
        return False
    return not (module._forward_hooks or module._forward_pre_hooks or hasattr(module, "_hf_hook"))


def dense_weight(module: nn.Module) -> Tensor:
    """The weight of an ordinary layer, (out, in)."""
    weight = module.get_parameter("weight").data
    return weight.t().contiguous() if is_conv1d(module) else weight


def bias_of(module: nn.Module) -> Tensor | None:
    return module._parameters["bias"]


def is_conv1d(module: nn.Module) -> bool:
    """GPT-2's linear layer, Transformers' own, whose weight is (in, out)."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")
