"""Plain against plain: the target alone at batch 1 against the target alone in a batch. The floor of any equality.

Both without speculation, with the model's own forward and cache; the batch is padded on the left.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from specproof.audit.compare import first_difference, rate
from specproof.audit.score import first_choice
from specproof.audit.trace_row import Trace
from specproof.lm import LM
from specproof.reference import decode_reference


@dataclass(frozen=True, slots=True)
class PlainFloor:
    """batch_size: of the largest batch. rows, equal: rows decoded both ways, and those that agree in every token.

    matched, length: tokens likewise.
    """

    batch_size: int
    rows: int
    equal: int
    matched: int
    length: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "batch_size": self.batch_size,
            "exact_match": rate(self.equal, self.rows),
            "partial_match": rate(self.matched, self.length),
        }


def measure_floor(lm: LM, traces: Sequence[Trace], lengths: Sequence[int], batch_size: int) -> PlainFloor | None:
    """Decode the prompts anew, each to as many tokens as its row has; None without rows."""
    work = [(trace, length) for trace, length in zip(traces, lengths, strict=True) if length]
    if not work:
        return None
    equal = matched = total = 0
    for at in range(0, len(work), batch_size):
        part = work[at : at + batch_size]
        prompts = [trace.prompt_ids for trace, _ in part]
        together = _decode_batch(lm, prompts, max(length for _, length in part))
        for (trace, length), batched in zip(part, together, strict=True):
            request = replace(trace.request, max_new_tokens=length, min_new_tokens=0, stop=(), request_id=None)
            alone = decode_reference(lm, request).token_ids
            first = first_difference(alone, batched[: len(alone)])
            equal += first is None
            matched += len(alone) if first is None else first
            total += len(alone)
    return PlainFloor(min(batch_size, len(work)), len(work), equal, matched, total)


@torch.inference_mode()
def _decode_batch(lm: LM, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Greedy, left-padded, `count` tokens of every row: what follows a stop is cut by whoever compares."""
    longest, device = max(map(len, prompts)), lm.device
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    state: object = None
    columns = torch.tensor([longest - 1], device=device)
    found = []
    for _ in range(count):
        logits, state = lm.plain_forward(ids, state, columns, mask, positions)
        ids = first_choice(logits[:, -1])[:, None]
        found.append(ids[:, 0].tolist())
        mask = torch.cat([mask, mask.new_ones(len(prompts), 1)], dim=1)
        positions = positions[:, -1:] + 1
        columns = torch.tensor([0], device=device)
    return [list(row) for row in zip(*found, strict=True)]
