"""Where a Transformers model keeps its decoder layers."""

from torch import nn
from transformers import PreTrainedModel

from specproof.errors import UnsupportedModelError


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """Raises UnsupportedModelError if there is no list of as many modules as the config counts layers."""
    return find_layers(model)[2]


def find_layers(model: PreTrainedModel) -> tuple[nn.Module, str, nn.ModuleList]:
    """The list, behind the module that has it and its name there. Raises as `decoder_layers` does."""
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    for module in model.modules():
        for name, child in module._modules.items():
            if isinstance(child, nn.ModuleList) and len(child) == count:
                return module, name, child
    raise UnsupportedModelError(f"{type(model).__name__} has no list of {count} layers")
