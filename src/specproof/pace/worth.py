"""What a token is worth by its row: how much sooner all is done for it. The same for all rows while others wait."""

from collections.abc import Sequence

import numpy as np

from specproof.pace.cost import Cost
from specproof.pace.outlook import Outlook
from specproof.step import StepRecord

MEMORY = 0.9  # share of a row's speed that outlives a step
SPREAD = 0.15  # of the time that a row needs to its limit: its speed will change
GRID = 48  # moments at which the ends of rows are looked at


class Worth:
    """A step of R rows takes fixed seconds, whatever R, and some for each row. A token that a row need not wait for
    saves the second; the first is saved only if the row is the last to end, or if another takes its place.

    So while rows wait all tokens are worth the same, and when none does those of the rows that will end last are worth
    most. How long a row will live is foreseen from the tokens that it may still emit, its tokens per step, and how
    often rows have ended by themselves.
    """

    def __init__(self, cost: Cost) -> None:
        self._cost = cost
        self._speeds: dict[str, float] = {}  # tokens per step
        self._emitted = self._ends = 0

    def __call__(self, outlook: Outlook) -> dict[str, float]:
        """Of a token of each row that decodes; 1 on average."""
        names, count = list(outlook.decoding), len(outlook.decoding)
        if outlook.later or count < 2:
            return dict.fromkeys(names, 1.0)
        speeds = [self._speeds.get(name, 1.0) for name in names]
        lasts = last_chances(list(outlook.decoding.values()), speeds, self._ends / max(1, self._emitted))
        step = self._cost(count)
        of_row = min(1.0, max(0.0, self._cost(2 * count) - step) / step)  # of each row's share
        return {name: of_row + (1 - of_row) * count * last for name, last in zip(names, lasts, strict=True)}

    def learn(self, record: StepRecord) -> None:
        for step in record.rows:
            speed = self._speeds.get(step.request_id, 1.0)
            self._speeds[step.request_id] = MEMORY * speed + (1 - MEMORY) * len(step.emitted)
            self._emitted += len(step.emitted)
        for output in record.finished:
            self._speeds.pop(output.request_id, None)
            self._ends += output.finish_reason != "length"


def last_chances(remaining: Sequence[int], speeds: Sequence[float], ends: float) -> list[float]:
    """For each row the chance that it is the last to end; their sum is 1.

    remaining: most tokens that it may still emit; it emits `speeds` of them a step, and ends by itself with the chance
    `ends` after each. The time to the limit is spread, so that rows that are nearly equal are near each other here too.
    """
    limits = np.maximum(1, remaining) / np.array(speeds)
    moments = np.linspace(0, limits.max() * (1 + 4 * SPREAD), GRID + 1)[:, None]
    reached = 1 / (1 + np.exp(-1.7 * np.clip((moments - limits) / (SPREAD * limits), -20, 20)))
    ended = np.clip(1 - np.exp(-ends * np.array(speeds) * moments) * (1 - reached), 1e-12, 1.0)  # (GRID + 1, rows)
    between = (ended[1:] + ended[:-1]) / 2
    ending = np.diff(ended, axis=0) / between * np.exp(np.log(between).sum(1, keepdims=True))
    chances = ending.sum(0) + 1e-12
    return (chances / chances.sum()).tolist()
