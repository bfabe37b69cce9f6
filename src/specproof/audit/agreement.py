"""Two outputs of the same prompts beside each other: how far one engine agrees with itself, or with another."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from specproof.audit.compare import first_difference, rate
from specproof.audit.trace_row import Trace

Pair = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Agreement:
    """rows, equal: rows that were compared, and those that agree in every token. matched, length: tokens likewise.

    Tokens before the first difference count as matched; length is that of the second output.
    """

    rows: int
    equal: int
    matched: int
    length: int

    def to_dict(self) -> dict[str, Any]:
        return {"exact_match": rate(self.equal, self.rows), "partial_match": rate(self.matched, self.length)}


def agreement(pairs: Iterable[Pair]) -> Agreement:
    """Of pairs of emitted ids."""
    found = [(first_difference(a, b), len(b)) for a, b in pairs]
    return Agreement(
        rows=len(found),
        equal=sum(first is None for first, _ in found),
        matched=sum(length if first is None else first for first, length in found),
        length=sum(length for _, length in found),
    )


def agree(ours: Sequence[Trace], theirs: Sequence[Trace]) -> Agreement:
    """Rows are matched by id; a row that is an error in either has nothing to compare."""
    others = {trace.id: trace.token_ids for trace in theirs if trace.error is None}
    kept = (trace for trace in ours if trace.error is None and trace.id in others)
    return agreement((trace.token_ids, others[trace.id]) for trace in kept)
