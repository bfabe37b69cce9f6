"""What an audit of running code finds: an invariant that does not hold, at a step and in a row."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Violation:
    """invariant: a name of the catalogue (`invariants.INVARIANTS`). row: the request, or the row of a batch.

    expected, found: what should have been there, and what was.
    """

    invariant: str
    step: int
    row: str
    expected: Any
    found: Any
    message: str

    def __str__(self) -> str:
        return (
            f"{self.invariant}: step {self.step}, row {self.row}: {self.message} "
            f"(expected {self.expected}, found {self.found})"
        )
