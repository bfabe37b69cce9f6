"""Decoder layers compiled with `torch.compile`: a few graphs for all layers that are alike.

A graph holds what a layer does row by row (norms, rotary embedding, activation, residual sums), fused. In one, for any
number of tokens, packed products and attention are operators of our own (`opaque.py`). Others are for short steps, of
few tokens in so many blocks (`short.py`). All fuse the same and give the same bits, which the probe tries. Around the
layers the model runs as it is; its list of layers is replaced for the time of one forward, so nothing has to be given
back.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from specproof.errors import ConfigError
from specproof.kv.attention import Blocks
from specproof.kv.transformers_cache import PASSED_ON, StepCache
from specproof.layers import decoder_layers, layers_place
from specproof.numerics.artifact import compiler, load, save
from specproof.numerics.kinds import fingerprint, kinds_of, shapes_of
from specproof.numerics.opaque import Running
from specproof.numerics.short import ShortGraph

MOST_KINDS = 8  # of layers in one model, each compiled once

# Kernels run on one thread: in a decode step they are too short to share, and their bits then depend on no number of
# threads. (Products and attention use all threads, as ever.)
_OPTIONS = {"cpp.threads": 1, "size_asserts": False, "alignment_asserts": False}


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
        self._code: dict[int, Callable[..., Any]] = {}  # by the first of a kind
        self._short: dict[tuple[int, int], ShortGraph] = {}  # by the first of a kind, and the number of blocks
        self._heads: dict[int, int | None] = {}  # by the first of a kind; see Running
        self._returned: dict[int, Sequence[bool] | None] = {}  # by the first of a kind; see _as_returned
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

    def run(
        self, number: int, layer: nn.Module, args: tuple, kwargs: dict[str, Any], blocks: Blocks | None = None
    ) -> Any:
        """One layer. It attends by itself if there are `blocks`.

        If not, the operators in it work on what is running (see `opaque.during`).
        """
        first = self._firsts[number]
        if blocks is not None:
            graph = first, len(blocks.queries)
            if graph not in self._short:
                self._short[graph] = ShortGraph(layer, *_unaware(args, kwargs), blocks, _OPTIONS)
            return _as_returned(self._short[graph](layer, args, kwargs, blocks), self._returned[first])
        if self._noted is not None and first == number:
            self._noted[number] = args, kwargs
        if first not in self._code:
            self._code[first] = _compile(layer, args, kwargs)
        return self._code[first](layer, args, kwargs)

    def forward(
        self, running: Running, shape: torch.Size, number: int, layer: nn.Module, args: tuple, kwargs: dict[str, Any]
    ) -> Any:
        """One layer as the model calls it. shape: (b, n)."""
        running.layer, first = number, self._firsts[number]
        kwargs.pop("attention_plan", None)
        blocks = self.blocks(running, number)
        if shape[0] > 1:
            args, kwargs = _flat(args, shape), {name: _flat(value, shape) for name, value in kwargs.items()}
        if blocks is None:
            args, kwargs = _unaware(args, kwargs)
        out = self.run(number, layer, args, kwargs, blocks)
        if first not in self._heads:
            self._heads[first] = running.heads
            self._returned[first] = None if isinstance(out, Tensor) else [isinstance(part, Tensor) for part in out]
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


def _unaware(args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """With the cache as compiled layers see it: it knows nothing of the step."""
    return tuple(map(_passed_on, args)), {name: _passed_on(value) for name, value in kwargs.items()}


def _passed_on(value: Any) -> Any:
    return PASSED_ON if isinstance(value, StepCache) else value


def _flat(value: Any, shape: torch.Size) -> Any:
    """What a layer is given, tokens (b, n, ...) as (1, N, ...)."""
    if isinstance(value, Tensor):
        if value.ndim < 2 or value.shape[1] != shape[1]:
            return value
        return value.expand(shape[0], *value.shape[1:]).flatten(0, 1)[None]
    return type(value)(_flat(part, shape) for part in value) if isinstance(value, tuple | list) else value


def _unflat(value: Any, shape: torch.Size) -> Any:
    if isinstance(value, Tensor):
        return value.view(*shape, *value.shape[2:])
    return type(value)(_unflat(part, shape) for part in value) if isinstance(value, tuple | list) else value


def _as_returned(tensors: Sequence[Tensor], kinds: Sequence[bool] | None) -> Any:
    """What a layer returns: a tensor, or some values, where `kinds` says which of them are tensors."""
    if kinds is None:
        return tensors[0]
    rest = iter(tensors)
    return tuple(next(rest) if is_tensor else None for is_tensor in kinds)


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
    holder, name = layers_place(model)
    layers: Any = holder._modules[name]
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
    if (why := why_not_now(model)) is not None:
        return why
    if {parameter.device.type for parameter in model.parameters()} == {"cpu"} and compiler() is None:
        return "there is no C++ compiler; install g++, or name one in CXX"
    return None


def why_not_now(model: PreTrainedModel) -> str | None:
    """Why the model's compiled layers do not do what its layers would, whatever they were compiled from."""
    hooked = any(_is_hooked(module) for module in decoder_layers(model).modules())
    return "its layers have hooks (as device_map sets them)" if hooked else None


def _compile(layer: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Callable[[nn.Module, tuple, dict], Any]:
    """A function of any layer of the same kind and any number of tokens from 2 on. It can never be compiled again."""
    about = {"layer": fingerprint(layer), "arguments": shapes_of((args, kwargs))}
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
    for value in tree_leaves(values):
        if isinstance(value, Tensor) and value.ndim > 1:
            torch._dynamo.mark_dynamic(value, 1)


def _is_hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
