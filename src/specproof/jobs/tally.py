"""Count a job's rows, and put the counts into one document."""

from collections import Counter
from typing import Any

from specproof.statistics import Statistics


class Tally:
    """Sums over the results of a job, those of earlier runs included."""

    def __init__(self) -> None:
        self.finish_reasons = Counter[str]()
        self.resumed_rows = 0
        self._totals = Counter[str]()

    @property
    def num_rows(self) -> int:
        return self.finish_reasons.total()

    def add(self, result: dict[str, Any], resumed: bool = False) -> None:
        """Count a row's result; `resumed`: an earlier run made it."""
        self.resumed_rows += resumed
        self.finish_reasons[result["finish_reason"]] += 1
        self._totals["tokens"] += len(result["token_ids"])
        for key in ("steps", "drafted", "accepted"):
            self._totals[key] += result[key]

    def summary(self, statistics: Statistics, seconds: float) -> dict[str, Any]:
        """Counts and rates of all rows; what `statistics` and `seconds` say is of this run only.

        steps: (row, step) pairs. acceptance_rate: accepted / drafted. mean_accepted_length: tokens / steps. prefilled,
        shared: prompt tokens computed / taken over from another row. new_tokens, tokens_per_second, prefilled and those
        after it: of this run. A rate without a denominator is None.
        """
        totals = self._totals
        return {
            "rows": self.num_rows,
            "errors": self.finish_reasons["error"],
            "resumed_rows": self.resumed_rows,
            "finish_reasons": {reason: self.finish_reasons[reason] for reason in ("stop", "length", "error")},
            "tokens": totals["tokens"],
            "new_tokens": statistics.emitted,
            "seconds": round(seconds, 6),
            "tokens_per_second": _ratio(statistics.emitted, seconds) if statistics.emitted else None,
            "acceptance_rate": _ratio(totals["accepted"], totals["drafted"]),
            "mean_accepted_length": _ratio(totals["tokens"], totals["steps"]),
            "steps": totals["steps"],
            "drafted": totals["drafted"],
            "accepted": totals["accepted"],
            "prefilled": statistics.prefilled,
            "shared": statistics.shared,
            "engine_steps": statistics.steps,
            "expected": round(statistics.expected, 1),
            "price_seconds": round(statistics.price, 6),
            "acceptance_by_place": [round(share, 4) for share in statistics.acceptance_by_place],
            "step_seconds": round(statistics.seconds, 6),
            "draft_seconds": round(statistics.draft_seconds, 6),
            "grouped_steps": statistics.grouped_steps,
            "realigned_steps": statistics.realigned_steps,
            "refilled": statistics.refilled,
        }


def _ratio(count: float, of: float) -> float | None:
    return round(count / of, 6) if of else None
