"""What a drafter is: anything that proposes tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor


@dataclass(frozen=True, slots=True)
class DraftRow:
    """What a drafter sees of a row.

    token_ids: prompt and emitted ids so far. max_tokens: most drafts this row can use in this step.
    banned_ids, banned_until: ids that cannot be chosen at sequence indices below `banned_until` (min_new_tokens).
    prompt_len: how many of token_ids are the prompt. remaining: most tokens that the row may still emit.
    """

    request_id: str
    token_ids: tuple[int, ...]
    max_tokens: int
    banned_ids: tuple[int, ...] = ()
    banned_until: int = 0
    prompt_len: int = 0
    remaining: int = 0


@dataclass(frozen=True, slots=True)
class Confidence:
    """How sure a drafter is of one row's drafts.

    source: what drafted them. chances: for each draft a guess, 0 to 1, that it is right if those before it are. They
    need not be calibrated (what became of earlier drafts does that), but rise with the true chance. Empty: no idea.
    """

    source: str
    chances: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class HostDrafts:
    """Drafts as lists of ids, one a row, with the drafter's confidence in each row."""

    ids: Sequence[Sequence[int]]
    confidence: Sequence[Confidence]


@dataclass(frozen=True, slots=True)
class DeviceDrafts:
    """Drafts that have not left the device: `ids` (R, K) long, of which row i uses the first `counts[i]`.

    The ids are trusted to be in the target's vocabulary: looking at them would make the host wait.
    """

    ids: Tensor
    counts: list[int]
    confidence: Sequence[Confidence] | None = None


@dataclass(frozen=True, slots=True)
class NextDraft:
    """A row that could draft one token more, at a price. unread: its tokens that the drafter must read for that.

    confidence: in what it drafted in this step so far; num_drafts: how many these are.
    """

    row: DraftRow
    num_drafts: int
    unread: int
    confidence: Confidence


GoOn = Callable[[Sequence[NextDraft]], Sequence[bool]]
"""Which of these rows draft on. A drafter for which each draft is a forward asks before each round of them."""


class Drafter(Protocol):
    """Proposes 0 to `max_tokens` ids per row; lengths may differ between rows.

    Rows come in no fixed order and may be missing from a step. Whatever is proposed, the output stays the target's:
    a bad draft only costs time.
    """

    def propose(self, rows: list[DraftRow], max_tokens: int) -> Sequence[Sequence[int]] | HostDrafts | DeviceDrafts: ...


@runtime_checkable
class PricedDrafter(Protocol):
    """A drafter that pays for each draft, and asks `go_on` (if it is not None) before each round of them."""

    go_on: GoOn | None


@runtime_checkable
class StatefulDrafter(Protocol):
    """A drafter that keeps something per row, and so is told how each step and each row ended."""

    def commit(self, accepted: dict[str, int]) -> None:
        """request_id -> how many of the tokens proposed last were kept."""
        ...

    def release(self, request_id: str) -> None:
        """The row has finished."""
        ...
