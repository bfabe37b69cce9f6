"""A batch is decoded to its end, then the next one starts."""

from collections import deque
from collections.abc import Iterable

from specproof.config import EngineConfig
from specproof.schedulers.scheduler import Schedule, queue, share_prefill, take
from specproof.sequence import Sequence


class Static:
    """All rows of a batch are prefilled first; rows that finish leave, and their places stay empty."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    def add(self, rows: Iterable[Sequence]) -> None:
        self._waiting = queue([*self._waiting, *rows], self._config.sort_by_length)

    def plan(self) -> Schedule:
        admitted = [] if self._running else take(self._waiting, self._config.batch_size)
        self._running += admitted
        prefill = share_prefill(self._running, self._config.prefill_chunk)
        return Schedule(tuple(admitted), prefill, () if prefill else tuple(self._running))

    def finish(self, row: Sequence) -> None:
        self._running.remove(row)

    @property
    def num_unfinished(self) -> int:
        return len(self._waiting) + len(self._running)
