"""Attention of one forward: which cells each query sees, and the products, grouped into blocks of rows.

Legend: N tokens of the forward, R rows of a block, m queries per row, L visible places, H query heads, Hkv key heads,
G = H / Hkv, D head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

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
        # The query heads of one KV head are folded into the query length, so that K and V are never copied per head.
        tokens = _take(tokens, 1, block.queries).view(kv_heads, groups, count, m, -1).permute(2, 0, 1, 3, 4)
        rows = groups * m
        more = self.numerics.query_rows(rows) - rows
        folded = self._with_rows(number, tokens, more) if more else tokens.reshape(count, kv_heads, rows, -1)
        mask = self._mask(number, self.windows[layer], groups, more, folded.dtype, folded.device)
        if self.kind == "eager" or softcap is not None:
            out = _eager(folded, keys, values, mask, scale, softcap)
        else:
            out = scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scale)
        if more:
            out = out.narrow(2, 0, rows)
        out = out.view(count, kv_heads, groups, m, -1)
        return out.permute(0, 3, 1, 2, 4).reshape(count * m, kv_heads * groups, -1)

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

    def _mask(
        self, number: int, window: int | None, groups: int, more: int, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """(R, 1, G * m + more, L): the rows that were added see all places, and nobody sees them."""
        key = (number, window, groups, dtype, device)
        if key not in self.masks:
            mask = self.blocks[number].mask(window, dtype).repeat(1, 1, groups, 1)
            self.masks[key] = pad(mask, (0, 0, 0, more)).to(device)
        return self.masks[key]


def _take(tensor: Tensor, dim: int, index: slice | Tensor) -> Tensor:
    """Along one dimension; a slice, of step 1, copies nothing."""
    if isinstance(index, slice):
        size = tensor.shape[dim]
        start, end, _ = index.indices(size)
        return tensor if end - start == size else tensor.narrow(dim, start, end - start)
    return tensor.index_select(dim, index.to(tensor.device, non_blocking=True))


def _eager(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float | None, softcap: float | None
) -> Tensor:
    scores = query @ keys.transpose(2, 3) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    weights = torch.softmax(scores + mask, dim=-1, dtype=torch.promote_types(query.dtype, torch.float32))
    return weights.to(query.dtype) @ values
