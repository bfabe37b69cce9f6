"""Several rows judged one after the other, then put to the target again together, at one place each.

The second look costs two forwards for the whole group, on the KV that judging left behind. It gives samples of the
noise, and the first controls of each divergence, for a fraction of what judging costs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specproof.audit.noise import ScoredRow
from specproof.audit.score import Score, pair_margin
from specproof.audit.shapes import prefix_alone
from specproof.kv.transformers_cache import DynamicCache, stack_left_padded
from specproof.lm import LM

BATCH = 8  # rows of a group, and of any control in a batch
ALONE = 3
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
    (verification). "width-1": one row of the group, at ALONE places. "alone": one in every second group, with a fresh
    cache.
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
    row, state = rows[first // BATCH % len(rows)], states[first // BATCH % len(rows)]
    spread = [_spread(row.score, first + k) for k in range(ALONE)]
    for place in spread:
        for _, at, logits in _together(lm, [row], [state], [place], 1):
            samples.setdefault("width-1", []).extend(_moves(row, at, logits))
    if first // BATCH % 2 == 0 and spread[0] is not None:
        logits = prefix_alone(lm, row.ids[: row.prompt_len + spread[0]])
        samples["alone"] = _moves(row, spread[0], logits[None])
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
    return _spread(score, number)


def _spread(score: Score, number: int) -> int | None:
    """A place where the row has the target's choice: the first from the number's own on, and round again."""
    n = len(score.tokens)
    start = int(n * ((number + 1) * GOLDEN % 1))
    return next((i for i in (*range(start, n), *range(start)) if score.tokens[i] == score.choices[i]), None)


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
