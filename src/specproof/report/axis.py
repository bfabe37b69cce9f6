"""Where a value lies on an axis, as a fraction of its length, and which values are written beside it."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10

MOST_TICKS = 6
ZERO_GAP = 0.12  # a logarithmic axis begins here where zeros stand left of it
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, slots=True)
class LogAxis:
    """low, high: powers of ten, as exponents. has_zero: zero has a place of its own, at fraction 0."""

    low: int
    high: int
    has_zero: bool

    @classmethod
    def around(cls, values: Iterable[float]) -> "LogAxis":
        """Whole decades around the finite positive values; 1 to 10 without any."""
        values = list(values)
        exponents = [log10(value) for value in values if isfinite(value) and value > 0] or [0.0]
        low, high = floor(min(exponents)), ceil(max(exponents))
        return cls(low, max(high, low + 1), any(value <= 0 for value in values))

    def at(self, value: float) -> float:
        """0 to 1; what is not finite lies at the end."""
        if value <= 0:
            return 0.0
        start = ZERO_GAP if self.has_zero else 0.0
        along = (log10(value) - self.low) / (self.high - self.low) if isfinite(value) else 1.0
        return start + (1 - start) * min(1.0, max(0.0, along))

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """(fraction, label): decades, no more than fit."""
        every = ceil((self.high - self.low) / (MOST_TICKS - 1))
        decades = [(self.at(10.0**k), _power(k)) for k in range(self.low, self.high + 1, every)]
        return [(0.0, "0"), *decades] if self.has_zero else decades


@dataclass(frozen=True, slots=True)
class CountAxis:
    """0 to high, whole numbers."""

    high: int

    def at(self, value: int) -> float:
        return value / max(1, self.high)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """(fraction, label): round numbers, no more than fit."""
        least = max(1, self.high) / (MOST_TICKS - 1)
        decade = 10 ** floor(log10(least))
        every = max(1, next(decade * k for k in (1, 2, 5, 10) if decade * k >= least))
        return [(self.at(k), str(k)) for k in range(0, self.high + 1, int(every))]


def _power(exponent: int) -> str:
    return f"{10.0**exponent:g}" if -3 <= exponent <= 3 else "10" + str(exponent).translate(_SUPERSCRIPT)
