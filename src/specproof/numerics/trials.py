"""The trials: the same rows or queries, computed in all the shapes that a rule allows, compared bit for bit."""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from specproof.kv.attention import AttentionPlan, Block
from specproof.kv.cells import Cells
from specproof.kv.transformers_cache import RunningStep, StepCache
from specproof.lm import LM
from specproof.numerics.compiled import compiled_layers
from specproof.numerics.finding import Finding, name_values
from specproof.numerics.observe import AttentionShape
from specproof.numerics.opaque import at_most, during
from specproof.numerics.rule import BLOCK, KEYS, QUERIES, SMALL_BLOCK, Numerics

SAMPLES = 1 << 15  # results compared for each number of rows, at least: rounding to bfloat16 hides most differences
# Rows of one product.
COUNTS = (
    *range(1, SMALL_BLOCK + 1),
    65,
    72,
    79,
    80,
    96,
    100,
    127,
    128,
    129,
    144,
    191,
    192,
    193,
    224,
    255,
    256,
    257,
    288,
    319,
)
NUM_ROWS = (*range(1, 17), 32)  # rows of one attention call
FIXED = 4  # queries that are followed through all shapes
FOLLOWED = 16  # and through all key lengths
# Steps of few tokens: rows, and tokens of each, of their blocks.
SHORT = (
    [(1, 4)], [(2, 2)], [(3, 5)], [(8, 1)], [(9, 7)], [(16, 4)], [(1, 1), (1, 6)], [(5, 1), (2, 4)], [(2, 3), (7, 1)],
    [(3, 1), (1, 9), (4, 1)], [(1, 5), (2, 2), (1, 1)], [(8, 17)], [(16, 20)], [(2, 17), (4, 30), (9, 1)],
)  # fmt: skip


def try_linear(
    shape: tuple[int, int, bool], product: Callable[[Tensor], Tensor], dtype: torch.dtype, most: int
) -> Finding:
    """Numbers of rows up to `most`, every one up to SMALL_BLOCK, with the rows at different places."""
    outputs, inputs, _ = shape
    states, counts = _normal(most, inputs).to(dtype), [count for count in COUNTS if count < most]
    whole = product(states)
    differing = []
    for count in counts:
        groups = min(most // count, -(-SAMPLES // (count * outputs)))
        starts = [round(i * (most - count) / max(1, groups - 1)) for i in range(groups)]
        if not all(torch.equal(product(states[at : at + count]), whole[at : at + count]) for at in starts):
            differing.append(count)
    other = _normal(most, inputs, seed=1).to(dtype)
    moved = torch.cat([other[:11], states[:3], other[14:]])
    depends = name_values("number of rows", differing)
    if not torch.equal(product(moved)[11:14], whole[:3]):
        depends += ("neighbours",)
    return Finding(
        f"linear {inputs} to {outputs}",
        f"1 to {most} rows, {len(counts)} numbers",
        depends,
        _threads_matter(lambda: product(states), whole),
    )


def try_layer(lm: LM, number: int, args: tuple, kwargs: dict[str, Any], numerics: Numerics, most: int) -> Finding:
    """A compiled layer with an attention that gives each token its own value: then all of it goes row by row.

    Compared are also the queries, keys and values that it makes.
    """
    layers, compiled = compiled_layers(lm.model, numerics.packed)
    given, spec = tree_flatten((args, kwargs))
    at = [i for i, value in enumerate(given) if isinstance(value, Tensor) and value.ndim > 1]

    def run(*tensors: Tensor) -> list[Tensor]:
        count = tensors[0].shape[1]
        values, step = list(given), _OwnValue()
        for i, tensor in zip(at, tensors, strict=True):
            values[i] = tensor if count > 1 else tensor.repeat_interleave(2, dim=1)
        with during(step), at_most(numerics.block):
            out = compiled.run(number, layers[number], *tree_unflatten(values, spec))
        return [t[:, :count] for t in (*_tensors(out), *step.seen) if isinstance(t, Tensor)]

    name = f"compiled {type(layers[number]).__name__} {number}"
    counts = [*range(1, 81), *range(81, most, 7)]
    return try_rowwise(name, run, [given[i] for i in at], most, counts)


class _OwnValue:
    """Runs compiled layers outside of a forward. seen: (1, n, heads, size) each."""

    layer = 0
    heads: int | None = None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, softcap: float | None) -> Tensor:
        self.seen = [states.transpose(1, 2).clone() for states in (query, key, value)]
        return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1).transpose(1, 2).contiguous()

    def blocks(self, heads: int, most: int) -> None:
        return None


