"""Sums over steps: an observer that every engine has."""

import warnings
from collections import Counter
from dataclasses import dataclass, field

from specproof.step import StepRecord

ZERO_ACCEPTANCE_DRAFTS = 200  # drafts without a single acceptance after which the drafter is called useless


@dataclass(slots=True)
class Statistics:
    """Counts since the engine was made.

    row_steps: (row, step) pairs that emitted. emitted: tokens, the target's own included. drafted, accepted: draft
    tokens judged / kept; right: those that the target would have chosen (the rollback rule keeps fewer).
    expected, price: how many should have been accepted, and the seconds that they cost, as the pace saw it (0 if it
    makes no estimate). judged_at, right_at: by place among a row's drafts, 0 first, those judged (the ones behind a
    wrong draft are not) and those right.
    seconds, draft_seconds: of the steps, and of drafting in them.
    prefilled, shared: prompt tokens computed / taken over from another row.
    grouped_steps, realigned_steps: see StepRecord. refilled: rows that took a freed place.
    """

    steps: int = 0
    row_steps: int = 0
    emitted: int = 0
    drafted: int = 0
    accepted: int = 0
    prefilled: int = 0
    shared: int = 0
    grouped_steps: int = 0
    realigned_steps: int = 0
    refilled: int = 0
    right: int = 0
    finished: int = 0
    expected: float = 0.0
    price: float = 0.0
    seconds: float = 0.0
    draft_seconds: float = 0.0
    judged_at: Counter[int] = field(default_factory=Counter)
    right_at: Counter[int] = field(default_factory=Counter)

    def __call__(self, record: StepRecord) -> None:
        self.steps += 1
        self.row_steps += len(record.rows)
        self.emitted += sum(len(row.emitted) for row in record.rows)
        self.accepted += sum(row.num_accepted for row in record.rows)
        self.right += sum(row.num_right for row in record.rows)
        self.prefilled += sum(chunk.length for chunk in record.prefilled)
        self.shared += sum(share.length for share in record.shared)
        self.grouped_steps += record.grouped
        self.realigned_steps += record.realigned
        self.refilled += record.refilled
        self.finished += len(record.finished)
        self.expected += record.expected or 0.0
        self.price += record.price or 0.0
        self.seconds += record.seconds
        self.draft_seconds += record.draft_seconds
        for row in record.rows:
            self.right_at.update(range(row.num_right))
            self.judged_at.update(range(min(row.num_right + 1, len(row.drafted))))
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
    def acceptance_by_place(self) -> list[float]:
        """right_at / judged_at for the first draft of a row, the second ...: the chance if all before it are right."""
        return [self.right_at[place] / self.judged_at[place] for place in sorted(self.judged_at)]

    @property
    def mean_accepted_length(self) -> float | None:
        """emitted / row_steps, the target token included: 1 to K + 1; None before the first emission."""
        return self.emitted / self.row_steps if self.row_steps else None
