"""Where a step's time goes: inside the models' forwards, or around them."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import torch

from specproof.lm import LM


class ForwardClock:
    """Seconds spent inside the forwards of some models, by hooks on them: the engine knows nothing of it.

    On CUDA every forward is synchronised at both ends, so that its seconds are its own.
    """

    def __init__(self, *lms: LM) -> None:
        self.seconds = 0.0
        self.forwards = 0
        self._models = {id(lm.model): lm.model for lm in lms}.values()
        self._started = 0.0

    @contextmanager
    def running(self) -> Iterator["ForwardClock"]:
        """Count while the block runs."""
        hooks = []
        for model in self._models:
            hooks += [model.register_forward_pre_hook(self._start), model.register_forward_hook(self._stop)]
        try:
            yield self
        finally:
            for hook in hooks:
                hook.remove()

    def _start(self, *_: object) -> None:
        self._started = now()

    def _stop(self, *_: object) -> None:
        self.seconds += now() - self._started
        self.forwards += 1


def now() -> float:
    """Seconds of a monotonic clock, after all work on a CUDA device has ended."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return perf_counter()
