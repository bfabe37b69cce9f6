"""Decoder layers compiled with `torch.compile`: one graph for all layers that are alike, and for any number of tokens.

A graph holds what a layer does row by row (norms, rotary embedding, activation, residual sums), fused; packed products
and attention are operators of our own in it (`opaque.py`). Around the layers the model runs as it is. The layers'
`forward` is replaced for the time of one forward of the model, so nothing has to be given back.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specproof.errors import ConfigError
from specproof.layers import decoder_layers
from specproof.numerics.opaque import Running
from specproof.numerics.packed import linear_shape

MOST_KINDS = 8  # of layers in one model, each compiled once

# Kernels run on one thread: in a decode step they are too short to share, and their bits then depend on no number of
# threads. (Products and attention use all threads, as ever.)
_OPTIONS = {"cpp.threads": 1, "size_asserts": False, "alignment_asserts": False}


class Layers:
    """The layers of one model, compiled when first run. seconds: what the forward that compiled them took."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        kinds = [_kind(layer) for layer in layers]
        if len(set(kinds)) > MOST_KINDS:
            raise ConfigError(
                f"the layers cannot be compiled: they are of {len(set(kinds))} kinds, and at most {MOST_KINDS} are"
            )
        runs = {kind: _compile() for kind in kinds}
        self.forwards = [partial(runs[kind], layer) for kind, layer in zip(kinds, layers, strict=True)]
        self.of_kind = {kind: kinds.index(kind) for kind in runs}  # to the first such layer
        self.is_compiled = False
        self.seconds = 0.0

    @contextmanager
    def running(self, layers: Sequence[nn.Module], running: Running) -> Iterator[None]:
        """Calling the layers runs the compiled ones while the block runs; `running` is told which."""
        started = perf_counter()
        for number, (layer, forward) in enumerate(zip(layers, self.forwards, strict=True)):
            vars(layer)["forward"] = partial(self._forward, running, number, forward)
        try:
            yield
        finally:
            for layer in layers:
                del vars(layer)["forward"]
        if not self.is_compiled:
            self.is_compiled, self.seconds = True, perf_counter() - started

    def _forward(self, running: Running, number: int, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        running.layer = number
        if not self.is_compiled:
            _mark_tokens((args, kwargs))
        return forward(args, kwargs)


_LAYERS: WeakKeyDictionary[nn.ModuleList, dict[bool, Layers]] = WeakKeyDictionary()


def compiled_layers(model: PreTrainedModel, packed: bool) -> tuple[nn.ModuleList, Layers]:
    """The model's layers, and what runs in their place. packed: whether the weights are, as they are now.

    Raises ConfigError if the model has too many kinds of layers.
    """
    layers = decoder_layers(model)
    made = _LAYERS.setdefault(layers, {})
    if packed not in made:
        made[packed] = Layers(layers)
    return layers, made[packed]


def why_not_compiled(model: PreTrainedModel) -> str | None:
    """What stands in the way of compiling, as far as can be told before; None: nothing."""
    if "isolate_recompiles" not in inspect.signature(torch.compile).parameters:
        return f"it takes PyTorch 2.13 or later; this is {torch.__version__}"
    if any(_is_hooked(module) for module in decoder_layers(model).modules()):
        return "its layers have hooks (as device_map sets them)"
    if {parameter.device.type for parameter in model.parameters()} == {"cpu"} and compiler() is None:
        return "there is no C++ compiler; install g++, or name one in CXX"
    return None


def compiler() -> str | None:
    """The C++ compiler that PyTorch finds, with its version; None if it finds none."""
    from torch._inductor.cpp_builder import get_compiler_version_info, get_cpp_compiler

    try:
        path = get_cpp_compiler()
    except (RuntimeError, OSError):
        return None
    return f"{path} {get_compiler_version_info(path)}"


def _compile() -> Callable[..., Any]:
    options: Any = {**_OPTIONS, "guard_filter_fn": _ignore_module}
    return torch.compile(_run, fullgraph=True, isolate_recompiles=True, options=options)


def _run(layer: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Any:
    return type(layer).forward(layer, *args, **kwargs)


def _ignore_module(guards: Sequence[Any]) -> list[bool]:
    """Keep what is checked of the arguments and the process, not of the layer: others of its kind run the same graph."""
    return [not guard.name.startswith("L['layer']") for guard in guards]


def _mark_tokens(values: Any) -> None:
    """Have the compiler take any number of tokens: dimension 1 of whatever goes through the layers with them."""
    if isinstance(values, Tensor):
        if values.ndim > 1:
            torch._dynamo.mark_dynamic(values, 1)
    elif isinstance(values, dict):
        _mark_tokens(tuple(values.values()))
    elif isinstance(values, list | tuple):
        for value in values:
            _mark_tokens(value)


def _kind(layer: nn.Module) -> tuple:
    """What must be equal for two layers to share a graph: all but the values of tensors and the layer's number."""
    return tuple((name, *_about(module)) for name, module in layer.named_modules())


def _about(module: nn.Module) -> tuple:
    shape = linear_shape(module)
    if shape is not None:
        return type(module), shape
    tensors = {**module._parameters, **module._buffers}
    return (
        type(module),
        tuple((name, t if t is None else (t.shape, t.dtype, t.device)) for name, t in tensors.items()),
        tuple((name, _value(v)) for name, v in vars(module).items() if name[0] != "_" and name != "layer_idx"),
    )


def _value(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | None) else id(value)


def _is_hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
