"""Attention of one forward: which cells each query sees, and the products, grouped into blocks of rows.

Legend: N tokens of the forward, R rows of a block, m queries per row, L visible places, H query heads, Hkv key heads,
G = H / Hkv, D head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from specproof.numerics.rule import PLAIN, Numerics


@dataclass(frozen=True)
class Block:
    """Rows whose queries are computed in one call.

    rows: which rows of the cells, a slice (no copy) or an index (R,). queries: which of the N tokens, a slice (no copy)
    or an index (R * m,); rows with fewer queries repeat one. columns: (R, m) the place of each query's own cell.
    first: (R,) first place that holds content, None where it is 0. length: L.
    """

    rows: slice | Tensor
    queries: slice | Tensor
    columns: Tensor
    first: Tensor | None
    length: int

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """Additive mask (R, 1, m, L): 0 where `first <= place <= column` and within the window, else -inf."""
        place = torch.arange(self.length, device=self.columns.device)
        column = self.columns[:, :, None]
        hidden = place > column
        if self.first is not None:
            hidden = hidden | (place < self.first[:, None, None])
        if window is not None:
            hidden = hidden | (place <= column - window)
        return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)[:, None]


class Blocks(NamedTuple):
    """All that one layer's attention needs in a forward whose blocks lie side by side: tensors alone.

    So a compiled graph can hold it. keys, values: (Hkv, S, capacity, D), the S rows of all blocks, no copy. index: (n,)
    where among these cells each of the first n tokens is kept. order: (N,) where each token's result lies among the
    blocks' results. queries: of each block, (R, m), which of the N tokens. masks: of each, (R, 1, G * m + added, L).
    """

    keys: Tensor
    values: Tensor
    index: Tensor
    order: Tensor
    queries: tuple[Tensor, ...]
    masks: tuple[Tensor, ...]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """Keep keys and values, (1, Hkv, N, D), in their cells, and attend. query: (1, H, N, D). -> (1, N, H, D)."""
        kv_heads, _, capacity, _ = self.keys.shape
        head = torch.arange(kv_heads, device=self.keys.device)[:, None]
        at = head, self.index // capacity, self.index % capacity
        self.keys[at] = key[0].narrow(1, 0, self.index.shape[0])
        self.values[at] = value[0].narrow(1, 0, self.index.shape[0])
        counts = [queries.shape[0] for queries in self.queries]
        rows = [self.keys], [self.values]
        if len(counts) > 1:
            rows = self.keys.split(counts, 1), self.values.split(counts, 1)
        parts = [
            _attend(query[0], queries, keys, values, mask, scale)
            for queries, mask, keys, values in zip(self.queries, self.masks, *rows, strict=True)
        ]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).index_select(0, self.order)[None]


def _attend(tokens: Tensor, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    """tokens: (H, N, D). queries: (R, m). keys, values: (Hkv, R, capacity, D). -> (R * m, H, D)."""
    count, m = queries.shape
    folded = _by_kv_head(tokens.index_select(1, queries.flatten()), len(keys), count).flatten(2, 3)
    rows = folded.shape[2]
    folded = pad(folded, (0, 0, 0, mask.shape[2] - rows))
    keys, values = (t.transpose(0, 1).narrow(2, 0, mask.shape[3]) for t in (keys, values))
    out = scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scale)
    return _by_query(out.narrow(2, 0, rows), m)


class SideBySide(NamedTuple):
    """Where the blocks of a forward lie, for all layers: the first of their rows, how many, the rest as in Blocks."""

    first: int
    count: int
    index: Tensor
    order: Tensor
    queries: tuple[Tensor, ...]


@dataclass
class AttentionPlan:
    """All blocks of one forward. order: where each token's result lies among the blocks' results, a slice or (N,).

    Queries behind these N, which some forwards need to be long enough, belong to nobody: they get zeros.
    Masks, and buffers for queries with rows added, are built once per forward, then shared by all layers.
    """

    blocks: Sequence[Block]
    order: slice | Tensor
    windows: tuple[int | None, ...]
    kind: str  # "sdpa" or "eager"
    numerics: Numerics = PLAIN  # how the blocks were cut; how the model's products are to be computed
    masks: dict[tuple, Tensor] = field(default_factory=dict)
    buffers: dict[tuple, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def side_by_side(self, index: Tensor, rows: int, capacity: int, count: int) -> SideBySide | None:
        """None if a block's rows are not the next neighbours of those of the block before.

        index: flat cells of the tokens that are kept. rows, capacity: of the cells. count: N.
        """
        spans = [range(*block.rows.indices(rows)) for block in self.blocks if isinstance(block.rows, slice)]
        if len(spans) < len(self.blocks) or any(one.stop != other.start for one, other in pairwise(spans)):
            return None
        first = spans[0].start
        queries = tuple(_index(block.queries, count).view(block.columns.shape) for block in self.blocks)
        order = _index(self.order, sum(map(torch.numel, queries)))
        if len(order) < count:
            order = pad(order, (0, count - len(order)))
        return SideBySide(first, spans[-1].stop - first, index - first * capacity if first else index, order, queries)

    def attend(
        self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scale: float | None, softcap: float | None
    ) -> Tensor:
        """query: (b, H, n, D), tokens in the order b, n. keys, values: (rows, Hkv, capacity, D). -> (b, n, H, D)."""
        b, heads, n, _ = query.shape
        tokens = query.squeeze(0) if b == 1 else query.transpose(0, 1).flatten(1, 2)  # (H, N, D)
        parts = [self._block(i, layer, tokens, keys, values, scale, softcap) for i in range(len(self.blocks))]
        result = parts[0] if len(parts) == 1 else torch.cat(parts)  # (sum of R * m, H, D)
        result = _take(result, 0, self.order)
        if len(result) < b * n:
            result = pad(result, (0, 0, 0, 0, 0, b * n - len(result)))
        return result.view(b, n, heads, -1).contiguous()  # some models take a view of it

    def _block(
        self,
        number: int,
        layer: int,
        tokens: Tensor,
        keys: Tensor,
        values: Tensor,
        scale: float | None,
        softcap: float | None,
    ) -> Tensor:
        block = self.blocks[number]
        keys = _take(keys, 0, block.rows).narrow(2, 0, block.length)
        values = _take(values, 0, block.rows).narrow(2, 0, block.length)
        count, m = block.columns.shape
        kv_heads = keys.shape[1]
        groups = tokens.shape[0] // kv_heads
        tokens = _by_kv_head(_take(tokens, 1, block.queries), kv_heads, count)
        rows = groups * m
        more = self.numerics.query_rows(rows) - rows
        folded = self._with_rows(number, tokens, more) if more else tokens.reshape(count, kv_heads, rows, -1)
        mask = self.mask(number, layer, groups, folded.dtype, folded.device)
        if self.kind == "eager" or softcap is not None:
            out = _eager(folded, keys, values, mask, scale, softcap)
        else:
            out = scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scale)
        return _by_query(out.narrow(2, 0, rows) if more else out, m)

    def _with_rows(self, number: int, tokens: Tensor, more: int) -> Tensor:
        """(R, Hkv, G, m, D) -> (R, Hkv, G * m + more, D), zeros added; good until the next layer asks."""
        key = (number, tokens.shape, tokens.dtype, tokens.device)
        if key not in self.buffers:
            count, kv_heads, groups, m, size = tokens.shape
            whole = tokens.new_zeros(count, kv_heads, groups * m + more, size)
            self.buffers[key] = whole, whole.narrow(2, 0, groups * m).unflatten(2, (groups, m))
        whole, own = self.buffers[key]
        own.copy_(tokens)
        return whole

    def mask(self, number: int, layer: int, groups: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """(R, 1, G * m + added, L): the rows that were added see all places, and nobody sees them."""
        key = (number, self.windows[layer], groups, dtype, device)
        if key not in self.masks:
            mask = self.blocks[number].mask(self.windows[layer], dtype).repeat(1, 1, groups, 1)
            rows = mask.shape[2]
            self.masks[key] = pad(mask, (0, 0, 0, self.numerics.query_rows(rows) - rows)).to(device)
        return self.masks[key]


def _by_kv_head(tokens: Tensor, kv_heads: int, count: int) -> Tensor:
    """(H, R * m, D) -> (R, Hkv, G, m, D): so the query heads of one key head become rows of one product with it.

    Keys and values are then never copied per head.
    """
    heads, queries, size = tokens.shape
    return tokens.view(kv_heads, heads // kv_heads, count, queries // count, size).permute(2, 0, 1, 3, 4)


def _by_query(out: Tensor, m: int) -> Tensor:
    """(R, Hkv, G * m, D) -> (R * m, H, D)"""
    count, kv_heads, rows, size = out.shape
    by_query = out.view(count, kv_heads, rows // m, m, size).permute(0, 3, 1, 2, 4)
    return by_query.reshape(count * m, kv_heads * (rows // m), size)


def _take(tensor: Tensor, dim: int, index: slice | Tensor) -> Tensor:
    """Along one dimension; a slice, of step 1, copies nothing."""
    if isinstance(index, slice):
        size = tensor.shape[dim]
        start, end, _ = index.indices(size)
        return tensor if end - start == size else tensor.narrow(dim, start, end - start)
    return tensor.index_select(dim, index.to(tensor.device, non_blocking=True))


def _index(index: slice | Tensor, size: int) -> Tensor:
    return _range(*index.indices(size)) if isinstance(index, slice) else index


@lru_cache(maxsize=1024)
def _range(start: int, end: int, step: int) -> Tensor:
    """On the CPU, where alone graphs hold blocks."""
    return torch.arange(start, end, step)


def _eager(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float | None, softcap: float | None
) -> Tensor:
    scores = query @ keys.transpose(2, 3) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    weights = torch.softmax(scores + mask, dim=-1, dtype=torch.promote_types(query.dtype, torch.float32))
    return weights.to(query.dtype) @ values
