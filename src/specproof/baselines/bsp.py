"""BSP: prompts padded on the right, every draft kept in the cache, the accept pattern written into the mask.

Written anew from the paper's description. With every defect off it is the masked-holes loop, and exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specproof.baselines import rounds


@dataclass(frozen=True, slots=True)
class Bsp:
    """Each switch is one defect; the paper's loop has `implicit_positions` and no stop.

    implicit_positions: no position ids are given, so the model makes up its own.
    rejected_visible: the accept pattern is not written into the mask: KV of rejected drafts stays visible.
    padding_visible: no mask is given at all: padding and rejected drafts are visible.
    draft_bonus: the token behind the accepted drafts is the draft's, not the target's.
    no_stop: rows run past their end token (outputs are not cut there).
    """

    num_draft_tokens: int = 4
    max_new_tokens: int = 32
    pad_id: int = 0
    implicit_positions: bool = False
    rejected_visible: bool = False
    padding_visible: bool = False
    draft_bonus: bool = False
    no_stop: bool = False

    def generate(
        self, target: rounds.HFModel, draft: rounds.HFModel, prompts: Sequence[Sequence[int]]
    ) -> list[list[int]]:
        """Emitted ids of each row. prompts: at least one id each."""
        device, k = target.device, self.num_draft_tokens
        ends = frozenset() if self.no_stop else rounds.end_ids(target)
        rows = [list(prompt) for prompt in prompts]
        emitted: list[list[int]] = [[] for _ in rows]
        drafting = rounds.Drafting(draft, len(rows), self.pad_id)
        width = max(len(row) for row in rows) - 1
        known = [row[:-1] + [self.pad_id] * (width - len(row) + 1) for row in rows]
        live = torch.tensor([[j < len(row) - 1 for j in range(width)] for row in rows], device=device)
        live, cache = live.reshape(len(rows), width), None  # (B, L): columns that hold content
        if width:
            _, cache = self._forward(target, torch.tensor(known, device=device), live, cache)
        while not all(rounds.finished(new, self.max_new_tokens, ends) for new in emitted):
            proposed = drafting.propose(rows, k + self.draft_bonus).to(device)
            drafts = proposed[:, :k]  # (B, K)
            pending = torch.tensor([row[-1:] for row in rows], device=device)
            live = torch.cat([live, live.new_ones(len(rows), k + 1)], 1)
            logits, cache = self._forward(target, torch.cat([pending, drafts], 1), live, cache)
            choices = logits.argmax(-1)  # (B, K + 1)
            own = proposed if self.draft_bonus else choices
            for i, count in enumerate(rounds.accepted(drafts, choices)):
                if rounds.finished(emitted[i], self.max_new_tokens, ends):
                    live[i, -k - 1 :] = False
                    continue
                if not self.rejected_visible:
                    live[i, live.shape[1] - k + count :] = False
                new = [*drafts[i, :count].tolist(), int(own[i, count])]
                rows[i] += new
                emitted[i] += new
        return [rounds.cut(new, self.max_new_tokens, ends) for new in emitted]

    def _forward(self, target: rounds.HFModel, ids: torch.Tensor, live: torch.Tensor, cache: object):
        position_ids = None if self.implicit_positions else rounds.positions(live, ids.shape[1])
        return rounds.forward(target, ids, None if self.padding_visible else live, position_ids, cache)
