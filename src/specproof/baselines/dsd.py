"""DSD: rows padded on the left again after every round, so that they end at one column.

Written anew from the paper's description. With every defect off, KV is moved with the padding, and the loop is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specproof.baselines import rounds


@dataclass(frozen=True, slots=True)
class Dsd:
    """Each switch is one defect; the paper's loop has draft_bonus, no_mask, implicit_positions and not_unpadded.

    draft_bonus: the token behind the accepted drafts is the draft's, not the target's.
    implicit_positions: no position ids are given, so the model makes up its own.
    no_mask: no mask is given: padding is visible.
    not_realigned: tokens and mask are padded anew, but the KV stays where it was.
    not_unpadded: padding is added every round and never taken off: rows only get wider.
    mask_by_value: whatever equals `pad_id` counts as padding, content too (the original pads with 0, `<unk>`).
    early_stop: the batch ends with its fastest row; slower rows are cut short.
    recompute: no KV is kept; each round feeds whole rows. Wasteful, but no defect.
    """

    num_draft_tokens: int = 4
    max_new_tokens: int = 32
    pad_id: int = 0
    draft_bonus: bool = False
    implicit_positions: bool = False
    no_mask: bool = False
    not_realigned: bool = False
    not_unpadded: bool = False
    mask_by_value: bool = False
    early_stop: bool = False
    recompute: bool = False

    def generate(
        self, target: rounds.HFModel, draft: rounds.HFModel, prompts: Sequence[Sequence[int]]
    ) -> list[list[int]]:
        """Emitted ids of each row. prompts: at least one id each."""
        ends, k, cache = rounds.end_ids(target), self.num_draft_tokens, None
        rows = [list(prompt) for prompt in prompts]
        emitted: list[list[int]] = [[] for _ in rows]
        drafting = rounds.Drafting(draft, len(rows), self.pad_id)
        padding = [max(map(len, rows)) - len(row) for row in rows]
        if max(map(len, rows)) > 1 and not self.recompute:
            ids, mask = self._rectangle([row[:-1] for row in rows], padding, target.device)
            _, cache = self._forward(target, ids, mask, None)
        while True:
            done = [rounds.finished(new, self.max_new_tokens, ends) for new in emitted]
            if all(done) or (self.early_stop and any(done)):
                return [rounds.cut(new, self.max_new_tokens, ends) for new in emitted]
            proposed = drafting.propose(rows, k + self.draft_bonus).to(target.device)
            drafts = proposed[:, :k]  # (B, K)
            fed = [row + new for row, new in zip(rows, drafts.tolist(), strict=True)]
            ids, mask = self._rectangle(fed, padding, target.device)  # (B, padding + content + K)
            if not self.recompute:
                ids = ids[:, -k - 1 :]
            logits, cache = self._forward(target, ids, mask, cache)
            choices = logits[:, -k - 1 :].argmax(-1)  # (B, K + 1)
            own = proposed if self.draft_bonus else choices
            gained = [0] * len(rows)
            for i, count in enumerate(rounds.accepted(drafts, choices)):
                if not done[i]:
                    new = [*drafts[i, :count].tolist(), int(own[i, count])]
                    gained[i] = len(new)
                    rows[i] += new
                    emitted[i] += new
            before = padding
            padding = [p + max(gained) - n for p, n in zip(before, gained, strict=True)]
            if not self.not_unpadded:
                padding = [p - min(padding) for p in padding]
            if cache is not None:
                self._move(cache, before, padding, [len(row) for row in rows])

    def _rectangle(
        self, rows: Sequence[Sequence[int]], padding: Sequence[int], device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """ids and mask, both (B, padding + content), the same in every row."""
        ids, mask = [], []
        for row, count in zip(rows, padding, strict=True):
            ids.append([self.pad_id] * count + list(row))
            mask.append([False] * count + [not self.mask_by_value or token != self.pad_id for token in row])
        return torch.tensor(ids, device=device), torch.tensor(mask, device=device)

    def _forward(self, target: rounds.HFModel, ids: Tensor, mask: Tensor, cache: object) -> tuple[Tensor, Any]:
        position_ids = None if self.implicit_positions else rounds.positions(mask, ids.shape[1])
        given = None if self.no_mask else mask
        return rounds.forward(target, ids, given, position_ids, cache, use_cache=not self.recompute)

    def _move(self, cache: Any, before: Sequence[int], padding: Sequence[int], lengths: Sequence[int]) -> None:
        """Column c of a row comes from where its token was: shifted by the change of the row's padding."""
        width = padding[0] + lengths[0] - 1  # all but the pending token
        device = cache.layers[0].keys.device
        shift = torch.tensor([0 if self.not_realigned else b - p for b, p in zip(before, padding, strict=True)])
        source = torch.arange(width)[None] + shift[:, None]  # (B, width)
        source = source.clamp(0, cache.layers[0].keys.shape[-2] - 1).to(device)
        for layer in cache.layers:
            for name in ("keys", "values"):
                old = getattr(layer, name)  # (B, heads, L, D)
                index = source[:, None, :, None].expand(-1, old.shape[1], -1, old.shape[3])
                setattr(layer, name, old.gather(2, index))
