"""A drafter that proposes what it is told: forces any acceptance pattern."""

from collections.abc import Callable, Sequence

from specproof.drafters.drafter import DraftRow

Script = Callable[[DraftRow, int], Sequence[int]]


class Scripted:
    """Calls `script(row, max_tokens)` for each row."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def propose(self, rows: list[DraftRow], max_tokens: int) -> list[list[int]]:
        return [list(self._script(row, min(max_tokens, row.max_tokens))) for row in rows]
