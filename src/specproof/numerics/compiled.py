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
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten
from transformers import PreTrainedModel

from specproof.errors import ConfigError
from specproof.kv.transformers_cache import PASSED_ON, StepCache
from specproof.layers import decoder_layers
from specproof.numerics.artifact import compiler, load, save
from specproof.numerics.opaque import Running
from specproof.numerics.packed import PackedLinear, linear_shape

MOST_KINDS = 8  # of layers in one model, each compiled once

# Kernels run on one thread: in a decode step they are too short to share, and their bits then depend on no number of
# threads. (Products and attention use all threads, as ever.)
_OPTIONS = {"cpp.threads": 1, "size_asserts": False, "alignment_asserts": False}


class Layers:
    """The layers of one model; the first forward compiles them. seconds: what getting them compiled took so far."""

    def __init__(self, layers: nn.ModuleList) -> None:
        self._kinds = _kinds(layers)
        if len(set(self._kinds)) > MOST_KINDS:
            raise ConfigError(
                f"the layers cannot be compiled: they are of {len(set(self._kinds))} kinds, at most {MOST_KINDS} can be"
            )
        self._firsts = [self._kinds.index(kind) for kind in self._kinds]  # of each layer, the first of its kind
        self._code: dict[int, Callable[..., Any]] = {}  # by the first layer of a kind
        self.seconds = 0.0
        self._noted: dict[int, tuple[tuple, dict[str, Any]]] | None = None

    @contextmanager
    def running(self, layers: nn.ModuleList, running: Running, ids: Tensor) -> Iterator[None]:
        """Calling the layers runs the compiled ones while the block runs; `running` is told which.

        ids: (b, n), of the forward, at least two tokens. The compiled layers see (1, N).
        """
        for number, layer in enumerate(layers):
            vars(layer)["forward"] = partial(self._forward, running, ids.shape, number, layer)
        try:
            yield
        finally:
            for layer in layers:
                del vars(layer)["forward"]

    def are(self, layers: nn.ModuleList) -> bool:
        """Whether these layers are what was compiled."""
        return self._kinds == _kinds(layers)

    @contextmanager
    def noting(self, calls: dict[int, tuple[tuple, dict[str, Any]]]) -> Iterator[None]:
        """Note the arguments of the first layer of each kind, by number, while the block runs."""
        self._noted = calls
        try:
            yield
        finally:
            self._noted = None

    def run(self, number: int, layer: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Any:
        """One layer; the operators in it work on what is running (see `opaque.during`)."""
        first = self._firsts[number]
        if self._noted is not None and first == number:
            self._noted[number] = args, kwargs
        if first not in self._code:
            self._code[first] = _compile(layer, args, kwargs)
        return self._code[first](layer, args, kwargs)

    def _forward(
        self, running: Running, shape: torch.Size, number: int, layer: nn.Module, *args: Any, **kwargs: Any
    ) -> Any:
        running.layer = number
        kwargs.pop("attention_plan", None)
        if shape[0] == 1:  # flat as it is
            kwargs = {name: _unaware(value) for name, value in kwargs.items()}
            return self.run(number, layer, tuple(map(_unaware, args)), kwargs)
        kwargs = {name: _flat(value, shape) for name, value in kwargs.items()}
        return _unflat(self.run(number, layer, _flat(args, shape), kwargs), shape)


def _unaware(value: Any) -> Any:
    """The cache as compiled layers see it: it knows nothing of the step."""
    return PASSED_ON if isinstance(value, StepCache) else value


def _flat(value: Any, shape: torch.Size) -> Any:
    """What a layer is given, tokens (b, n, ...) as (1, N, ...)."""
    if isinstance(value, Tensor):
        if value.ndim < 2 or value.shape[1] != shape[1]:
            return value
        return value.expand(shape[0], *value.shape[1:]).flatten(0, 1)[None]
    if isinstance(value, tuple | list):
        return type(value)(_flat(part, shape) for part in value)
    return _unaware(value)


def _unflat(value: Any, shape: torch.Size) -> Any:
    if isinstance(value, Tensor):
        return value.view(*shape, *value.shape[2:])
    return type(value)(_unflat(part, shape) for part in value) if isinstance(value, tuple | list) else value


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


def forget_changed(model: PreTrainedModel, packed: bool) -> None:
    """Give up what was compiled of layers that have changed since. packed: as the weights are now."""
    layers = decoder_layers(model)
    made = _LAYERS.get(layers, {})
    if packed in made and not made[packed].are(layers):
        del made[packed]


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
        # Nothing but the tokens varies, whatever other models this process has compiled.
        with torch._dynamo.config.patch(automatic_dynamic_shapes=False, specialize_float=True):
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


def _kinds(layers: nn.ModuleList) -> list[tuple]:
    return [_kind(layer) for layer in layers]


def _kind(layer: nn.Module) -> tuple:
    """What must be equal for two layers to share a graph: all but the values of tensors and the layer's number."""
    return tuple((name, *_about(module, id)) for name, module in layer.named_modules())


def _fingerprint(layer: nn.Module) -> str:
    """The same, for another process: objects by their type, the config by its text, code by its source."""
    named = list(layer.named_modules())
    sources = {inspect.getsource(sys.modules[type(module).__module__]) for _, module in named}
    configs = {str(value) for _, module in named for value in vars(module).values() if hasattr(value, "to_json_string")}
    kind = tuple((name, *_about(module, _named)) for name, module in named)
    return repr((kind, sorted(configs), sorted(hashlib.sha256(source.encode()).hexdigest() for source in sources)))


def _about(module: nn.Module, other: Callable[[Any], Any]) -> tuple:
    """other: what to tell of a value that is no plain one."""
    if isinstance(module, PackedLinear):
        return type(module), module.product.shape, tuple(module.product.sizes), module.number
    shape = linear_shape(module)
    if shape is not None:
        return type(module), shape
    tensors = {**module._parameters, **module._buffers}
    values = {name: value for name, value in vars(module).items() if name[0] != "_" and name != "layer_idx"}
    return (
        type(module),
        tuple((name, t if t is None else (t.shape, t.dtype, t.device)) for name, t in tensors.items()),
        tuple((name, _told(value, other)) for name, value in values.items()),
    )


def _told(value: Any, other: Callable[[Any], Any]) -> Any:
    match value:
        case bool() | int() | float() | str() | None:
            return value
        case tuple() | list():
            return tuple(_told(part, other) for part in value)
        case partial():
            return other(value.func), _told(value.args, other), _told(list(value.keywords.items()), other)
        case MethodType():
            return other(value.__func__)
    return other(value)


def _named(value: Any) -> str:
    return getattr(value, "__qualname__", type(value).__qualname__)


def _shapes(values: Any) -> str:
    """Of arguments: their structure, and the shapes of tensors but for the tokens'."""
    leaves, spec = tree_flatten(values)
    return repr(
        (spec, [(v.ndim, v.shape[2:], v.dtype) if isinstance(v, Tensor) else type(v).__qualname__ for v in leaves])
    )


def _is_hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
