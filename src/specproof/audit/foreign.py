"""Rows of a loop that we did not write, forward by forward: what each query saw, against what its row must be.

Nothing is known of the loop's intentions. But a query must see one sequence (`visible`), it must begin with the row's
prompt, and what stays visible must be what the target chose (`target_choices`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specproof.audit import visible
from specproof.audit.cells import START, Cell, extend
from specproof.audit.target_choices import Found, TargetChoices
from specproof.audit.violation import Violation
from specproof.audit.watch import Seen


@dataclass
class ForeignRows:
    """absolute: a constant offset of positions matters (it does not for rotary ones). window: of the layer watched.

    contextual: keys depend on the tokens before (not in a model of one layer). unknown: (row, forward) pairs whose
    visible KV came from no forward under watch.
    """

    target: TargetChoices
    absolute: bool
    window: int | None
    contextual: bool
    unknown: int = 0

    def forward(self, seen: Seen, columns: list[list[Cell | None]]) -> tuple[list[Violation], list[list[Cell]]]:
        """The first violation of each row, and the cells that this forward wrote. columns: of the cache before it."""
        violations, written = [], []
        for row in range(len(seen.ids)):
            found, cells = self._row(seen, row, columns[row] if columns else [])
            written.append(cells)
            if found:
                violations.append(Violation(found[0], seen.step, str(row), *found[1:]))
        return violations, written

    def _row(self, seen: Seen, row: int, past: Sequence[Cell | None]) -> tuple[Found | None, list[Cell]]:
        found: Found | None = None
        columns, own = list(past), []
        sequence: list[Cell] = []  # what the query before saw, itself last, if it was live
        last: list[Cell] = []  # the same of the last live query
        judged = unknown = False
        for j, token in enumerate(seen.ids[row].tolist()):
            at, sees = seen.cached + j, seen.visible[row, j]
            live = bool(sees[at])
            one_more = bool(sequence) and live and _one_more(sees, seen.visible[row, j - 1], at)
            known = sequence if one_more else _by_position(columns, sees, at)
            unknown = unknown or any(cell is None for cell in known)
            known = [cell for cell in known if cell is not None]
            before = self._context(known)
            position = len(known) if seen.position_ids is None else int(seen.position_ids[row, j])
            cell = Cell(seen.step, row, token, position, before, extend(before, token) if live else 0, live)
            if found is None and not unknown:
                hidden = [] if one_more else [c for c, s in zip(columns, sees, strict=False) if c is not None and not s]
                if sees[at + 1 :].any():
                    found = "mask-exact", "hidden", "visible", f"a later token is visible at position {position}"
                elif not live and not judged:
                    found = self._hidden_itself(cell, known)
                elif live and not (one_more and position == known[-1].position + 1):
                    found = self._sequence(cell, known, hidden, not seen.cached)
                if found is None and live and not judged and seen.cached:
                    found = self.target.check([*known, cell], hidden)
            judged = judged or live
            columns.append(cell)
            own.append(cell)
            sequence = [*known, cell] if live else []
            last = sequence or last
        self.unknown += unknown
        if found is None and last and not unknown:
            found = self._content(seen, row, last) or (None if seen.cached else self.target.check(last, own))
        if self.target.prompts is None and not seen.cached:
            self.target.prompt.update(context for cell in own if cell.live for context in (cell.before, cell.context))
        return found, own

    def _sequence(self, cell: Cell, known: list[Cell], hidden: list[Cell], prefill: bool) -> Found | None:
        found = visible.padding(cell, known, self.target) or visible.gap(cell, known, hidden, self.target, prefill)
        if found is None and (self.window is None or len(known) + 1 < self.window):
            found = visible.beginning(cell, known, hidden, self.absolute)
        if found is None and self.contextual and known:
            found = visible.contexts(known, START if self.window is None else known[0].before)
        return found

    def _context(self, known: Sequence[Cell]) -> int:
        """Of the tokens that are visible. Under a window the oldest ones are gone: then the last cell knows."""
        if not known:
            return START
        last = known[-1]
        if self.window is not None and known[0].before != START:
            return last.context
        if self.contextual and last.live and last.before == (known[-2].context if len(known) > 1 else START):
            return last.context
        context = START
        for cell in known:
            context = extend(context, cell.token)
        return context

    def _hidden_itself(self, cell: Cell, known: Sequence[Cell]) -> Found | None:
        """A query that does not see itself is padding, unless it carries just the token that the row needs next."""
        if not known or self.target.over(known) or any(not c.live for c in known) or not self.target.wanted(cell):
            return None
        return "mask-exact", "visible", "hidden", f"the row's next token {cell.token} is hidden"

    def _content(self, seen: Seen, row: int, sequence: Sequence[Cell]) -> Found | None:
        """The row begins with its prompt."""
        prompts = self.target.prompts
        if prompts is None or len(prompts) != len(seen.ids) or self.window is not None:
            return None
        tokens, fed = [cell.token for cell in sequence], seen.ids[row].tolist()
        size = min(len(prompts[row]), len(tokens))
        prompt = list(prompts[row][:size])
        if tokens[:size] == prompt:
            return None
        foreign = next((cell.row for cell in sequence[:size] if cell.row != row), None)
        if foreign is not None:
            return "kv-matches", row, foreign, "the KV is another row's"
        least = min(2, size)  # one equal token may be chance
        late = any(tokens[i:] == prompt[: len(tokens) - i] for i in range(1, len(tokens) - least + 1))
        if late or len(tokens) < len(fed):
            return "mask-exact", prompt, tokens[:size], "more than the row is visible, or not all of it"
        return "aligned", prompt, tokens[:size], "the row was given other tokens than its prompt"


def _one_more(sees: np.ndarray, before: np.ndarray, at: int) -> bool:
    """The query before saw the same but this one's own column."""
    return bool(before[at - 1] and np.array_equal(sees[:at], before[:at]))


def _by_position(columns: Sequence[Cell | None], sees: np.ndarray, at: int) -> list[Cell | None]:
    """The cells that a query sees, by position; unknown ones first."""
    found = [columns[column] for column in np.flatnonzero(sees[:at]).tolist()]
    return sorted(found, key=lambda cell: -1 if cell is None else cell.position)
