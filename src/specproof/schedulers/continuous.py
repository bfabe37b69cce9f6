"""A freed slot is refilled at once; prompts are prefilled in chunks inside the forwards of the other rows.

Where rows share prefixes, a prompt's beginning that another row has, or had until the last step, is not computed anew.
"""

from collections import deque
from collections.abc import Iterable

from specproof.config import EngineConfig
from specproof.prefixes import Holder, share_prefixes
from specproof.schedulers.scheduler import Schedule, queue, take
from specproof.sequence import Sequence
from specproof.step import SharedPrefix


class Continuous:
    """Every ready row decodes in every step. The prefill budget goes to the rows that came first."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._ended: list[Sequence] = []  # since the last plan: their KV is readable until the next forward

    def add(self, rows: Iterable[Sequence]) -> None:
        self._waiting = queue([*self._waiting, *rows], self._config.sort_by_length)

    def plan(self) -> Schedule:
        free = self._config.batch_size - len(self._running)
        admitted = take(self._waiting, free)
        refilled = len(admitted) if self._running else 0
        self._running += admitted
        shared, waiting = self._share()
        taken = {share.request_id: share.length for share in shared}
        left = {row.request_id: row.prefill_left - taken.get(row.request_id, 0) for row in self._running}
        ready = tuple(row for row in self._running if not left[row.request_id])
        return Schedule(tuple(admitted), self._prefill(left, waiting), ready, refilled, shared=shared)

    def finish(self, row: Sequence) -> None:
        self._running.remove(row)
        self._ended.append(row)

    @property
    def num_unfinished(self) -> int:
        return len(self._waiting) + len(self._running)

    def _share(self) -> tuple[tuple[SharedPrefix, ...], set[str]]:
        """What rows take over, and which of them wait for another row to compute it."""
        running, past = self._running, self._ended
        self._ended = []
        if not self._config.shares_prefixes:
            return (), set()
        return share_prefixes([_holder(row) for row in running], [_holder(row) for row in past])

    def _prefill(self, left: dict[str, int], waiting: set[str]) -> tuple[tuple[Sequence, int], ...]:
        budget, chunks = self._config.prefill_chunk, []
        for row in self._running:
            if budget and left[row.request_id] and row.request_id not in waiting:
                chunks.append((row, min(budget, left[row.request_id])))
                budget -= chunks[-1][1]
        return tuple(chunks)


def _holder(row: Sequence) -> Holder:
    return Holder(row.request_id, row.token_ids, row.cached_len, row.prompt_len - 1)
