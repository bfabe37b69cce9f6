"""The two places where a Transformers model meets our KV memory: its cache and its attention function.

And Transformers' own cache, as the judges use it: kept, and put together from several rows.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.cache_utils import Cache, DynamicCache

from specproof.errors import UnsupportedModelError
from specproof.kv.attention import AttentionPlan, Blocks
from specproof.kv.cells import Cells
from specproof.numerics.rule import BLOCK

ATTENTION_NAME = "specproof"
COMPILED_ATTENTION_NAME = "specproof-compiled"

# Arguments of other models' attention that change its result and that we do not compute.
_UNSUPPORTED = ("s_aux", "position_bias", "cu_seq_lens_q", "block_mask")


class _OfOneForward(Cache):
    """A cache that tells a model nothing of lengths: positions are always given, nothing may be derived from them."""

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0


class StepCache(_OfOneForward):
    """What a model sees as its cache during one forward: `update` writes into cells and returns all of them.

    index: (N,) long, the cell of each token; tokens behind these are not kept. The keys and values returned are views
    (rows, H, capacity, D); which of their cells a query may see is the attention plan's business. gathered: None, or
    (rows, L) long, cells to return instead, copied.
    """

    def __init__(self, cells: Cells, index: Tensor, plan: AttentionPlan, gathered: Tensor | None = None) -> None:
        super().__init__(layers=[])
        self.cells = cells
        self.index = index
        self.plan = plan
        self.gathered = gathered

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args, **kwargs
    ) -> tuple[Tensor, Tensor]:
        keys, values = _by_head(key_states), _by_head(value_states)
        count = self.index.shape[0]
        if key_states.shape[0] == 1 and count < keys.shape[1]:
            keys, values = keys.narrow(1, 0, count), values.narrow(1, 0, count)
        self.cells.write(layer_idx, self.index, keys, values)
        return self.cells.view(layer_idx) if self.gathered is None else self.cells.gather(layer_idx, self.gathered)


class _PassedOn(_OfOneForward):
    """What compiled layers see as their cache: nothing of a step, so that one graph serves all steps and layers.

    Keys and values go on to the attention operator, which writes them (see `RunningStep`).
    """

    def __init__(self) -> None:
        super().__init__(layers=[])

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args, **kwargs
    ) -> tuple[Tensor, Tensor]:
        return key_states, value_states


PASSED_ON = _PassedOn()


class RunningStep:
    """A step as compiled layers and the operators in them know it (`specproof.numerics.opaque.Running`).

    heads: query heads of the layer that attended last; None if its attention is none that a graph can hold.
    """

    def __init__(self, kv: StepCache, count: int) -> None:
        """count: tokens of the forward."""
        self.layer = 0
        self.heads: int | None = None
        self._kv = kv
        held = (
            kv.plan.numerics.least_tokens <= count <= (kv.plan.numerics.block or BLOCK)
            and kv.gathered is None
            and kv.plan.kind == "sdpa"
            and kv.index.device.type == "cpu"
        )
        self._masks: dict[tuple, tuple[Tensor, ...]] = {}  # by what they depend on
        self._places = kv.plan.side_by_side(kv.index, kv.cells.rows, kv.cells.capacity, count) if held else None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, softcap: float | None) -> Tensor:
        self.heads = query.shape[1] if softcap is None and query.shape[3] == value.shape[3] else None
        keys, values = self._kv.update(key, value, self.layer)
        return self._kv.plan.attend(self.layer, query, keys, values, scale, softcap)

    def blocks(self, heads: int, most: int) -> Blocks | None:
        cells, plan, places = self._kv.cells, self._kv.plan, self._places
        if places is None or len(plan.blocks) > most or self.layer not in cells.keys:
            return None
        keys, values = cells.of_rows(self.layer, places.first, places.count)
        alike = plan.windows[self.layer], heads, keys.shape[0]
        masks = self._masks.get(alike)
        if masks is None:
            groups = heads // keys.shape[0]
            masks = tuple(plan.mask(i, self.layer, groups, keys.dtype, keys.device) for i in range(len(plan.blocks)))
            self._masks[alike] = masks
        return Blocks(keys, values, places.index, places.order, places.queries, masks)


def growing_cache() -> DynamicCache:
    """Transformers' own cache, empty; windowed layers keep every position too, so that it can be cut anywhere."""
    return DynamicCache()


def stack_left_padded(caches: Sequence[DynamicCache], lengths: Sequence[int]) -> DynamicCache:
    """One cache of all rows (batch 1 each): row i's first lengths[i] positions, zeros before them. A copy."""
    longest, stacked = max(lengths), DynamicCache()
    layers: Any = zip(*(cache.layers for cache in caches), strict=True)
    for index, of_rows in enumerate(layers if longest else ()):
        like = of_rows[0]
        shape = (len(caches), like.keys.shape[1], longest)
        keys, values = (like.keys.new_zeros(*shape, part.shape[-1]) for part in (like.keys, like.values))
        for row, (layer, length) in enumerate(zip(of_rows, lengths, strict=True)):
            keys[row, :, longest - length :] = layer.keys[0, :, :length]
            values[row, :, longest - length :] = layer.values[0, :, :length]
        stacked.update(keys, values, index)
    return stacked


def _by_head(states: Tensor) -> Tensor:
    """(b, H, n, D) -> (H, b * n, D), tokens in the order of `ids.flatten()`."""
    return states.squeeze(0) if states.shape[0] == 1 else states.transpose(0, 1).flatten(1, 2)


def _attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    attention_plan: AttentionPlan | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    name = type(module).__name__
    if attention_plan is None:
        raise UnsupportedModelError(f"{name} does not pass keyword arguments on to its attention")
    _refuse(name, attention_mask, kwargs)
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int) or not 0 <= layer < len(attention_plan.windows):
        counted = len(attention_plan.windows)
        raise UnsupportedModelError(f"{name} is layer {layer}, but the config counts {counted} layers")
    window = kwargs.get("sliding_window", attention_plan.windows[layer])
    if window != attention_plan.windows[layer]:
        raise UnsupportedModelError(
            f"{name} {layer} has a window of {window}, but its config gives {attention_plan.windows[layer]}"
        )
    return attention_plan.attend(layer, query, key, value, scaling, softcap), None


def _compiled_attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    attention_plan: Blocks | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Windows are not compared here: a forward that is not compiled comes before (see `Compilation`)."""
    _refuse(type(module).__name__, attention_mask, kwargs)
    if attention_plan is not None:
        return attention_plan.attend(query, key, value, scaling), None
    return torch.ops.specproof.attend(query, key, value, scaling, softcap), None


def _refuse(name: str, attention_mask: Tensor | None, others: dict[str, Any]) -> None:
    """Raises UnsupportedModelError for what the attention of module `name` brings and ours does not compute."""
    for argument in _UNSUPPORTED:
        if others.get(argument) is not None:
            raise UnsupportedModelError(f"{name} uses {argument} in its attention, which is not supported")
    if attention_mask is not None:  # for our attention Transformers makes none
        raise UnsupportedModelError(f"{name} brings an attention mask of its own, which is not supported")


AttentionInterface.register(ATTENTION_NAME, _attention_forward)
AttentionInterface.register(COMPILED_ATTENTION_NAME, _compiled_attention_forward)
