"""What the rows must be, kept apart from the engine: from the requests and the emitted tokens alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specproof.request import Request

Decode = Callable[[Sequence[int]], str]


@dataclass
class TrueRow:
    """One request's tokens as they should be. ahead: ids fed in this step behind the committed ones, per layout."""

    number: int
    request: Request
    committed: list[int]
    prompt_len: int
    limit: int
    end_ids: frozenset[int]
    finished: bool = False
    cached: dict[str, int] = field(default_factory=dict)  # watched layout -> positions it should hold
    ahead: dict[str, list[int]] = field(default_factory=dict)  # watched layout -> ids

    def known(self, layout: str) -> list[int]:
        """Committed tokens and what this layout was fed behind them in this step."""
        return self.committed + self.ahead.get(layout, [])

    def allowed_end(
        self, emitted_before: Sequence[int], new: Sequence[int], decode: Decode | None
    ) -> tuple[int, str | None]:
        """(how many of `new` are kept, why the row ends there): one token at a time, as the row alone would go on."""
        emitted = list(emitted_before)
        least, stops = self.request.min_new_tokens, self.request.stop
        for kept, token in enumerate(new, start=1):
            emitted.append(token)
            if token in self.end_ids:
                return kept, "stop"
            if stops and decode and len(emitted) > least:
                safe = len(decode(emitted[:least]))
                if any(decode(emitted).find(stop, max(0, safe - len(stop) + 1)) >= 0 for stop in stops):
                    return kept, "stop"
            if len(emitted) == self.limit:
                return kept, "length"
        return len(new), None
