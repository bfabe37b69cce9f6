"""Sums over steps: an observer that every engine has."""

import warnings
from dataclasses import dataclass

from specproof.step import StepRecord

ZERO_ACCEPTANCE_DRAFTS = 200  # drafts without a single acceptance after which the drafter is called useless


@dataclass(slots=True)
class Statistics:
    """Counts since the engine was made.

    row_steps: (row, step) pairs that emitted. emitted: tokens, the target's own included. drafted, accepted: draft
    tokens judged / kept; right: those that the target would have chosen (the rollback rule keeps fewer).
    grouped_steps, realigned_steps: see StepRecord. refilled: rows that took a freed place.
    """

    steps: int = 0
    row_steps: int = 0
    emitted: int = 0
    drafted: int = 0
    accepted: int = 0
    prefilled: int = 0
    grouped_steps: int = 0
    realigned_steps: int = 0
    refilled: int = 0
    right: int = 0
    finished: int = 0

    def __call__(self, record: StepRecord) -> None:
        self.steps += 1
        self.row_steps += len(record.rows)
        self.emitted += sum(len(row.emitted) for row in record.rows)
        self.accepted += sum(row.num_accepted for row in record.rows)
        self.right += sum(row.num_right for row in record.rows)
        self.prefilled += sum(chunk.length for chunk in record.prefilled)
        self.grouped_steps += record.grouped
        self.realigned_steps += record.realigned
        self.refilled += record.refilled
        self.finished += len(record.finished)
        before = self.drafted
        self.drafted += sum(len(row.drafted) for row in record.rows)
        if not self.right and before < ZERO_ACCEPTANCE_DRAFTS <= self.drafted:
            warnings.warn(
                f"none of {self.drafted} draft tokens was right: the drafter only costs time; "
                "check that it belongs to this target, or decode without one",
                stacklevel=2,
            )

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / drafted; None without drafts."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_accepted_length(self) -> float | None:
        """emitted / row_steps, the target token included: 1 to K + 1; None before the first emission."""
        return self.emitted / self.row_steps if self.row_steps else None
