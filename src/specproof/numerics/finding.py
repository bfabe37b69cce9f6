"""What the probe found about one operation."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """op: the operation in the model's own shape. tried: what was varied. depends_on: what changed its bits, if any.

    threads: whether its bits change with the number of threads, which an engine does not vary.
    """

    op: str
    tried: str
    depends_on: tuple[str, ...]
    threads: bool = False

    @property
    def holds(self) -> bool:
        return not self.depends_on

    def __str__(self) -> str:
        said = "depends on " + "; ".join(self.depends_on) if self.depends_on else "invariant"
        return f"{self.op}: {said}" + (" (other bits with another number of threads)" if self.threads else "")


def name_values(what: str, values: Sequence[int]) -> tuple[str, ...]:
    """`what` with the values at which it changed the bits; nothing if there are none."""
    if not values:
        return ()
    shown = ", ".join(map(str, values[:6])) + (", ..." if len(values) > 6 else "")
    return (f"{what} ({shown})",)
