"""What a scheduler is. A row is waiting, running or finished, and each of them once."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from specproof.config import EngineConfig
from specproof.sequence import Sequence
from specproof.step import SharedPrefix


@dataclass(frozen=True, slots=True)
class Schedule:
    """One step's plan.

    admitted: rows that enter now. prefill: rows and how many prompt tokens of each to compute. decode: rows that emit.
    refilled: how many of the admitted join rows that are already running. grouped: the rows that decode were picked
    because their lengths are equal. shared: what rows take over from others before anything is computed.
    """

    admitted: tuple[Sequence, ...] = ()
    prefill: tuple[tuple[Sequence, int], ...] = ()
    decode: tuple[Sequence, ...] = ()
    refilled: int = 0
    grouped: bool = False
    shared: tuple[SharedPrefix, ...] = ()


class Scheduler(Protocol):
    """Told of every row that arrives and finishes; asked once per step."""

    def __init__(self, config: EngineConfig) -> None: ...

    def add(self, rows: Iterable[Sequence]) -> None:
        """Rows arrive; they wait until admitted."""
        ...

    def plan(self) -> Schedule:
        """The next step. Rows it admits are running from now on."""
        ...

    def finish(self, row: Sequence) -> None:
        """A running row has ended."""
        ...

    @property
    def num_unfinished(self) -> int:
        """Rows waiting or running."""
        ...


def queue(waiting: Iterable[Sequence], sort_by_length: bool) -> deque[Sequence]:
    """Waiting rows in the order in which they are to be admitted."""
    return deque(sorted(waiting, key=lambda row: row.seq_len) if sort_by_length else waiting)


def take(waiting: deque[Sequence], count: int) -> list[Sequence]:
    """The first `count` waiting rows, or all; they no longer wait."""
    return [waiting.popleft() for _ in range(min(count, len(waiting)))]


def share_prefill(rows: Iterable[Sequence], budget: int) -> tuple[tuple[Sequence, int], ...]:
    """Prompt chunks of at most `budget` tokens together, shared equally (at least one token a row)."""
    behind = [row for row in rows if row.prefill_left]
    share = max(1, budget // len(behind)) if behind else 0
    return tuple((row, min(share, row.prefill_left)) for row in behind)
