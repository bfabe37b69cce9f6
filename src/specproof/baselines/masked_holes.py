"""Rejected drafts stay in the cache as masked holes; positions are counted along the mask. No KV is ever moved.

    columns   0  1  2  3  4  5  6  7  8
    row 0     a  b  c  .  d  e  x  x  f      x: rejected, hidden
    row 1     a  b  .  .  c  x  x  x  d      .: padding behind a shorter prompt, hidden

The paper says that masking cannot work without compaction. It is exact; its price is the dead columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specproof.baselines import rounds


@dataclass(frozen=True, slots=True)
class MaskedHoles:
    """num_draft_tokens: K. pad_id: the id under the padding; any will do, as it is hidden."""

    num_draft_tokens: int = 4
    max_new_tokens: int = 32
    pad_id: int = 0

    def generate(
        self, target: rounds.HFModel, draft: rounds.HFModel, prompts: Sequence[Sequence[int]]
    ) -> list[list[int]]:
        """Emitted ids of each row. prompts: at least one id each."""
        device, ends, k = target.device, rounds.end_ids(target), self.num_draft_tokens
        rows = [list(prompt) for prompt in prompts]
        emitted: list[list[int]] = [[] for _ in rows]
        drafting = rounds.Drafting(draft, len(rows), self.pad_id)
        width = max(len(row) for row in rows) - 1  # the last token of each prompt is fed with the first drafts
        known = [row[:-1] + [self.pad_id] * (width - len(row) + 1) for row in rows]
        mask = torch.tensor([[j < len(row) - 1 for j in range(width)] for row in rows], device=device)  # (B, L)
        mask, cache = mask.reshape(len(rows), width), None
        if width:
            ids = torch.tensor(known, device=device)
            _, cache = rounds.forward(target, ids, mask, rounds.positions(mask, width), None)
        while not all(rounds.finished(new, self.max_new_tokens, ends) for new in emitted):
            drafts = drafting.propose(rows, k).to(device)  # (B, K)
            pending = torch.tensor([row[-1:] for row in rows], device=device)
            mask = torch.cat([mask, mask.new_ones(len(rows), k + 1)], 1)
            ids = torch.cat([pending, drafts], 1)  # (B, K + 1)
            logits, cache = rounds.forward(target, ids, mask, rounds.positions(mask, k + 1), cache)
            choices = logits.argmax(-1)  # (B, K + 1)
            for i, count in enumerate(rounds.accepted(drafts, choices)):
                if rounds.finished(emitted[i], self.max_new_tokens, ends):
                    mask[i, -k - 1 :] = False  # a finished row is fed again; nothing of it stays
                    continue
                mask[i, mask.shape[1] - k + count :] = False
                new = [*drafts[i, :count].tolist(), int(choices[i, count])]
                rows[i] += new
                emitted[i] += new
        return [rounds.cut(new, self.max_new_tokens, ends) for new in emitted]
