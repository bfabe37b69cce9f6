"""Decoder layers compiled with `torch.compile`: a few graphs for all layers that are alike.

A graph holds what a layer does row by row (norms, rotary embedding, activation, residual sums), fused. In one, for any
number of tokens, packed products and attention are operators of our own (`opaque.py`). Others are for short steps, of
few tokens in so many blocks, where calling such operators takes longer than some kernels: they hold attention and the
writing of keys and values too (`Blocks`). All fuse the same and give the same bits, which the probe tries. Around the
layers the model runs as it is; its list of layers is replaced for the time of one forward, so nothing has to be given
back.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten
from transformers import PreTrainedModel

from specproof.errors import ConfigError
from specproof.kv.attention import Blocks
from specproof.kv.transformers_cache import PASSED_ON, StepCache
from specproof.layers import decoder_layers, find_layers
from specproof.numerics.artifact import compiler, load, save
from specproof.numerics.kinds import fingerprint, kinds_of
from specproof.numerics.opaque import Running, for_short

MOST_KINDS = 8  # of layers in one model, each compiled once

# Kernels run on one thread: in a decode step they are too short to share, and their bits then depend on no number of
# threads. (Products and attention use all threads, as ever.)
_OPTIONS = {"cpp.threads": 1, "size_asserts": False, "alignment_asserts": False}
_SHAPES: Any = import_module("torch.fx.experimental._config")


class Layers:
    """The layers of one model; the first forward compiles them.

    seconds: what getting them compiled took so far. most_blocks: of a short step; the first of each number compiles.
    """

    def __init__(self, layers: nn.ModuleList) -> None:
        self._kinds = kinds_of(layers)
        if len(set(self._kinds)) > MOST_KINDS:
            raise ConfigError(
                f"the layers cannot be compiled: they are of {len(set(self._kinds))} kinds, at most {MOST_KINDS} can be"
            )
        self._firsts = [self._kinds.index(kind) for kind in self._kinds]  # of each layer, the first of its kind
        self._code: dict[tuple[int, int], Callable[..., Any]] = {}  # by the first of a kind, and blocks in the graph
        self._heads: dict[int, int | None] = {}  # by the first layer of a kind; see Running
        self.seconds = 0.0
        self.most_blocks = 0
        self._noted: dict[int, tuple[tuple, dict[str, Any]]] | None = None

    def for_one_forward(self, layers: nn.ModuleList, running: Running, ids: Tensor) -> list["_Layer"]:
        """What runs in the layers' place; `running` is told which.

        ids: (b, n), of the forward, at least two tokens. The compiled layers see (1, N).
        """
        return [_Layer(self, number, layer, running, ids.shape) for number, layer in enumerate(layers)]

    def are(self, layers: nn.ModuleList) -> bool:
        """Whether these layers are what was compiled."""
        return self._kinds == kinds_of(layers)

    @contextmanager
    def noting(self, calls: dict[int, tuple[tuple, dict[str, Any]]]) -> Iterator[None]:
        """Note the arguments of the first layer of each kind, by number, while the block runs."""
        self._noted = calls
        try:
            yield
        finally:
            self._noted = None

    def run(self, number: int, layer: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Any:
        """One layer. It attends by itself if `kwargs` has Blocks as `attention_plan`.

        If not, the operators in it work on what is running (see `opaque.during`).
        """
        first, blocks = self._firsts[number], kwargs.get("attention_plan")
        graph = first, 0 if blocks is None else len(blocks.queries)
        if self._noted is not None and first == number and blocks is None:
            self._noted[number] = args, kwargs
        if graph not in self._code:
            self._code[graph] = _compile(layer, args, kwargs)
        return self._code[graph](layer, args, kwargs)

    def forward(
        self, running: Running, shape: torch.Size, number: int, layer: nn.Module, args: tuple, kwargs: dict[str, Any]
    ) -> Any:
        """One layer as the model calls it. shape: (b, n)."""
        running.layer, first = number, self._firsts[number]
        kwargs.pop("attention_plan", None)
        if shape[0] == 1:  # flat as it is
            args, kwargs = tuple(map(_unaware, args)), {name: _unaware(value) for name, value in kwargs.items()}
        else:
            args, kwargs = _flat(args, shape), {name: _flat(value, shape) for name, value in kwargs.items()}
        blocks = self.blocks(running, number)
        if blocks is not None:
            kwargs["attention_plan"] = blocks
        out = self.run(number, layer, args, kwargs)
        if first not in self._heads:
            self._heads[first] = running.heads
        return out if shape[0] == 1 else _unflat(out, shape)

    def blocks(self, running: Running, number: int) -> Blocks | None:
        """With which the layer that is running attends by itself; None if it does not in this step."""
        heads = self._heads.get(self._firsts[number])
        return None if heads is None else running.blocks(heads, self.most_blocks)


class _Layer:
    """Stands in for one layer during one forward."""

    __slots__ = ("_layer", "_layers", "_number", "_running", "_shape")

    def __init__(self, layers: Layers, number: int, layer: nn.Module, running: Running, shape: torch.Size) -> None:
        self._layers, self._number, self._layer, self._running, self._shape = layers, number, layer, running, shape

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._layers.forward(self._running, self._shape, self._number, self._layer, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


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
    return layers, _compiled(layers, packed)


def _compiled(layers: nn.ModuleList, packed: bool) -> Layers:
    made = _LAYERS.setdefault(layers, {})
    if packed not in made:
        made[packed] = Layers(layers)
    return made[packed]


@contextmanager
def in_their_place(model: PreTrainedModel, packed: bool, running: Running, ids: Tensor) -> Iterator[None]:
    """The model runs compiled layers while the block runs. See `Layers.for_one_forward`."""
    holder, name, layers = find_layers(model)
    compiled = _compiled(layers, packed)
    try:
        holder._modules[name] = compiled.for_one_forward(layers, running, ids)  # type: ignore[assignment]
        yield
    finally:
        holder._modules[name] = layers


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
    """A function of any layer of the same kind and any number of tokens from 2 on. It can never be compiled again.

    With Blocks among the arguments: of LEAST to BLOCK tokens, and any such blocks, as many.
    """
    is_short = "attention_plan" in kwargs
    args, kwargs = _example(args, kwargs) if is_short else (args, kwargs)
    about = {"layer": fingerprint(layer), "arguments": _shapes((args, kwargs))}
    made = load(about, vars(sys.modules[__name__]))
    if made is None:
        _mark_tokens((args, kwargs))
        options: Any = {**_OPTIONS, "guard_filter_fn": lambda guards: [False] * len(guards)}
        compiled: Any = torch.compile(_run, fullgraph=True, options=options)
        # Nothing but the tokens varies, whatever other models this process has compiled; sizes that are equal in the
        # example of blocks need not be.
        free = torch._dynamo.config.patch(automatic_dynamic_shapes=False, specialize_float=True)
        shapes = _SHAPES.patch(use_duck_shape=not is_short)
        with free, shapes, for_short() if is_short else nullcontext():
            made = compiled.aot_compile(((layer, args, kwargs), {}))
        save(about, made)
    made.disable_guard_check()
    return made


def _example(args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Arguments for any blocks: no size is 0 or 1, which compilers take for constants; no size follows from another.

    Nor does a stride: the rows are some of more.
    """
    blocks: Blocks = kwargs["attention_plan"]
    shapes = [(3 + i, 5 + 2 * i, 29 + i) for i in range(len(blocks.queries))]  # rows, queries of each, keys
    count, kept, rows, capacity = 13, 11, sum(shape[0] for shape in shapes), 53
    present = args[0].shape[1]
    made: dict[int, Tensor] = {}  # what is passed twice stays one

    def tokens(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(map(tokens, value))
        if not isinstance(value, Tensor) or value.ndim < 2 or value.shape[1] != present:
            return value
        return made.setdefault(id(value), value.new_zeros(value.shape[0], count, *value.shape[2:]))

    keys, values = (t.new_zeros(len(t), rows + 2, capacity, t.shape[3])[:, 1 : 1 + rows] for t in blocks[:2])
    index, order = blocks.index.new_zeros(kept), blocks.order.new_zeros(count)
    queries = tuple(q.new_zeros(r, m) for q, (r, m, _) in zip(blocks.queries, shapes, strict=True))
    groups = blocks.masks[0].shape[2] // blocks.queries[0].shape[1]  # at least the query heads of one key head
    masks = tuple(
        mask.new_zeros(r, 1, groups * m + 1, length) for mask, (r, m, length) in zip(blocks.masks, shapes, strict=True)
    )
    free = [(keys, 1), (keys, 2), (values, 1), (values, 2), (index, 0), (order, 0)]
    free += [(q, dimension) for q in queries for dimension in (0, 1)]
    free += [(mask, dimension) for mask in masks for dimension in (0, 2, 3)]
    for tensor, dimension in free:
        torch._dynamo.mark_dynamic(tensor, dimension)
    others = {name: tokens(value) for name, value in kwargs.items() if name != "attention_plan"}
    return tokens(args), {**others, "attention_plan": Blocks(keys, values, index, order, queries, masks)}


def _run(layer: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Any:
    return type(layer).forward(layer, *args, **kwargs)


def _mark_tokens(values: Any) -> None:
    """Have the compiler take any number of tokens: dimension 1 of whatever goes through the layers with them."""
    for value in tree_flatten(values, is_leaf=lambda value: isinstance(value, Blocks))[0]:
        if isinstance(value, Tensor) and value.ndim > 1:
            torch._dynamo.mark_dynamic(value, 1)


def _shapes(values: Any) -> str:
    """Of arguments: their structure, and the shapes of tensors but for the tokens'."""
    leaves, spec = tree_flatten(values)
    return repr(
        (spec, [(v.ndim, v.shape[2:], v.dtype) if isinstance(v, Tensor) else type(v).__qualname__ for v in leaves])
    )


def _is_hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
