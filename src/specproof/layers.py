"""Where a Transformers model keeps its decoder layers."""

from torch import nn
from transformers import PreTrainedModel

from specproof.errors import UnsupportedModelError


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """Raises UnsupportedModelError if there is no list of as many modules as the config counts layers."""
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise UnsupportedModelError(f"{type(model).__name__} has no list of {count} layers")