def try_short(
    lm: LM, number: int, args: tuple, kwargs: dict[str, Any], attention: str, numerics: Numerics
) -> Iterator[Finding]:
    """A compiled layer's graphs for short steps, against its graph for any: results, and all that lies in the cells.

    Nothing if it has none.
    """
    layers, compiled = compiled_layers(lm.model, numerics.packed)
    given, spec = tree_flatten((args, kwargs))
    most = numerics.block or BLOCK
    shapes = [
        shape for shape in SHORT if len(shape) <= compiled.most_blocks and sum(rows * m for rows, m in shape) <= most
    ]

    def run(shape: Sequence[tuple[int, int]], cells: Cells, is_short: bool) -> list[Tensor] | None:
        """All rows of the cells but the first and the last. None if the layer has no graph for it."""
        blocks, index, first, tokens = [], [], 1, 0
        for rows, m in shape:
            columns = KEYS - m + torch.arange(rows)[:, None] % 5 + torch.arange(m)
            queries = slice(tokens, tokens + rows * m)
            blocks.append(Block(slice(first, first + rows), queries, columns, None, 2 * KEYS))
            index.append((torch.arange(first, first + rows)[:, None] * cells.capacity + columns).flatten())
            first, tokens = first + rows, tokens + rows * m
        plan = AttentionPlan(blocks, slice(None), lm.windows, attention, numerics)
        step = RunningStep(StepCache(cells, torch.cat(index), plan), tokens)
        step.layer = number
        random = [
            _normal(len(t), tokens, *t.shape[2:]).to(t) if isinstance(t, Tensor) and t.ndim > 1 else t for t in given
        ]
        values, named = tree_unflatten(random, spec)
        held = compiled.blocks(step, number) if is_short else None
        if is_short and held is None:
            return None
        with during(step), at_most(numerics.block):
            out = compiled.run(number, layers[number], values, named, held)
        return [*_tensors(out), cells.keys[number], cells.values[number]]

    differing = []
    for shape in shapes:
        cells = Cells()
        cells.reshape(sum(rows for rows, _ in shape) + 2, 2 * KEYS)
        for seed, tensor in enumerate((run(shape, cells, False) or [])[-2:]):
            tensor.copy_(_normal(*tensor.shape, seed=seed))
        truth, found = run(shape, copy.deepcopy(cells), False), run(shape, cells, True)
        if truth is None or found is None:
            return
        if not all(torch.equal(a, b) for a, b in zip(truth, found, strict=True)):
            differing.append(sum(rows * m for rows, m in shape))
    if shapes:
        name = f"compiled {type(layers[number]).__name__} {number}, attention in its graph"
        tried = f"{len(shapes)} steps of up to {max(map(len, shapes))} blocks"
        yield Finding(name, tried, name_values("the graph, steps of tokens", differing))


