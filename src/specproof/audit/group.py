"""Several rows judged one after the other, then put to the target again together, at one place each.

The second look costs two forwards for the whole group, on the KV that judging left behind. It gives samples of the
noise, and the first controls of each divergence, for a fraction of what judging costs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specproof.audit.noise import ScoredRow
from specproof.audit.score import pair_margin
from specproof.audit.shapes import prefix_alone
from specproof.kv.transformers_cache import DynamicCache, stack_left_padded
from specproof.lm import LM

BATCH = 8  # rows of a group, and of any control in a batch
GOLDEN = 0.6180339887498949  # its multiples modulo 1 are spread evenly, however many there are


@dataclass(frozen=True, slots=True)
class JudgedRow:
    """place: an output index, that of the largest divergence where there is one; None for a row without output.

    controls: shape -> logit of the target's choice minus that of the row's token at `place`, in that shape.
    """

    row: ScoredRow
    place: int | None
    controls: Mapping[str, float]


def judge_again(
    lm: LM, rows: Sequence[ScoredRow], states: Sequence[DynamicCache], first: int, width: int
) -> tuple[list[JudgedRow], dict[str, list[float]]]:
    """The second look at a group; and samples of the noise (shape -> moves of margins), divergences left out.

    states: the KV of each row's ids. first: how many rows were judged before this group. width: K + 1.
    "batch": one token of each row (plain decoding in a batch). "batch-width-n": the last n up to the place
    (verification). "width-1" and "alone" (a fresh cache): of one row of the group, and of one of every second group.
    """
    places = [_place(row, first + k) for k, row in enumerate(rows)]
    controls: list[dict[str, float]] = [{} for _ in rows]
    samples: dict[str, list[float]] = {}
    for name, n in (("batch", 1), (f"batch-width-{width}", width)):
        for k, at, logits in _together(lm, rows, states, places, n):
            row, place = rows[k], places[k]
            if place is not None and _differs(row, place):
                controls[k][name] = pair_margin(logits[-1], row.score.choices[place], row.score.tokens[place])
            samples.setdefault(name, []).extend(_moves(row, at, logits))
    able = [k for k, place in enumerate(places) if place is not None]
    if able:
        k = able[first // len(rows) % len(able)]
        row = rows[k]
        for _, at, logits in _together(lm, [row], [states[k]], [places[k]], 1):
            samples["width-1"] = _moves(row, at, logits)
        if first // len(rows) % 2 == 0:
            last = row.prompt_len + places[k]  # type: ignore[operator]
            samples["alone"] = _moves(row, last - row.prompt_len, prefix_alone(lm, row.ids[:last])[None])
    return [JudgedRow(*parts) for parts in zip(rows, places, controls, strict=True)], samples


@torch.inference_mode()
def _together(
    lm: LM, rows: Sequence[ScoredRow], states: Sequence[DynamicCache], places: Sequence[int | None], width: int
) -> Iterator[tuple[int, int, Tensor]]:
    """(row, output index of the first logits, logits (n, V)) of each row: its last `width` tokens up to its place.

    A row that has fewer tokens is left out. Rows are padded on the left; alone, a row has no padding.
    """
    ends = {k: rows[k].prompt_len + place for k, place in enumerate(places) if place is not None}
    starts = {k: end - width for k, end in ends.items() if end >= width}
    if not starts:
        return
    longest, device = max(starts.values()), lm.device
    state = stack_left_padded([states[k] for k in starts], list(starts.values()))
    mask = torch.tensor([[0] * (longest - s) + [1] * (s + width) for s in starts.values()], device=device)
    positions = torch.tensor([range(s, s + width) for s in starts.values()], device=device)
    ids = torch.tensor([rows[k].ids[s : s + width] for k, s in starts.items()], device=device)
    logits, _ = lm.plain_forward(ids, state, None, mask if len(starts) > 1 else None, positions)  # (rows, width, V)
    for k, found in zip(starts, logits, strict=True):
        at = starts[k] - (rows[k].prompt_len - 1)
        yield k, max(0, at), found[max(0, -at) :]


def _place(row: ScoredRow, number: int) -> int | None:
    """The largest divergence; without one, any place: the rows take theirs evenly over their lengths."""
    score = row.score
    if score.differing:
        return max(score.differing, key=lambda i: (score.margins[i], -i))
    return int(len(score.tokens) * ((number + 1) * GOLDEN % 1)) if score.tokens else None


def _differs(row: ScoredRow, place: int) -> bool:
    return row.score.tokens[place] != row.score.choices[place]


def _moves(row: ScoredRow, at: int, logits: Tensor) -> list[float]:
    """logits (n, V) for output indices at, at + 1 ...: how far each margin moved. A divergence is no sample: rows
    diverge where the noise is large."""
    score = row.score
    return [
        abs(pair_margin(found, score.choices[i], score.others[i]) - score.gaps[i])
        for i, found in enumerate(logits, start=at)
        if i >= len(score.tokens) or not _differs(row, i)
    ]
