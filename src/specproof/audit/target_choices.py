"""What the target chose after each sequence of tokens that it saw, and whether a foreign loop kept to it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from specproof.audit.cells import START, Cell, extend
from specproof.audit.violation import Violation

Found = tuple[str, object, object, str]  # invariant, expected, found, message


@dataclass
class TargetChoices:
    """prompts: in row order, if known; without them, whatever is fed to an empty cache counts as prompt.

    limit: tokens that a row may emit, if known. greedy: whether emitted tokens must be the target's first choice.
    ends: end tokens. at: context -> the tokens with the highest logit there. prompt: contexts inside a prompt, after
    which the next token is no choice of the target.
    """

    prompts: Sequence[Sequence[int]] | None
    limit: int | None
    greedy: bool
    ends: frozenset[int]
    at: dict[int, frozenset[int]] = field(default_factory=dict)
    prompt: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        for prompt in self.prompts or ():
            context = START
            for token in prompt:
                self.prompt.add(context)
                context = extend(context, token)

    def learn(self, written: list[list[Cell]], choices: list[list[frozenset[int]]]) -> None:
        """choices: (B, m), of the last m tokens of each row."""
        for cells, chosen in zip(written, choices, strict=True):
            for cell, tokens in zip(cells[len(cells) - len(chosen) :], chosen, strict=True):
                if cell.live:
                    self.at[cell.context] = self.at.get(cell.context, frozenset()) | tokens

    def refused(self, context: int, token: int) -> bool:
        """The target is known to have chosen otherwise there."""
        allowed = self.at.get(context)
        return self.greedy and allowed is not None and context not in self.prompt and token not in allowed

    def rejected(self, cell: Cell) -> bool:
        return self.refused(cell.before, cell.token)

    def wanted(self, cell: Cell) -> bool:
        """The target is known to have chosen just this token there."""
        return cell.before not in self.prompt and cell.token in self.at.get(cell.before, ())

    def over(self, sequence: Sequence[Cell]) -> bool:
        """The row has emitted an end token."""
        return any(cell.token in self.ends and cell.before not in self.prompt for cell in sequence)

    def check(self, sequence: Sequence[Cell], hidden: Sequence[Cell]) -> Found | None:
        """Every visible token behind the prompt is what the target chose there, as far as known before this forward.

        sequence: what a query sees, itself last. hidden: what else the row's columns hold.
        """
        emitted = 0
        for i, cell in enumerate(sequence):
            if cell.before in self.prompt:
                continue
            if self.limit is not None and emitted >= self.limit:
                return None
            if self.rejected(cell):
                return self._explain(cell, sequence[i - 1] if i else None, sequence[-1], hidden)
            if cell.token in self.ends:
                return None
            emitted += 1
        return None

    def _explain(self, cell: Cell, before: Cell | None, query: Cell, hidden: Sequence[Cell]) -> Found:
        allowed, where = self.at[cell.before], f"position {cell.position}"
        self.at[cell.before] = allowed | {cell.token}  # reported once
        if not allowed:
            return "commitment", "a number", "NaN", f"the target's logits for {where} are NaN"
        if any(not c.live and c.before == cell.before and c.token in allowed for c in hidden):
            return "mask-exact", "visible", "hidden", f"the row's token before {where} is hidden"
        if cell.step < query.step:
            message = f"a token that the target rejected stays visible, at {where}"
            return "mask-exact", sorted(allowed), cell.token, message
        if before is not None and before.row != cell.row:
            return "kv-matches", cell.row, before.row, "the KV is another row's"
        return "commitment", sorted(allowed), cell.token, f"not the target's choice on its prefix, at {where}"

    def check_outputs(self, step: int, outputs: Sequence[Sequence[int]]) -> list[Violation]:
        """What the loop gave for each of the prompts: the target's choices in its own forwards, and ended right."""
        found: list[Violation] = []
        for row, (prompt, output) in enumerate(zip(self.prompts or (), outputs, strict=True)):
            context = START
            for token in prompt:
                context = extend(context, token)
            for i, token in enumerate(output):
                allowed = self.at.get(context)
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
