"""A freed slot is refilled at once; prompts are prefilled in chunks inside the forwards of the other rows."""

from collections import deque
from collections.abc import Iterable

from specproof.config import EngineConfig
from specproof.schedulers.scheduler import Schedule, queue, take
from specproof.sequence import Sequence


class Continuous:
    """Every ready row decodes in every step. The prefill budget goes to the rows that came first."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    def add(self, rows: Iterable[Sequence]) -> None:
        self._waiting = queue([*self._waiting, *rows], self._config.sort_by_length)

    def plan(self) -> Schedule:
        free = self._config.batch_size - len(self._running)
        admitted = take(self._waiting, free)
        refilled = len(admitted) if self._running else 0
        self._running += admitted
        ready = tuple(row for row in self._running if not row.prefill_left)
        return Schedule(tuple(admitted), self._prefill(), ready, refilled)

    def finish(self, row: Sequence) -> None:
        self._running.remove(row)

    @property
    def num_unfinished(self) -> int:
        return len(self._waiting) + len(self._running)

    def _prefill(self) -> tuple[tuple[Sequence, int], ...]:
        budget, chunks = self._config.prefill_chunk, []
        for row in self._running:
            if budget and row.prefill_left:
                chunks.append((row, min(budget, row.prefill_left)))
                budget -= chunks[-1][1]
        return tuple(chunks)
