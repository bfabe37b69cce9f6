"""Two traces of the same prompts beside each other: how far one engine agrees with itself, or with another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specproof.audit.compare import first_difference, rate
from specproof.audit.trace_row import Trace


@dataclass(frozen=True, slots=True)
class Agreement:
    """rows, equal: rows that both traces have, and those that agree in every token. matched, length: tokens likewise.

    Tokens before the first difference count as matched; length is that of the second trace.
    """

    rows: int
    equal: int
    matched: int
    length: int

    def to_dict(self) -> dict[str, Any]:
        return {"exact_match": rate(self.equal, self.rows), "partial_match": rate(self.matched, self.length)}


def agree(ours: Sequence[Trace], theirs: Sequence[Trace]) -> Agreement:
    """Rows are matched by id; a row that is an error in either has nothing to compare."""
    others = {trace.id: trace.token_ids for trace in theirs if trace.error is None}
    pairs = [(trace.token_ids, others[trace.id]) for trace in ours if trace.error is None and trace.id in others]
    firsts = [first_difference(a, b) for a, b in pairs]
    matched = sum(len(b) if first is None else first for first, (_, b) in zip(firsts, pairs, strict=True))
    return Agreement(len(pairs), firsts.count(None), matched, sum(len(b) for _, b in pairs))
