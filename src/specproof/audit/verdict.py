"""The verdict on a trace: counts, the measured noise, the plain floor beside it, and a finding per diverged row."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specproof.audit.compare import rate, summarise
from specproof.audit.finding import STATUSES, RowVerdict
from specproof.audit.noise import Noise
from specproof.audit.plain import PlainFloor

Outcome = Literal["pass", "fail", "unjudged"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """rows: in the trace's order. floor: None where it was not asked for. noise: None where no row could be judged."""

    rows: tuple[RowVerdict, ...]
    noise: Noise | None
    floor: PlainFloor | None
    dtype: str
    num_draft_tokens: int

    @property
    def counts(self) -> dict[str, int]:
        """How many rows have each status."""
        return {status: sum(row.status == status for row in self.rows) for status in STATUSES}

    @property
    def classes(self) -> dict[str, int]:
        """How many judged rows have each class."""
        return dict(Counter(row.cls for row in self.rows if row.status != "unjudged"))

    @property
    def outcome(self) -> Outcome:
        """fail: a row is faulty or unexplained. unjudged: no row could be judged. Else pass, whatever else was not."""
        if self.counts["faulty"] or self.counts["unexplained"]:
            return "fail"
        return "unjudged" if self.counts["unjudged"] == len(self.rows) else "pass"

    @property
    def passed(self) -> bool:
        """Whether rows were judged, and none of them is faulty or unexplained."""
        return self.outcome == "pass"

    def to_dict(self) -> dict[str, Any]:
        judged = [row for row in self.rows if row.status != "unjudged"]
        against = [row.against for row in self.rows if row.against is not None]
        return {
            "verdict": self.outcome,
            "rows": len(self.rows),
            "counts": self.counts,
            "classes": self.classes,
            "exact_rows": rate(sum(row.status == "exact" for row in judged), len(judged)),
            "tokens": sum(row.num_tokens for row in self.rows),
            "dtype": self.dtype,
            "num_draft_tokens": self.num_draft_tokens,
            "noise": self.noise.to_dict() if self.noise else None,
            "plain_against_plain": self.floor.to_dict() if self.floor else None,
            "reference": summarise(against) if against else None,
            "terminations": _terminations(self.rows),
            "each_row": [row.summary() for row in self.rows],
            "findings": [
                {"number": number, **row.to_dict()}
                for number, row in enumerate(self.rows)
                if row.finding or row.termination or row.error
            ],
        }


def overall(outcomes: Iterable[Outcome]) -> Outcome:
    """Of several audits: the worst; one that judged nothing is worse than one that passed."""
    return max(outcomes, key=("pass", "unjudged", "fail").index)


def _terminations(rows: Sequence[RowVerdict]) -> dict[str, int]:
    """Differences of ends, apart from differences of tokens."""
    return dict(Counter(row.termination.kind for row in rows if row.termination))
