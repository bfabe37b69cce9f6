"""The measured noise: how far a margin moves when only the shape of the forward changes.

At a position, the two best tokens of the judging pass have a margin. The same prefix is scored again in other shapes;
what that margin of the *same two tokens* moves by is a sample. A flip by rounding needs a move of at least the margin.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from specproof.audit.diagnose import LARGE
from specproof.audit.score import Score, pair_margin
from specproof.audit.shapes import in_batch, in_blocks, prefix_alone
from specproof.lm import LM

NUM_POSITIONS = 128  # sampled, over at most BATCH rows
BATCH = 8


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """A row as the target judged it. ids: prompt and judged output."""

    ids: tuple[int, ...]
    prompt_len: int
    score: Score


@dataclass(frozen=True, slots=True)
class Noise:
    """samples: shape -> absolute moves of margins, in logits. step: one unit in the last place of the largest logit.

    threshold: the largest sample, and never less than a step: closer than that the dtype cannot tell two logits apart.
    near_ties / positions: judged positions whose top-2 margin is not above the threshold / all of them.
    """

    samples: Mapping[str, tuple[float, ...]]
    step: float
    near_ties: int
    positions: int

    @property
    def threshold(self) -> float:
        return max([self.step, *(move for moves in self.samples.values() for move in moves)])

    def to_dict(self) -> dict[str, object]:
        shapes = {
            name: {"n": len(moves), "median": median(moves), "p99": _quantile(moves, 0.99), "max": max(moves)}
            for name, moves in self.samples.items()
            if moves
        }
        return {
            "threshold": self.threshold,
            "rule": "largest sample, at least one unit in the last place of the largest logit",
            "large": LARGE * self.threshold,
            "step": self.step,
            "shapes": shapes,
            "near_ties": self.near_ties,
            "positions": self.positions,
        }


def measure_noise(lm: LM, rows: Sequence[ScoredRow], width: int, num_positions: int = NUM_POSITIONS) -> Noise:
    """Sample positions of the run: at width 1, at `width` (K + 1), in a left-padded batch, and the prefix alone.

    The judging pass itself is the row alone in one forward. Costs about num_positions forwards of one token.
    """
    picked = _spread([row for row in rows if row.score.tokens and row.prompt_len + len(row.score.tokens) > 1])
    samples: dict[str, list[float]] = {"width-1": [], f"width-{width}": [], "batch": [], "alone": []}
    if picked:
        count = min(min(len(row.score.tokens) for row in picked), max(1, num_positions // len(picked)))
        windows = [_window(row, k, len(picked), count) for k, row in enumerate(picked)]
        for row, (start, index, n) in zip(picked, windows, strict=True):
            for name, block in (("width-1", 1), (f"width-{width}", width)):
                samples[name] += _moves(row, index, in_blocks(lm, row.ids, start, n, block))
            last = prefix_alone(lm, row.ids[: start + n])
            samples["alone"] += _moves(row, index + n - 1, last[None])
        n = min(n for _, _, n in windows)
        starts = [start for start, _, _ in windows]
        if min(starts) >= 1 and len(picked) > 1:
            logits = in_batch(lm, [row.ids for row in picked], starts, n)
            for row, (_, index, _), found in zip(picked, windows, logits, strict=True):
                samples["batch"] += _moves(row, index, found)
    threshold_of = Noise({name: tuple(moves) for name, moves in samples.items()}, _step(lm, rows), 0, 0)
    gaps = [gap for row in rows for gap in row.score.gaps[: len(row.score.tokens)]]
    near = sum(gap <= threshold_of.threshold for gap in gaps)
    return Noise(threshold_of.samples, threshold_of.step, near, len(gaps))


def last_place(lm: LM, logit: float) -> float:
    """One unit in the last place of a logit of this size, in the target's dtype."""
    return torch.finfo(lm.dtype).eps * abs(logit)


def _spread(rows: Sequence[ScoredRow]) -> list[ScoredRow]:
    """At most BATCH rows, evenly over the longer half, so that the windows are long."""
    longest = max((len(row.score.tokens) for row in rows), default=0)
    long = [row for row in rows if 2 * len(row.score.tokens) >= longest]
    return [long[k * len(long) // min(BATCH, len(long))] for k in range(min(BATCH, len(long)))]


def _window(row: ScoredRow, k: int, num_rows: int, count: int) -> tuple[int, int, int]:
    """(first id fed, index of the output token it predicts, how many): early in the first row, late in the last."""
    room = len(row.score.tokens) - count
    index = room * k // max(1, num_rows - 1)
    start = row.prompt_len - 1 + index
    if start == 0 and count > 1:  # a batch needs one position before its first step
        return 1, 1, count - 1
    return start, index, count


def _moves(row: ScoredRow, index: int, logits: torch.Tensor) -> list[float]:
    """logits (n, V) for output indices index, index + 1 ...: how far each margin moved."""
    score = row.score
    return [
        abs(pair_margin(found, score.choices[i], score.others[i]) - score.gaps[i])
        for i, found in enumerate(logits, start=index)
    ]


def _step(lm: LM, rows: Sequence[ScoredRow]) -> float:
    return max((last_place(lm, top) for row in rows for top in row.score.tops), default=0.0)


def _quantile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]
