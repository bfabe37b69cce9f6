"""Where a Transformers model keeps its decoder layers."""

from torch import nn
from transformers import PreTrainedModel

from specproof.errors import UnsupportedModelError


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """Raises UnsupportedModelError if there is no list of as many modules as the config counts layers."""
    holder, name = layers_holder(model)
    layers = holder._modules[name]
    assert isinstance(layers, nn.ModuleList)
    return layers


def layers_holder(model: PreTrainedModel) -> tuple[nn.Module, str]:
    """The module that has the list, and the list's name in it. Raises as `decoder_layers` does."""
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    for module in model.modules():
        for name, child in module._modules.items():
            if isinstance(child, nn.ModuleList) and len(child) == count:
                return module, name
    raise UnsupportedModelError(f"{type(model).__name__} has no list of {count} layers")
