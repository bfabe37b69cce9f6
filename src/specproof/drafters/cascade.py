"""Two drafters in turn: what costs nothing first, a model where that has nothing."""

from collections.abc import Sequence
from typing import Any

import torch

from specproof.drafters.drafter import Confidence, DeviceDrafts, DraftRow, GoOn, HostDrafts, StatefulDrafter
from specproof.drafters.model import ModelDrafter
from specproof.drafters.prompt_lookup import PromptLookup
from specproof.drafters.suffix import Suffix


class Cascade:
    """Rows for which `first` finds drafts take them; the others are drafted for by `model`.

    model: a ModelDrafter, or any model that an engine takes as its draft and makes one of.

    The model reads what a row emitted meanwhile when it drafts for that row again: its KV holds committed tokens only.
    """

    def __init__(self, first: PromptLookup | Suffix, model: Any) -> None:
        self.first, self.model = first, model

    @property
    def go_on(self) -> GoOn | None:
        return self.model.go_on

    @go_on.setter
    def go_on(self, go_on: GoOn | None) -> None:
        self.model.go_on = go_on

    def propose(self, rows: list[DraftRow], max_tokens: int) -> HostDrafts | DeviceDrafts:
        found = self.first.propose(rows, max_tokens)
        without = [i for i, ids in enumerate(found.ids) if not ids]
        drafted = self.model.propose([rows[i] for i in without], max_tokens)
        if not any(drafted.counts):
            return found
        counts, confidence = [len(ids) for ids in found.ids], list(found.confidence)
        for n, i in enumerate(without):
            counts[i] = drafted.counts[n]
            confidence[i] = Confidence("model") if drafted.confidence is None else drafted.confidence[n]
        ids = _rectangle(found.ids, max(counts)).to(drafted.ids.device, non_blocking=True)
        width = drafted.ids.shape[1]
        place = torch.tensor(without, dtype=torch.long).to(ids.device, non_blocking=True)
        ids[:, :width].index_copy_(0, place, drafted.ids)
        return DeviceDrafts(ids, counts, confidence)

    def commit(self, accepted: dict[str, int]) -> None:
        self.model.commit(accepted)  # which heeds only the rows that it drafted for
        if isinstance(self.first, StatefulDrafter):
            self.first.commit(accepted)

    def release(self, request_id: str) -> None:
        self.model.release(request_id)
        if isinstance(self.first, StatefulDrafter):
            self.first.release(request_id)


def model_in(drafter: object) -> ModelDrafter | None:
    """The model that drafts, alone or in a cascade."""
    drafter = drafter.model if isinstance(drafter, Cascade) else drafter
    return drafter if isinstance(drafter, ModelDrafter) else None


def _rectangle(ids: Sequence[Sequence[int]], width: int) -> torch.Tensor:
    return torch.tensor([[*row, *(0,) * (width - len(row))] for row in ids], dtype=torch.long)
