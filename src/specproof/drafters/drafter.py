"""What a drafter is: anything that proposes tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor


@dataclass(frozen=True, slots=True)
class DraftRow:
    """What a drafter sees of a row.

    token_ids: prompt and emitted ids so far. max_tokens: most drafts this row can use in this step.
    banned_ids, banned_until: ids that cannot be chosen at sequence indices below `banned_until` (min_new_tokens).
    """

    request_id: str
    token_ids: tuple[int, ...]
    max_tokens: int
    banned_ids: tuple[int, ...] = ()
    banned_until: int = 0


@dataclass(frozen=True, slots=True)
class DeviceDrafts:
    """Drafts that have not left the device: `ids` (R, K) long, of which row i uses the first `counts[i]`.

    The ids are trusted to be in the target's vocabulary: looking at them would make the host wait.
    """

    ids: Tensor
    counts: list[int]


class Drafter(Protocol):
    """Proposes 0 to `max_tokens` ids per row; lengths may differ between rows.

    Rows come in no fixed order and may be missing from a step. Whatever is proposed, the output stays the target's:
    a bad draft only costs time.
    """

    def propose(self, rows: list[DraftRow], max_tokens: int) -> Sequence[Sequence[int]] | DeviceDrafts: ...


@runtime_checkable
class StatefulDrafter(Protocol):
    """A drafter that keeps something per row, and so is told how each step and each row ended."""

    def commit(self, accepted: dict[str, int]) -> None:
        """request_id -> how many of the tokens proposed last were kept."""
        ...

    def release(self, request_id: str) -> None:
        """The row has finished."""
        ...
