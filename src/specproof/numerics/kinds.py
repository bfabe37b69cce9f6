"""Which layers are alike: all that a graph made of one depends on."""

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any
from weakref import ref

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from specproof.numerics.packed import PackedLinear


def kinds_of(layers: Iterable[nn.Module]) -> list[tuple]:
    return [_kind(layer) for layer in layers]


def _kind(layer: nn.Module) -> tuple:
    """What must be equal for two layers to share a graph: all but the values of tensors and the layer's number."""
    return tuple((name, *_about(module, _Same)) for name, module in layer.named_modules())


class _Same:
    """Equal to that of the same object only, never to that of another one that later lies at its address."""

    def __init__(self, value: Any) -> None:
        try:
            self._value = ref(value)
        except TypeError:  # cannot be referred to weakly
            self._value = lambda: value
        self._hash = id(value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same):
            return NotImplemented
        value = self._value()
        return value is not None and value is other._value()

    def __hash__(self) -> int:
        return self._hash


def fingerprint(layer: nn.Module) -> str:
    """The same, for another process: objects by their type, the config by its text, code by its source."""
    named = list(layer.named_modules())
    sources = {inspect.getsource(sys.modules[type(module).__module__]) for _, module in named}
    configs = {str(value) for _, module in named for value in vars(module).values() if hasattr(value, "to_json_string")}
    kind = tuple((name, *_about(module, _named)) for name, module in named)
    return repr((kind, sorted(configs), sorted(hashlib.sha256(source.encode()).hexdigest() for source in sources)))


def shapes_of(values: Any) -> str:
    """Of arguments: their structure, and the shapes of tensors but for the tokens'."""
    leaves, spec = tree_flatten(values)
    return repr(
        (spec, [(v.ndim, v.shape[2:], v.dtype) if isinstance(v, Tensor) else type(v).__qualname__ for v in leaves])
    )


def _about(module: nn.Module, other: Callable[[Any], Any]) -> tuple:
    """other: what to tell of a value that is no plain one."""
    if isinstance(module, PackedLinear):
        product = module.product
        return type(module), product.shape, tuple(product.sizes), module.number, product.tensors["weight"].dtype
    tensors = {**module._parameters, **module._buffers}
    values = {name: value for name, value in vars(module).items() if name[0] != "_" and name != "layer_idx"}
    return (
        type(module),
        other(type(module).forward),
        tuple((name, t if t is None else (t.shape, t.stride(), t.dtype, t.device)) for name, t in tensors.items()),
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


def _named(value: Any) -> Any:
    if isinstance(value, FunctionType):
        held = [_held(cell) for cell in value.__closure__ or ()]
        return value.__qualname__, _told_code(value.__code__), held, _told(value.__defaults__, _named)
    return getattr(value, "__qualname__", type(value).__qualname__)


def _told_code(code: CodeType) -> tuple:
    constants = [_told_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return code.co_code, code.co_names, constants


def _held(cell: Any) -> Any:
    """What a function has from around it."""
    try:
        value = cell.cell_contents
    except ValueError:  # nothing yet
        return None
    return _told_code(value.__code__) if isinstance(value, FunctionType) else _told(value, _named)
