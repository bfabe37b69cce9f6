"""The rules for rows of a loop that we did not write: what each query saw, against what its row must be.

Nothing is known of the loop's intentions. But a query must see one sequence: positions without a gap, each KV computed
on the very tokens before it; and what stays visible must be what the target chose.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from specproof.audit.cells import START, Cell, extend
from specproof.audit.violation import Violation
from specproof.audit.watch import Seen

Found = tuple[str, object, object, str]  # invariant, expected, found, message


@dataclass
class RowRules:
    """absolute: a constant offset of positions matters (it does not for rotary ones). window: of the layer watched.

    contextual: keys depend on the tokens before (not in a model of one layer). prompts: in row order, if known; without
    them, whatever is fed to an empty cache counts as prompt. limit: tokens that a row may emit, if known.
    greedy: emitted tokens must be the target's first choice. ends: end tokens.
    """

    absolute: bool
    window: int | None
    contextual: bool
    prompts: Sequence[Sequence[int]] | None
    limit: int | None
    greedy: bool
    ends: frozenset[int]
    choices: dict[int, frozenset[int]] = field(default_factory=dict)  # context -> the target's choices there
    exempt: set[int] = field(default_factory=set)  # contexts inside a prompt: what follows is not the target's choice
    unknown: int = 0  # (row, forward) pairs whose visible KV came from no forward under watch

    def __post_init__(self) -> None:
        for prompt in self.prompts or ():
            context = START
            for token in prompt:
                self.exempt.add(context)
                context = extend(context, token)

    def forward(self, seen: Seen, columns: list[list[Cell | None]]) -> tuple[list[Violation], list[list[Cell]]]:
        """The first violation of each row, and the cells that this forward wrote."""
        violations, written = [], []
        for row in range(len(seen.ids)):
            found, cells = self._row(seen, row, columns[row] if columns else [])
            written.append(cells)
            if found:
                violations.append(Violation(found[0], seen.step, str(row), *found[1:]))
        return violations, written

    def learn(self, written: list[list[Cell]], choices: list[list[frozenset[int]]]) -> None:
        """What the target chose behind the last tokens of each row."""
        for cells, chosen in zip(written, choices, strict=True):
            for cell, tokens in zip(cells[len(cells) - len(chosen) :], chosen, strict=True):
                if cell.live:
                    self.choices[cell.context] = self.choices.get(cell.context, frozenset()) | tokens

    def outputs(self, step: int, outputs: Sequence[Sequence[int]]) -> list[Violation]:
        """What the loop gave, against what the target chose in its forwards. Needs prompts."""
        found: list[Violation] = []
        for row, (prompt, output) in enumerate(zip(self.prompts or (), outputs, strict=True)):
            context = START
            for token in prompt:
                context = extend(context, token)
            for i, token in enumerate(output):
                allowed = self.choices.get(context)
                if self.greedy and (allowed is None or token not in allowed):
                    message = f"output token {i} is not the target's choice"
                    expected = sorted(allowed) if allowed else "seen by the target"
                    found.append(Violation("commitment", step, str(row), expected, token, message))
                    break
                if token in self.ends and i + 1 < len(output):
                    found.append(Violation("termination", step, str(row), i + 1, len(output), "output after the end"))
                    break
                context = extend(context, token)
            ended = bool(output) and output[-1] in self.ends
            if self.limit is not None and (len(output) > self.limit or (len(output) < self.limit and not ended)):
                found.append(Violation("termination", step, str(row), self.limit, len(output), "output tokens"))
        return found

    def _row(self, seen: Seen, row: int, past: list[Cell | None]) -> tuple[Found | None, list[Cell]]:
        found: Found | None = None
        cells = list(past)
        sequence: list[Cell] = []  # what the last live query saw, itself last, by position
        judged = False
        for j, token in enumerate(seen.ids[row].tolist()):
            at = seen.cached + j
            visible = seen.visible[row, j]
            live = bool(visible[at])
            next_in_line = bool(sequence) and live and _one_more(visible, seen.visible[row, j - 1], at)
            others = sequence if next_in_line else _sorted(cells, visible, at)
            known = [cell for cell in others if cell is not None]
            before = self._context(known)
            position = len(known) if seen.position_ids is None else int(seen.position_ids[row, j])
            cell = Cell(seen.step, row, token, position, before, extend(before, token) if live else 0, live)
            if len(known) < len(others):
                self.unknown += not judged
                judged = True
            elif found is None and visible[at + 1 :].any():
                found = "mask-exact", "hidden", "visible", f"a later token is visible at position {position}"
            elif found is None and not live:
                found = self._hidden_itself(cell, known) if not judged else None
            elif found is None:
                hidden = [c for c, seen_now in zip(cells, visible, strict=False) if c is not None and not seen_now]
                if next_in_line and position == known[-1].position + 1:
                    pass  # the query before was in order, and this one sees only that one more
                else:
                    found = self._order(seen, cell, known, hidden) or self._contexts(known)
                if found is None and not judged and seen.cached:
                    found = self._chosen([*known, cell], hidden)
                judged = True
            cells.append(cell)
            sequence = [*known, cell] if live else []
            if live:
                last = sequence
        own = cells[len(past) :]
        if found is None and any(cell.live for cell in own) and not any(cell is None for cell in past):
            found = self._content(seen, row, last) or (None if seen.cached else self._chosen(last, own))
        if self.prompts is None and not seen.cached:
            self.exempt.update(context for cell in own if cell.live for context in (cell.before, cell.context))
        return found, own

    def _context(self, known: Sequence[Cell]) -> int:
        """Of the tokens that are visible. Under a window the oldest ones are gone: then the last cell knows."""
        if not known:
            return START
        if self.window is not None and known[0].before != START:
            return known[-1].context
        if self.contextual and known[-1].live:
            last, chain = known[-1], known[-2].context if len(known) > 1 else START
            if last.before == chain:
                return last.context
        context = START
        for cell in known:
            context = extend(context, cell.token)
        return context

    def _rejected(self, cell: Cell) -> bool:
        allowed = self.choices.get(cell.before)
        return self.greedy and allowed is not None and cell.before not in self.exempt and cell.token not in allowed

    def _hidden_itself(self, cell: Cell, known: Sequence[Cell]) -> Found | None:
        """A query that does not see itself is padding, unless it carries just the token that the row needs next."""
        if not known or self._over(known) or any(not c.live for c in known):
            return None
        if cell.before in self.exempt or cell.token not in self.choices.get(cell.before, ()):
            return None
        return "mask-exact", "visible", "hidden", f"the row's next token {cell.token} is hidden"

    def _order(self, seen: Seen, cell: Cell, known: Sequence[Cell], hidden: Sequence[Cell]) -> Found | None:
        """Padding, positions, and which of mask, positions and KV is to blame for a gap or a double."""
        padding = next((c for c in known if not c.live), None)
        lively = [c for c in known if c.live]
        if padding is not None and lively and cell.position == len(known) and padding.step < cell.step:
            # The mask counts it as content. If some of the row is gone besides, KV has not moved with the mask.
            allowed = self.choices.get(lively[-1].context)
            newest_gone = allowed is not None and lively[-1].context not in self.exempt and cell.token not in allowed
            if newest_gone or any(b.position != a.position + 1 for a, b in pairwise(lively)):
                message = f"padding lies where position {cell.position} needs content of the row, which is gone"
                return "kv-matches", list(range(len(known))), [c.position for c in known], message
        if padding is not None:
            what = "a column that was never written" if padding.step < 0 else f"padding (token {padding.token})"
            return "mask-exact", "hidden", "visible", f"{what} is visible at position {cell.position}"
        taken = [c.position for c in known]
        full = [*taken, cell.position]
        breaks = [i for i in range(1, len(full)) if full[i] != full[i - 1] + 1]
        if breaks:
            i = breaks[0]
            expected = taken[i - 1] + 1
            if not seen.cached and full[i] == full[i - 1]:  # the usual way to write positions of padding
                message = f"its position ids make a token padding (position {full[i]} twice), but it is visible"
                return "mask-exact", "hidden", "visible", message
            if cell.position == len(known):  # mask and positions agree with each other: what lies there is wrong
                message = f"the KV visible at position {cell.position} is not that of the positions before it"
                return "kv-matches", list(range(len(known))), taken, message
            rejected = next((c for c in known if self._rejected(c)), None)
            if rejected is not None:
                message = f"a rejected token (position {rejected.position}) is visible at position {cell.position}"
                return "mask-exact", "hidden", rejected.token, message
            if self._missing(known[:i], expected, hidden):
                return "mask-exact", "visible", "hidden", f"the token at position {expected} is hidden"
            if i < len(known):
                return "kv-matches", expected, full[i], "positions of the cached KV are not contiguous"
            kind = "offset or shared" if full[i] <= expected else "a gap"
            return "positions-contiguous", expected, full[i], f"position ids: {kind} behind {expected - 1}"
        base = full[0]
        if base and (self.window is None or len(full) < self.window):
            if any(c.live and c.position == base - 1 and c.context == (known or [cell])[0].before for c in hidden):
                return "mask-exact", "visible", "hidden", f"the token at position {base - 1} is hidden"
            if self.absolute and (not known or known[0].before == START):
                return "positions-contiguous", 0, base, "position ids do not begin at zero"
        return None

    def _missing(self, known: Sequence[Cell], position: int, hidden: Sequence[Cell]) -> bool:
        """Whether the row's own cell for this position is there, but hidden."""
        context = known[-1].context if known else START
        return any(c.live and c.position == position and c.before == context and not self._rejected(c) for c in hidden)

    def _contexts(self, known: Sequence[Cell]) -> Found | None:
        if not self.contextual or not known:
            return None
        context = START if self.window is None else known[0].before
        for cell in known:
            if cell.before != context:
                where = f"position {cell.position}, written at step {cell.step} in row {cell.row}"
                return "kv-matches", "computed on the tokens before it", "computed on others", f"KV at {where}"
            context = cell.context
        return None

    def _over(self, sequence: Sequence[Cell]) -> bool:
        return any(c.token in self.ends and c.before not in self.exempt for c in sequence)

    def _chosen(self, sequence: Sequence[Cell], hidden: Sequence[Cell]) -> Found | None:
        """Every token behind the prompt is what the target chose there, where that was known before this forward."""
        emitted = 0
        for i, cell in enumerate(sequence):
            if cell.before in self.exempt:
                continue
            if self.limit is not None and emitted >= self.limit:
                return None
            allowed = self.choices.get(cell.before)
            if self._rejected(cell) and allowed is not None:
                self.choices[cell.before] = allowed | {cell.token}  # reported once
                if not allowed:
                    return "commitment", "a number", "NaN", f"the target's logits for position {cell.position} are NaN"
                if any(not c.live and c.before == cell.before and c.token in allowed for c in hidden):
                    message = f"the row's token before position {cell.position} is hidden"
                    return "mask-exact", "visible", "hidden", message
                if cell.step < sequence[-1].step:
                    message = f"a token that the target rejected stays visible, at position {cell.position}"
                    return "mask-exact", sorted(allowed), cell.token, message
                if i and sequence[i - 1].row != cell.row:
                    return "kv-matches", cell.row, sequence[i - 1].row, "the KV is another row's"
                message = f"not the target's choice on its prefix, at position {cell.position}"
                return "commitment", sorted(allowed), cell.token, message
            if cell.token in self.ends:
                return None
            emitted += 1
        return None

    def _content(self, seen: Seen, row: int, sequence: Sequence[Cell]) -> Found | None:
        """The row begins with its prompt."""
        if self.prompts is None or len(self.prompts) != len(seen.ids) or self.window is not None:
            return None
        prompt, tokens = list(self.prompts[row]), [cell.token for cell in sequence]
        size = min(len(prompt), len(tokens))
        if tokens[:size] == prompt[:size]:
            return None
        foreign = next((cell.row for cell in sequence[:size] if cell.row != row), None)
        if foreign is not None:
            return "kv-matches", row, foreign, "the KV is another row's"
        fed = seen.ids[row].tolist()
        if len(tokens) < len(fed) or any(tokens[i : i + size] == prompt[:size] for i in range(len(tokens))):
            return "mask-exact", prompt, tokens, "not the prompt alone is visible, or not all of it"
        padding = 0
        while padding < len(tokens) and tokens[padding:] != prompt[: len(tokens) - padding]:
            padding += 1
        if 0 < padding < len(tokens):
            return "mask-exact", prompt, tokens, f"{padding} tokens before the prompt are visible"
        return "aligned", prompt, tokens, "the row was given other tokens than its prompt"


def _one_more(visible: np.ndarray, before: np.ndarray, at: int) -> bool:
    """The query before saw the same but this one's own column."""
    return bool(before[at - 1] and np.array_equal(visible[:at], before[:at]) and not visible[at + 1 :].any())


def _sorted(cells: Sequence[Cell | None], visible: np.ndarray, at: int) -> list[Cell | None]:
    """The cells that a query sees, by position; unknown ones first."""
    found = [cells[column] for column in np.flatnonzero(visible[:at]).tolist()]
    return sorted(found, key=lambda cell: -1 if cell is None else cell.position)
