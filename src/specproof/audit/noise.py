"""The measured noise: how far a margin moves when only the shape of the forward changes.

At a position, the two best tokens of the judging pass have a margin. The same prefix is scored again in other shapes;
what that margin of the *same two tokens* moves by is a sample. A flip by rounding needs a move of at least the margin.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from specproof.audit.diagnose import LARGE
from specproof.audit.score import Score
from specproof.lm import LM


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
        return _threshold(self.samples, self.step)

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


def noise_of(lm: LM, rows: Sequence[ScoredRow], samples: Mapping[str, tuple[float, ...]]) -> Noise:
    """What the samples (shape -> moves) say about these rows."""
    step = max((last_place(lm, top) for row in rows for top in row.score.tops), default=0.0)
    threshold = _threshold(samples, step)
    gaps = [gap for row in rows for gap in row.score.gaps[: len(row.score.tokens)]]
    return Noise(samples, step, sum(gap <= threshold for gap in gaps), len(gaps))


def last_place(lm: LM, logit: float) -> float:
    """One unit in the last place of a logit of this size, in the target's dtype."""
    return torch.finfo(lm.dtype).eps * abs(logit)


def _threshold(samples: Mapping[str, tuple[float, ...]], step: float) -> float:
    return max([step, *(move for moves in samples.values() for move in moves)])


def _quantile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]
