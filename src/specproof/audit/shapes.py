"""The same prefixes through forwards of other shapes: one token at a time, in blocks, among other rows, alone.

Mathematically nothing changes; what changes is the order in which the kernels sum. Every function returns logits of
what follows ids[start], ids[start + 1], ... to the last of `count`.
"""

import copy
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from specproof.lm import LM

ONE_UP = {torch.bfloat16: torch.float32, torch.float16: torch.float32, torch.float32: torch.float64}


def in_blocks(lm: LM, ids: Sequence[int], start: int, count: int, width: int) -> Tensor:
    """Prefill ids[:start], then feed ids[start:] `width` at a time -> (count, V).

    The last block is filled with the tokens behind it, where there are any: it is `width` wide as in a real step.
    """
    state: object = None
    if start:
        _, state = lm.plain_forward(torch.tensor([ids[:start]], device=lm.device), None, _last(lm, start))
    found = []
    for at in range(start, start + count, width):
        logits, state = lm.plain_forward(torch.tensor([ids[at : at + width]], device=lm.device), state)
        found.append(logits[0])
    return torch.cat(found)[:count]


def prefix_alone(lm: LM, ids: Sequence[int]) -> Tensor:
    """One forward of these ids with a fresh cache -> (V,): what follows the last of them."""
    logits, _ = lm.plain_forward(torch.tensor([list(ids)], device=lm.device), None, _last(lm, len(ids)))
    return logits[0, -1]


def in_batch(lm: LM, rows: Sequence[Sequence[int]], starts: Sequence[int], count: int) -> Tensor:
    """Left-padded batch: prefill each row's ids[:start] (start >= 1), then feed one token of each row at a time.

    -> (B, count, V). Every row needs start + count ids.
    """
    device = lm.device
    ids, mask, positions = left_padded([row[:start] for row, start in zip(rows, starts, strict=True)], device)
    _, state = lm.plain_forward(ids, None, _last(lm, max(starts)), mask, positions)
    found = []
    for step in range(count):
        feed = torch.tensor([[row[start + step]] for row, start in zip(rows, starts, strict=True)], device=device)
        mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
        positions = torch.tensor([[start + step] for start in starts], device=device)
        logits, state = lm.plain_forward(feed, state, None, mask, positions)
        found.append(logits[:, -1])
    return torch.stack(found, dim=1)


def left_padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """ids, mask (1 at tokens) and position ids of rows that end at one column, each (B, longest)."""
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows], device=device)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=device)
    return ids, mask, (mask.cumsum(1) - 1).clamp(min=0)


def one_precision_up(lm: LM) -> LM | None:
    """The same weights computed in the next wider dtype; None for float64. The memory of a second model."""
    wider = ONE_UP.get(lm.dtype)
    if wider is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what its generation config asks for was said of the first one
        return LM(copy.deepcopy(lm.model).to(wider))  # type: ignore[arg-type]


def _last(lm: LM, length: int) -> Tensor:
    return torch.tensor([length - 1], device=lm.device)
