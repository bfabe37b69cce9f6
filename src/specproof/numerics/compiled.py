"""Decoder layers compiled with `torch.compile`: one graph for all layers that are alike, and for any number of tokens.

A graph holds what a layer does row by row (norms, rotary embedding, activation, residual sums), fused; packed products
and attention are operators of our own in it (`opaque.py`). Around the layers the model runs as it is. The layers'
`forward` is replaced for the time of one forward of the model, so nothing has to be given back.
"""

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten
from transformers import PreTrainedModel

from specproof.errors import ConfigError
from specproof.layers import decoder_layers
from specproof.numerics.artifact import compiler, load, save
from specproof.numerics.opaque import Running
from specproof.numerics.packed import linear_shape

MOST_KINDS = 8  # of layers in one model, each compiled once

# Kernels run on one thread: in a decode step they are too short to share, and their bits then depend on no number of
# threads. (Products and attention use all threads, as ever.)
_OPTIONS = {"cpp.threads": 1, "size_asserts": False, "alignment_asserts": False}


class Layers:
    """The layers of one model; the first forward compiles them. seconds: what that forward took."""

    def __init__(self, layers: nn.ModuleList) -> None:
        self._kinds = [_kind(layer) for layer in layers]
        if len(set(self._kinds)) > MOST_KINDS:
            raise ConfigError(
                f"the layers cannot be compiled: they are of {len(set(self._kinds))} kinds, and at most {MOST_KINDS} are"
            )
        self._code: dict[tuple, Callable[..., Any]] = {}
        self.seconds: float | None = None

    @contextmanager
    def running(self, layers: nn.ModuleList, running: Running) -> Iterator[None]:
        """Calling the layers runs the compiled ones while the block runs; `running` is told which."""
        started = perf_counter()
        for number, layer in enumerate(layers):
            vars(layer)["forward"] = partial(self._forward, running, number, layer)
        try:
            yield
        finally:
            for layer in layers:
                del vars(layer)["forward"]
        if self.seconds is None:
            self.seconds = perf_counter() - started

    @property
    def firsts(self) -> list[int]:
        """The number of the first layer of each kind."""
        return [self._kinds.index(kind) for kind in dict.fromkeys(self._kinds)]

    def run(self, number: int, layer: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Any:
        """One layer; the operators in it work on what is running (see `opaque.during`)."""
        kind = self._kinds[number]
        if kind not in self._code:
            self._code[kind] = _compile(layer, args, kwargs)
        return self._code[kind](layer, args, kwargs)

    def _forward(self, running: Running, number: int, layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        running.layer = number
        return self.run(number, layer, args, kwargs)


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
    if not hasattr(torch.compile(_run, fullgraph=True), "aot_compile"):
        return f"PyTorch {torch.__version__} cannot compile ahead of time; 2.13 can"
    if any(_is_hooked(module) for module in decoder_layers(model).modules()):
        return "its layers have hooks (as device_map sets them)"
    if {parameter.device.type for parameter in model.parameters()} == {"cpu"} and compiler() is None:
        return "there is no C++ compiler; install g++, or name one in CXX"
    return None


def _compile(layer: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Callable[[nn.Module, tuple, dict], Any]:
    """A function of any layer of the same kind and any number of tokens from 2 on. It can never be compiled again."""
    about = {"layer": _fingerprint(layer), "arguments": _shapes((args, kwargs))}
    made = load(about, vars(sys.modules[__name__]))
    if made is None:
        _mark_tokens((args, kwargs))
        options: Any = {**_OPTIONS, "guard_filter_fn": lambda guards: [False] * len(guards)}
        compiled: Any = torch.compile(_run, fullgraph=True, options=options)
        made = compiled.aot_compile(((layer, args, kwargs), {}))
        save(about, made)
    made.disable_guard_check()
    return made


def _run(layer: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Any:
    return type(layer).forward(layer, *args, **kwargs)


def _mark_tokens(values: Any) -> None:
    """Have the compiler take any number of tokens: dimension 1 of whatever goes through the layers with them."""
    for value in tree_flatten(values)[0]:
        if isinstance(value, Tensor) and value.ndim > 1:
            torch._dynamo.mark_dynamic(value, 1)


def _kind(layer: nn.Module) -> tuple:
    """What must be equal for two layers to share a graph: all but the values of tensors and the layer's number."""
    return tuple((name, *_about(module, id)) for name, module in layer.named_modules())


def _fingerprint(layer: nn.Module) -> str:
    """The same, for another process: objects by their type, the config by its text, code by its source."""
    named = list(layer.named_modules())
    sources = {inspect.getsource(sys.modules[type(module).__module__]) for _, module in named}
    configs = {str(value) for _, module in named for value in vars(module).values() if hasattr(value, "to_json_string")}
    kind = tuple((name, *_about(module, lambda value: type(value).__qualname__)) for name, module in named)
    return repr((kind, sorted(configs), sorted(hashlib.sha256(source.encode()).hexdigest() for source in sources)))


def _about(module: nn.Module, other: Callable[[Any], Any]) -> tuple:
    """other: what to tell of a value that is no plain one."""
    shape = linear_shape(module)
    if shape is not None:
        return type(module), shape
    tensors = {**module._parameters, **module._buffers}
    values = {name: value for name, value in vars(module).items() if name[0] != "_" and name != "layer_idx"}
    return (
        type(module),
        tuple((name, t if t is None else (t.shape, t.dtype, t.device)) for name, t in tensors.items()),
        tuple((n, v if isinstance(v, bool | int | float | str | None) else other(v)) for n, v in values.items()),
    )


def _shapes(values: Any) -> str:
    """Of arguments: their structure, and the shapes of tensors but for the tokens'."""
    leaves, spec = tree_flatten(values)
    return repr((spec, [(v.ndim, v.shape[2:], v.dtype) if isinstance(v, Tensor) else type(v).__qualname__ for v in leaves]))


def _is_hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
