"""Hooks on a Hugging Face model: what each forward was given, and what its layers then really used."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from specproof.errors import UnsupportedModelError
from specproof.layers import decoder_layers
from specproof.lm import HFModel


@dataclass(frozen=True, slots=True)
class Seen:
    """One forward. cached: columns in the cache before it. B rows of n tokens.

    ids: (B, n). position_ids, visible: (B, n) and (B, n, cached + n) as the layers used them, whoever made them up;
    position_ids is None where the model has none. gave_positions, gave_mask: whether the loop gave them.
    """

    step: int
    ids: np.ndarray
    cached: int
    position_ids: np.ndarray | None
    visible: np.ndarray
    gave_positions: bool
    gave_mask: bool


class Watch:
    """begin(cache) before each forward, end(seen, cache, choices) after; choices: (B, m) sets, of the last m tokens."""

    def __init__(
        self,
        model: HFModel,
        layer: int,
        begin: Callable[[Any], int],
        end: Callable[[Seen, Any, list[list[frozenset[int]]]], None],
    ) -> None:
        self._model, self._begin, self._end = model, begin, end
        self._layer = decoder_layers(model)[layer]
        self._arguments, self._inner = inspect.signature(model.forward), inspect.signature(self._layer.forward)
        self._used: dict[str, Any] = {}
        self._cached = self._step = 0
        self._handles: list[Any] = []

    def start(self) -> None:
        self._handles = [
            self._model.register_forward_pre_hook(self._before, with_kwargs=True),
            self._layer.register_forward_pre_hook(self._inside, with_kwargs=True),
            self._model.register_forward_hook(self._after, with_kwargs=True),
        ]

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _given(self, args: tuple, kwargs: dict) -> dict[str, Any]:
        bound = self._arguments.bind_partial(*args, **kwargs).arguments
        return {**bound, **bound.get("kwargs", {})}

    def _before(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        given = self._given(args, kwargs)
        self._used = {}
        self._cached = self._begin(_cache(given))

    def _inside(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        bound = self._inner.bind_partial(*args, **kwargs).arguments
        used = {**bound, **bound.get("kwargs", {})}
        self._used = {name: used.get(name) for name in ("attention_mask", "position_ids")}

    def _after(self, module: nn.Module, args: tuple, kwargs: dict, out: Any) -> None:
        given = self._given(args, kwargs)
        ids = given.get("input_ids")
        if ids is None:
            raise UnsupportedModelError("the probe needs input_ids; this loop feeds embeddings")
        rows, n = ids.shape
        positions = self._used.get("position_ids")
        if positions is None:
            positions = given.get("position_ids")
        seen = Seen(
            self._step,
            ids.cpu().numpy(),
            self._cached,
            None if positions is None else positions.expand(rows, n).cpu().numpy(),
            _visible(self._used.get("attention_mask"), rows, n, self._cached + n),
            given.get("position_ids") is not None,
            given.get("attention_mask") is not None,
        )
        self._step += 1
        cache = _cache(given)
        self._end(seen, cache if cache is not None else _cache(out), _choices(out.logits))


def _cache(values: Any) -> Any:
    found = values.get("cache")
    return found if found is not None else values.get("past_key_values")


def _visible(mask: Tensor | None, rows: int, n: int, total: int) -> np.ndarray:
    """(rows, n, total) from what a layer was given: None (causal), (B, total), or (B, heads, n, total)."""
    causal = torch.ones(n, total, dtype=torch.bool).tril(total - n)
    if mask is None:
        return causal.expand(rows, n, total).numpy()
    mask = mask.detach().cpu()
    if mask.ndim == 2:  # flash attention: padding only
        return (mask.bool()[:, None, -total:] & causal).expand(rows, n, total).numpy()
    if mask.ndim != 4 or mask.shape[-1] < total:
        raise UnsupportedModelError(f"the probe cannot read a mask of shape {tuple(mask.shape)} for {total} columns")
    mask = mask[:, 0, :, :total]
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    return seen.expand(rows, n, total).numpy()


def _choices(logits: Tensor) -> list[list[frozenset[int]]]:
    """Per row and column of the logits, the tokens with the highest one."""
    best = logits == logits.amax(-1, keepdim=True)  # (B, m, V)
    found: list[list[set[int]]] = [[set() for _ in range(logits.shape[1])] for _ in range(logits.shape[0])]
    for row, column, token in best.nonzero().tolist():
        found[row][column].add(token)
    return [[frozenset(tokens) for tokens in row] for row in found]
