"""Where a Transformers model keeps its decoder layers."""

from weakref import WeakKeyDictionary, ref

from torch import nn
from transformers import PreTrainedModel

from specproof.errors import UnsupportedModelError


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """Raises UnsupportedModelError if there is no list of as many modules as the config counts layers."""
    return _find(model)[2]


def layers_place(model: PreTrainedModel) -> tuple[nn.Module, str]:
    """The module that has the list, and the list's name in it; looked for once. Raises as `decoder_layers` does."""
    known = _PLACES.get(model)
    holder = None if known is None else known[0]()
    if known is not None and holder is not None:
        return holder, known[1]
    holder, name, _ = _find(model)
    _PLACES[model] = ref(holder), name
    return holder, name


_PLACES: WeakKeyDictionary[PreTrainedModel, tuple[ref[nn.Module], str]] = WeakKeyDictionary()


def _find(model: PreTrainedModel) -> tuple[nn.Module, str, nn.ModuleList]:
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    for module in model.modules():
        for name, child in module._modules.items():
            if isinstance(child, nn.ModuleList) and len(child) == count:
                return module, name, child
    raise UnsupportedModelError(f"{type(model).__name__} has no list of {count} layers")
