"""Time per row, from what the engine tells its observers."""

from collections.abc import Callable
from time import perf_counter

from specproof.step import StepRecord


class RowClock:
    """An observer that measures each row from the start of the step that admitted it to the end of its last step."""

    def __init__(self, now: Callable[[], float] = perf_counter) -> None:
        self._now = now
        self.start()
        self._admitted: dict[str, float] = {}
        self._seconds: dict[str, float] = {}

    def start(self) -> None:
        """The first step begins now."""
        self._step_started = self._now()

    def __call__(self, record: StepRecord) -> None:
        now = self._now()
        for request_id in record.admitted:
            self._admitted[request_id] = self._step_started
        for output in record.finished:
            if output.request_id in self._admitted:
                self._seconds[output.request_id] = now - self._admitted.pop(output.request_id)
        self._step_started = now

    def take(self, request_id: str) -> float | None:
        """Seconds that the row took; None for one that was never admitted. Asked once per row."""
        return self._seconds.pop(request_id, None)
