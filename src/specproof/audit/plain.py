"""Plain against plain: the target alone at batch 1 against the target alone in a batch. The floor of any equality.

Both without speculation, with the model's own forward and cache; the batch is padded on the left.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from specproof.audit.agreement import Agreement, agreement
from specproof.audit.score import first_choice
from specproof.audit.shapes import left_padded
from specproof.audit.trace_row import Trace
from specproof.lm import LM
from specproof.reference import decode_reference


@dataclass(frozen=True, slots=True)
class PlainFloor:
    """found: how far batch `batch_size` agrees with batch 1."""

    batch_size: int
    found: Agreement

    def to_dict(self) -> dict[str, Any]:
        return {"batch_size": self.batch_size, **self.found.to_dict()}


def measure_floor(lm: LM, traces: Sequence[Trace], lengths: Sequence[int], batch_size: int) -> PlainFloor | None:
    """Decode the prompts anew, each to as many tokens as its row has; None without rows."""
    work = [(trace, length) for trace, length in zip(traces, lengths, strict=True) if length]
    if not work:
        return None
    pairs = []
    for at in range(0, len(work), batch_size):
        part = work[at : at + batch_size]
        prompts = [trace.prompt_ids for trace, _ in part]
        together = _decode_batch(lm, prompts, max(length for _, length in part))
        for (trace, length), batched in zip(part, together, strict=True):
            request = replace(trace.request, max_new_tokens=length, min_new_tokens=0, stop=(), request_id=None)
            alone = decode_reference(lm, request).token_ids
            pairs.append((batched[: len(alone)], alone))
    return PlainFloor(min(batch_size, len(work)), agreement(pairs))


@torch.inference_mode()
def _decode_batch(lm: LM, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Greedy, left-padded, `count` tokens of every row: what follows a stop is cut by whoever compares."""
    ids, mask, positions = left_padded(prompts, lm.device)
    state: object = None
    columns = torch.tensor([ids.shape[1] - 1], device=lm.device)
    found = []
    for _ in range(count):
        logits, state = lm.plain_forward(ids, state, columns, mask, positions)
        ids = first_choice(logits[:, -1])[:, None]
        found.append(ids[:, 0].tolist())
        mask = torch.cat([mask, mask.new_ones(len(prompts), 1)], dim=1)
        positions = positions[:, -1:] + 1
        columns = torch.tensor([0], device=lm.device)
    return [list(row) for row in zip(*found, strict=True)]
