"""The paper's EXSPEC: a pool of rows, batches of equal length from it, realigning only as a fallback."""

from collections import deque
from collections.abc import Iterable

from specproof.config import EngineConfig
from specproof.schedulers.scheduler import Schedule, queue, share_prefill, take
from specproof.sequence import Sequence


class SameLength:
    """Groups by content length, not by padded width.

    A group may be smaller than the batch, down to half of it; else the rows with the nearest lengths are taken, and
    their KV is realigned. A row that has waited `patience` steps leads the next batch whatever its length, so that a
    ready row waits at most `patience` + pool size decoding steps. Finished rows leave the pool at once, and the next
    row enters.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._waiting: deque[Sequence] = deque()
        self._pool: list[Sequence] = []
        self._waited: dict[str, int] = {}  # steps since the row last decoded
        self.patience = 2 * -(-config.window // config.batch_size)

    def add(self, rows: Iterable[Sequence]) -> None:
        self._waiting = queue([*self._waiting, *rows], self._config.sort_by_length)

    def plan(self) -> Schedule:
        free = self._config.window - len(self._pool)
        admitted = take(self._waiting, free)
        refilled = len(admitted) if self._pool else 0
        self._pool += admitted
        self._waited.update((row.request_id, 0) for row in admitted)
        fresh = [row for row in self._pool if row.prefill_left][: self._config.batch_size]
        if fresh:
            return Schedule(tuple(admitted), share_prefill(fresh, self._config.prefill_chunk), (), refilled)
        rows = self._choose()
        grouped = len(rows) > 1 and len({row.seq_len for row in rows}) == 1
        for row in self._pool:
            self._waited[row.request_id] = 0 if row in rows else self._waited[row.request_id] + 1
        return Schedule(tuple(admitted), (), tuple(rows), refilled, grouped)

    def finish(self, row: Sequence) -> None:
        self._pool.remove(row)
        del self._waited[row.request_id]

    @property
    def num_unfinished(self) -> int:
        return len(self._waiting) + len(self._pool)

    def _choose(self) -> list[Sequence]:
        size = min(self._config.batch_size, len(self._pool))
        oldest = max(self._pool, key=self._age, default=None)
        if oldest is not None and self._age(oldest) >= self.patience:
            return self._nearest(oldest, size)
        groups: dict[int, list[Sequence]] = {}
        for row in sorted(self._pool, key=self._age, reverse=True):
            groups.setdefault(row.seq_len, []).append(row)
        best = max(groups.values(), key=lambda rows: (min(len(rows), size), self._age(rows[0])), default=[])
        if 2 * len(best) >= size:
            return best[:size]
        return self._closest_run(size)

    def _age(self, row: Sequence) -> int:
        return self._waited[row.request_id]

    def _nearest(self, leader: Sequence, size: int) -> list[Sequence]:
        """The rows whose lengths are nearest to the leader's, itself first; the longer waiting on a tie."""
        return sorted(
            self._pool, key=lambda row: (row is not leader, abs(row.seq_len - leader.seq_len), -self._age(row))
        )[:size]

    def _closest_run(self, size: int) -> list[Sequence]:
        """The `size` rows with the smallest spread of lengths."""
        rows = sorted(self._pool, key=lambda row: row.seq_len)
        runs = [rows[i : i + size] for i in range(len(rows) - size + 1)]
        return min(runs, key=lambda run: (run[-1].seq_len - run[0].seq_len, -max(map(self._age, run))))
