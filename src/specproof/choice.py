"""Choosing tokens: one pure rule for target and draft, so that verification is equality."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Ban:
    """Ids that cannot be chosen in one row of the logits."""

    row: int
    ids: Sequence[int]


def choose(logits: Tensor, bans: Sequence[Ban] = ()) -> Tensor:
    """Greedy: the lowest id among the largest logits. logits (M, V), not changed -> (M,) long, on the same device."""
    if bans:
        rows = torch.tensor([ban.row for ban in bans for _ in ban.ids], device=logits.device)
        ids = torch.tensor([i for ban in bans for i in ban.ids], device=logits.device)
        logits = logits.index_put((rows, ids), logits.new_tensor(-torch.inf))
    return logits.argmax(-1)
