"""What the loops share: a forward, drafting, the accept rule, and when a row is done. Nothing here is broken."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

HFModel = Any  # a Transformers causal LM


@torch.inference_mode()
def forward(
    model: HFModel, ids: Tensor, mask: Tensor | None, position_ids: Tensor | None, cache: Any, use_cache: bool = True
) -> tuple[Tensor, Any]:
    """ids (B, n), mask (B, cached + n), 4-D or None, position_ids (B, n) or None -> logits (B, n, V), the cache."""
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    given = {name: cache}
    if mask is not None:
        given["attention_mask"] = mask.long() if mask.ndim == 2 else mask
    if position_ids is not None:
        given["position_ids"] = position_ids
    out = model(input_ids=ids, use_cache=use_cache, **given)
    return out.logits, out.get(name)


def positions(mask: Tensor, n: int) -> Tensor:
    """Of the last n columns, counted along the visible ones. mask (B, L) -> (B, n)."""
    return (mask.long().cumsum(1) - 1).clamp(min=0)[:, -n:]


def pad_left(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """ids and mask, both (B, longest row)."""
    width = max(map(len, rows))
    ids = torch.tensor([[pad_id] * (width - len(row)) + list(row) for row in rows], dtype=torch.long, device=device)
    mask = torch.tensor([[False] * (width - len(row)) + [True] * len(row) for row in rows], device=device)
    return ids.reshape(len(rows), width), mask.reshape(len(rows), width)


class Drafting:
    """The draft's greedy continuations. What it was fed stays in its cache; its own drafts are hidden after each round,
    as masked holes. Nothing here is broken."""

    def __init__(self, model: HFModel, batch_size: int, pad_id: int) -> None:
        self._model, self._pad_id = model, pad_id
        self._fed = [0] * batch_size
        self._mask = torch.zeros(batch_size, 0, dtype=torch.bool, device=model.device)  # (B, L)
        self._cache: Any = None

    def propose(self, rows: Sequence[Sequence[int]], count: int) -> Tensor:
        """What follows each row: (B, count). Of a row that has not grown since the last round it means nothing."""
        new = [row[fed:] for row, fed in zip(rows, self._fed, strict=True)]
        ids, live = pad_left(new, self._pad_id, self._model.device)
        self._fed = [len(row) for row in rows]
        kept = mask = torch.cat([self._mask, live], 1)
        tokens = []
        for _ in range(count):
            logits, self._cache = forward(self._model, ids, mask, positions(mask, ids.shape[1]), self._cache)
            ids = logits[:, -1:].argmax(-1)  # (B, 1)
            mask = torch.cat([mask, mask.new_ones(len(rows), 1)], 1)
            tokens.append(ids)
        self._mask = torch.cat([kept, kept.new_zeros(len(rows), count - 1)], 1)  # the last draft was not fed
        return torch.cat(tokens, 1)


def accepted(drafts: Tensor, choices: Tensor) -> list[int]:
    """Drafts of each row before the first that is not the target's choice. drafts (B, K), choices (B, K + 1)."""
    return (drafts == choices[:, :-1]).long().cumprod(1).sum(1).tolist()


def end_ids(model: HFModel) -> frozenset[int]:
    found = model.generation_config.eos_token_id
    return frozenset() if found is None else frozenset([found] if isinstance(found, int) else found)


def finished(emitted: Sequence[int], limit: int, ends: frozenset[int]) -> bool:
    return len(emitted) >= limit or any(token in ends for token in emitted)


def cut(emitted: Sequence[int], limit: int, ends: frozenset[int]) -> list[int]:
    """Up to the limit and the first end token, which is kept."""
    kept = list(emitted[:limit])
    at = next((i for i, token in enumerate(kept) if token in ends), len(kept))
    return kept[: at + 1]