def try_rowwise(
    name: str,
    module: Callable[..., Any],
    tensors: Sequence[Tensor],
    most: int,
    counts: Sequence[int] | None = None,
) -> Finding:
    """Every number of tokens up to `most`, or those in `counts`."""
    wide = [t.repeat_interleave(-(-most // t.shape[1]), dim=1)[:, :most] for t in tensors]
    generator = torch.Generator().manual_seed(0)
    wide = [t[:, torch.randperm(most, generator=generator).to(t.device)] for t in wide]
    wide = [_as_lies(given, t) for given, t in zip(tensors, wide, strict=True)]
    whole = _tensors(module(*wide))
    differing = []
    for count in counts or range(1, most):
        at = count % 2 * (most - count)
        part = _tensors(module(*(_as_lies(g, t[:, at : at + count]) for g, t in zip(tensors, wide, strict=True))))
        if not all(torch.equal(p, w[:, at : at + count]) for p, w in zip(part, whole, strict=True)):
            differing.append(count)
    return Finding(
        name,
        f"1 to {most} tokens" + ("" if counts is None else f", {len(counts)} numbers"),
        name_values("number of tokens", differing),
        _threads_matter(lambda: _tensors(module(*wide))[0], whole[0]),
    )


def _as_lies(given: Tensor, tensor: Tensor) -> Tensor:
    """A copy of `tensor` (b, n, ...) whose tokens lie as far apart as those of `given`."""
    gap, size = given.stride(1), tensor.shape[2:].numel()
    if gap <= size:
        return tensor.contiguous()
    spread = tensor.new_zeros(*tensor.shape[:2], gap)[..., :size].unflatten(2, tensor.shape[2:])
    return spread.copy_(tensor)


def try_attention(
    shape: AttentionShape, kind: str, numerics: Numerics, dtype: torch.dtype, longest: int, long: Sequence[int]
) -> Finding:
    """Every key length up to `longest` and those in `long`; every size of block, place in it, number of rows."""
    trial = _Attention(shape, kind, numerics, dtype, numerics.key_length(max(longest, *long, 512)))
    lengths = [*sorted({numerics.key_length(n) for n in range(16, longest + 1, 16)}), *long]
    sizes = range(1, QUERIES + 1)
    depends = name_values("key length", [length for length in lengths if trial.length_matters(length)])
    depends += name_values("queries per call", [m for m in sizes if trial.block_matters(m)])
    depends += name_values("rows per call", [count for count in NUM_ROWS if trial.rows_matter(count)])
    heads = f"{shape.heads} heads on {shape.kv_heads} of {shape.size}"
    name = f"attention, {heads}" + (f", window {shape.window}" if shape.window else "")
    tried = f"{len(lengths)} key lengths up to {lengths[-1]}, {len(sizes)} block sizes, {NUM_ROWS[-1]} rows"
    whole = trial.fixed(sizes[0], 0, 1)
    return Finding(name, tried, depends, _threads_matter(lambda: trial.fixed(sizes[0], 0, 1), whole))


class _Attention:
    """Keys and values of one row, and queries whose results are looked for in calls of different shapes.

    Values cancel: over any KEYS places they sum to zero, so that with equal weights the result is nothing but rounding,
    and another order of summation shows in every element, in bfloat16 too. Half of the queries give equal weights.
    """

    def __init__(self, shape: AttentionShape, kind: str, numerics: Numerics, dtype: torch.dtype, capacity: int) -> None:
        self._shape, self._kind, self._numerics, self._dtype = shape, kind, numerics, dtype
        self._keys = _normal(1, shape.kv_heads, capacity, shape.size).to(dtype)
        half = _normal(1, shape.kv_heads, -(-capacity // KEYS), KEYS // 2, shape.value_size, seed=1)
        half = half * 2.0 ** torch.randint(-10, 1, half.shape, generator=torch.Generator().manual_seed(2))
        values = torch.cat([half, -half], dim=3)[
            :, :, :, torch.randperm(KEYS, generator=torch.Generator().manual_seed(3))
        ]
        self._values = values.flatten(2, 3)[:, :, :capacity].to(dtype)
        self._capacity = capacity

    def length_matters(self, length: int) -> bool:
        """Queries at the end of the visible keys, in a call of this length and in the longest."""
        columns = (length - 1 - torch.arange(FOLLOWED) * 8).clamp(min=0)[None]
        query = self._queries(FOLLOWED, 4)
        return not torch.equal(self._attend(query, columns, length, 1), self._attend(query, columns, self._capacity, 1))

    def block_matters(self, size: int) -> bool:
        """The fixed queries at the first and the last place among others, against alone."""
        alone = self.fixed(FIXED, 0, 1)
        kept = min(FIXED, size)
        return not all(torch.equal(self.fixed(size, place, 1), alone[:kept]) for place in {0, size - kept})

    def rows_matter(self, count: int) -> bool:
        alone = self.fixed(FIXED, 0, 1)
        return not torch.equal(self.fixed(FIXED, 0, count), alone)

    def fixed(self, size: int, place: int, rows: int) -> Tensor:
        """Results of the fixed queries (at most `size`) in the last row, from `place` on, among random ones."""
        kept = min(FIXED, size)
        length = self._numerics.key_length(511)
        query = _normal(rows * size, self._shape.heads, self._shape.size, seed=size + rows).to(self._dtype)
        columns = torch.randint(0, length, (rows, size), generator=torch.Generator().manual_seed(size + rows))
        query.view(rows, size, *query.shape[1:])[-1, place : place + kept] = self._queries(FIXED, 5)[:kept]
        columns[-1, place : place + kept] = torch.tensor([383, 200, 510, 90])[:kept]
        return self._attend(query, columns, length, rows).view(rows, size, -1)[-1, place : place + kept]

    def _queries(self, count: int, seed: int) -> Tensor:
        """(count, H, D): every other one is zero, and so weighs all keys the same."""
        query = _normal(count, self._shape.heads, self._shape.size, seed=seed)
        query[::2] = 0
        return query.to(self._dtype)

    def _attend(self, query: Tensor, columns: Tensor, length: int, rows: int) -> Tensor:
        """query: (rows * m, H, D). columns: (rows, m). -> (rows * m, H * D)"""
        plan = AttentionPlan(
            [Block(slice(0, rows), slice(None), columns, None, length)],
            slice(None),
            (self._shape.window,),
            self._kind,
            self._numerics,
        )
        keys, values = (t.expand(rows, -1, -1, -1) for t in (self._keys, self._values))
        out = plan.attend(0, query.transpose(0, 1)[None], keys, values, self._shape.scale, self._shape.softcap)
        return out[0].flatten(1)


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _tensors(out: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    return (out,) if isinstance(out, Tensor) else out


def _threads_matter(compute: Callable[[], Tensor], before: Tensor) -> bool:
    """Whether one and two threads give other bits than as many as there are."""
    threads = torch.get_num_threads()
    try:
        for count in {1, 2} - {threads}:
            torch.set_num_threads(count)
            if not torch.equal(compute(), before):
                return True
    finally:
        torch.set_num_threads(threads)
    return False
