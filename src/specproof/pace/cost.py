"""Seconds of a forward by its number of tokens, measured while running."""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from math import inf, log2
from statistics import median

WINDOW = 25  # measurements kept for each number of tokens
EXPONENT = 0.3  # of growth with the number of tokens, where nothing was measured: hopeful, so that it gets measured
FORGET = 1000  # measurements after which one number of tokens, never seen again, counts as unknown
DRIFT = 0.2  # share of each measurement in the common level
LEAST = 1e-9  # seconds: some clocks stand still for short
OUTLIER = 1.5  # a measurement moves the level by at most this factor


class Cost:
    """seconds(n) = level * shape(n). The level follows what makes all forwards slower alike: longer rows, a busy
    machine. The shape is what plans depend on: a median of measurements relative to the level of their time.

    Between measured numbers it is interpolated. Outside of them it grows with the power `EXPONENT`, or like the last
    doubling that was measured, if that grew faster.
    """

    def __init__(self) -> None:
        self._level = 0.0
        self._ratios: dict[int, deque[float]] = {}  # tokens -> latest measurements / level
        self._shape: dict[int, float] = {}
        self._tokens: list[int] = []  # keys of the above, rising
        self._seen: dict[int, int] = {}
        self._exponent = EXPONENT  # of growth beyond the largest
        self.count = 0  # measurements

    def learn(self, tokens: int, seconds: float) -> None:
        """A forward of `tokens` tokens took `seconds`."""
        self.count += 1
        seconds = max(seconds, LEAST)
        key = _rounded(tokens)
        if not self._shape:
            self._level = seconds
        elif key in self._shape:
            ratio = seconds / (self._level * self._shape[key])
            self._level *= min(OUTLIER, max(1 / OUTLIER, ratio)) ** DRIFT
        self._ratios.setdefault(key, deque(maxlen=WINDOW)).append(seconds / self._level)
        self._shape[key] = median(self._ratios[key])
        self._seen[key] = self.count
        for old in [k for k, seen in self._seen.items() if self.count - seen > FORGET]:
            del self._seen[old], self._ratios[old], self._shape[old]
        self._tokens = sorted(self._shape)
        self._exponent = self._last_exponent()

    def knows(self, tokens: int, times: int) -> bool:
        """Whether numbers within a factor of two of this one were measured so many times."""
        near = (known for known in self._tokens if tokens <= 2 * known and known <= 2 * tokens)
        return sum(len(self._ratios[known]) for known in near) >= times

    @property
    def foreseen(self) -> int:
        """Most tokens of which it has an idea: twice as many as were measured."""
        return 2 * max(self._tokens, default=0)

    def age(self, tokens: int) -> int:
        """Measurements since this number was last measured; 0 if it never was."""
        return self.count - self._seen.get(_rounded(tokens), self.count)

    def __call__(self, tokens: int) -> float:
        """Expected seconds; infinite beyond what is foreseen, so that plans go there step by step."""
        if tokens > self.foreseen:
            return inf
        at = bisect_left(self._tokens, tokens)
        if at == 0 or at == len(self._tokens):
            nearest = self._tokens[min(at, len(self._tokens) - 1)]
            exponent = self._exponent if at else EXPONENT
            return self._level * self._shape[nearest] * (tokens / nearest) ** exponent
        low, high = self._tokens[at - 1], self._tokens[at]
        share = (tokens - low) / (high - low)
        return self._level * ((1 - share) * self._shape[low] + share * self._shape[high])

    def of_step(self, rows: int, reading: int) -> Callable[[int], float]:
        """Expected seconds of a step by its drafts, without what reading takes: a draft costs what it adds beside all
        other tokens."""
        tokens = reading + rows
        less = self(tokens) - self(rows)
        return lambda drafts: self(tokens + drafts) - less

    def _last_exponent(self) -> float:
        most = self._tokens[-1]
        if most < 2 * self._tokens[0]:
            return EXPONENT
        return min(1.0, max(EXPONENT, log2(self(most) / self(most // 2))))


def _rounded(tokens: int) -> int:
    """Exact up to 16, then to about one part in eight."""
    width = 1 << max(0, tokens.bit_length() - 4)
    return round(tokens / width) * width
