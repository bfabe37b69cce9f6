"""Graphs for short steps: one decoder layer with its attention, as a library that is called with tensors alone.

In a short step calling Python takes longer than some kernels. So a layer is exported with its weights, the cells and
the masks as arguments, and compiled ahead of time; one library serves all layers that are alike.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_flatten_with_path, tree_unflatten

from specproof.kv.attention import Blocks
from specproof.numerics.artifact import library
from specproof.numerics.kinds import fingerprint, shapes_of
from specproof.numerics.opaque import products_called_directly
from specproof.numerics.packed import PackedLinear

_SHAPES: Any = import_module("torch.fx.experimental._config")


class ShortGraph:
    """What layers of one kind compute in a step of so many blocks, of LEAST to BLOCK tokens.

    Made from one call of such a layer, or loaded from disk. args, kwargs: as layers take them, tokens as (1, N, ...),
    without what is of one step only. options: for the compiler.
    """

    def __init__(
        self, layer: nn.Module, args: tuple, kwargs: dict[str, Any], blocks: Blocks, options: dict[str, Any]
    ) -> None:
        self._places = _places(layer)
        leaves, _ = tree_flatten_with_path((args, kwargs))
        self._ways = [tuple(map(_key, way)) for way, value in leaves if isinstance(value, Tensor)]
        keys, values = blocks[:2]
        of_blocks = len(blocks.queries), keys.shape[0], keys.shape[3], values.shape[3], str(keys.dtype)
        about = {"layer": fingerprint(layer), "arguments": shapes_of((args, kwargs)), "blocks": of_blocks}
        self._run = library(about, lambda path: self._compile(path, layer, args, kwargs, blocks, options))

    def __call__(self, layer: nn.Module, args: tuple, kwargs: dict[str, Any], blocks: Blocks) -> list[Tensor]:
        """What the layer returns, but for what is no tensor."""
        tensors = [table[name] for table, name in _found(layer, self._places)]
        for way in self._ways:
            value: Any = (args, kwargs)
            for key in way:
                value = value[key]
            tensors.append(value.contiguous())
        return self._run([*tensors, *blocks[:4], *blocks.queries, *blocks.masks])

    @torch.inference_mode(False)
    @torch.no_grad()
    def _compile(
        self, path: Path, layer: nn.Module, args: tuple, kwargs: dict[str, Any], blocks: Blocks, options: dict[str, Any]
    ) -> None:
        """Write the library to `path`."""
        from torch._inductor import aot_compile
        from torch.export import Dim, export

        own = [table[name] for table, name in _found(layer, self._places)]
        values, spec = tree_flatten((args, kwargs))
        at = [i for i, value in enumerate(values) if isinstance(value, Tensor)]
        count = len(blocks.queries)

        def run(tensors: Sequence[Tensor]) -> list[Tensor]:
            rest = iter(tensors)
            with _holding(layer, self._places, [next(rest) for _ in own]):
                given = list(values)
                for i in at:
                    given[i] = next(rest)
                positional, named = tree_unflatten(given, spec)
                keys, cells, index, order, *others = rest
                held = Blocks(keys, cells, index, order, tuple(others[:count]), tuple(others[count:]))
                out = type(layer).forward(layer, *positional, **named, attention_plan=held)
            return [part for part in tree_flatten(out)[0] if isinstance(part, Tensor)]

        weights = [(_alike(tensor), ()) for tensor in own]
        examples = [*weights, *_any_tokens([values[i] for i in at]), *_any_blocks(blocks)]
        sizes = [dict.fromkeys(free, Dim.DYNAMIC) for _, free in examples]
        # Sizes that are equal in the examples need not be.
        with _SHAPES.patch(use_duck_shape=False), products_called_directly(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # about PyTorch's own code
            tensors = [tensor for tensor, _ in examples]
            exported = export(_Exported(run), (tensors,), dynamic_shapes=(sizes,)).module(check_guards=False)
            aot_compile(exported, (tensors,), options={**options, "aot_inductor.output_path": str(path)})  # type: ignore


class _Exported(nn.Module):
    """A function, as `export` takes it."""

    def __init__(self, run: Callable[[Sequence[Tensor]], list[Tensor]]) -> None:
        super().__init__()
        self._run = run

    def forward(self, tensors: list[Tensor]) -> list[Tensor]:
        return self._run(tensors)


# Examples, each with its dimensions of any size: none of them is 0 or 1, which compilers take for constants, and no
# size or stride follows from another.
_TOKENS, _KEPT, _CAPACITY = 13, 11, 53


def _alike(weight: Tensor) -> Tensor:
    """A weight that lies in memory in the same way; a packed one as if it were not."""
    if weight.is_mkldnn:
        return torch.zeros(weight.shape, dtype=weight.dtype)
    return torch.empty_strided(weight.shape, weight.stride(), dtype=weight.dtype, device=weight.device).zero_()


def _any_tokens(given: Sequence[Tensor]) -> list[tuple[Tensor, tuple[int, ...]]]:
    """Of arguments of a layer, the first of which has tokens."""
    count = given[0].shape[1]
    return [
        (t.new_zeros(len(t), _TOKENS, *t.shape[2:]), (1,))
        if t.ndim > 1 and t.shape[1] == count
        else (t.new_zeros(t.shape), ())
        for t in given
    ]


def _any_blocks(blocks: Blocks) -> list[tuple[Tensor, tuple[int, ...]]]:
    shapes = [(3 + i, 5 + 2 * i, 29 + i) for i in range(len(blocks.queries))]  # rows, queries of each, keys
    rows = sum(shape[0] for shape in shapes)
    keys, values = (  # the rows are some of more
        t.new_zeros(len(t), rows + 2, _CAPACITY, t.shape[3])[:, 1 : 1 + rows] for t in (blocks.keys, blocks.values)
    )
    heads = blocks.masks[0].shape[2] // blocks.queries[0].shape[1]  # at least the query heads of one key head
    return [
        (keys, (1, 2)),
        (values, (1, 2)),
        (blocks.index.new_zeros(_KEPT), (0,)),
        (blocks.order.new_zeros(_TOKENS), (0,)),
        *((q.new_zeros(r, m), (0, 1)) for q, (r, m, _) in zip(blocks.queries, shapes, strict=True)),
        *(
            (mask.new_zeros(r, 1, heads * m + 1, length), (0, 2, 3))
            for mask, (r, m, length) in zip(blocks.masks, shapes, strict=True)
        ),
    ]


# Where modules of a layer keep tensors: the names on the way to the module, the table in it, the names in that.
Place = tuple[tuple[str, ...], str, list[str]]


def _places(layer: nn.Module) -> list[Place]:
    found: list[Place] = []
    for name, module in layer.named_modules():
        way = tuple(name.split(".")) if name else ()
        if isinstance(module, PackedLinear):
            tables = ("packed",) if module.number == 0 else ()  # the others have the same
        else:
            tables = "_parameters", "_buffers"
        for table in tables:
            names = [name for name, tensor in getattr(module, table).items() if tensor is not None]
            if names:
                found.append((way, table, names))
    return found


def _found(layer: nn.Module, places: Sequence[Place]) -> Iterator[tuple[dict[str, Any], str]]:
    """Each tensor at these places: the table that it is in, as it is now, and its name there."""
    for way, table, names in places:
        module: Any = layer
        for name in way:
            module = module._modules[name]
        tensors = getattr(module, table)
        for name in names:
            yield tensors, name


@contextmanager
def _holding(layer: nn.Module, places: Sequence[Place], tensors: Sequence[Tensor]) -> Iterator[None]:
    """The layer has other tensors while the block runs."""
    found = list(_found(layer, places))
    before = [table[name] for table, name in found]
    try:
        for (table, name), tensor in zip(found, tensors, strict=True):
            table[name] = tensor
        yield
    finally:
        for (table, name), tensor in zip(found, before, strict=True):
            table[name] = tensor


def _key(step: Any) -> Any:
    """Of one step on the way to a leaf of nested containers."""
    return step.idx if hasattr(step, "idx") else step.key
