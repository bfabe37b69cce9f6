"""Where a row ends inside a block of new tokens, and why."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ids
from dataclasses import dataclass

from specproof.choice import NO_CHOICE
from specproof.request import FinishReason
from specproof.sequence import Sequence

Decode = Callable[[Ids[int]], str]


@dataclass(frozen=True, slots=True)
class End:
    """The row keeps the first `kept` of the new tokens.

    reason None: it goes on; "error": no token could be chosen behind them. stop: the id or string that matched.
    """

    kept: int
    reason: FinishReason | None = None
    stop: int | str | None = None


def find_end(row: Sequence, new: Ids[int], decode: Decode | None) -> End:
    """The first of: an end id, a completed stop string, the row's limit, NO_CHOICE. A stop at the limit is a stop.

    An end id that completes a stop string counts as the id.

    new: ids chosen after the row's tokens. decode: needed for stop strings only.
    """
    new = new[: row.remaining]
    end = End(len(new), "length" if len(new) == row.remaining else None)
    if NO_CHOICE in new:
        new = new[: new.index(NO_CHOICE)]
        end = End(len(new), "error")
    at = next((i for i, token in enumerate(new) if token in row.end_ids), None)
    if at is not None:
        end = End(at + 1, "stop", new[at])
    if row.request.stop:
        assert decode is not None, "stop strings are refused at intake without a tokenizer"
        end = _find_stop_string(row, new[: end.kept - (at is not None)], decode) or end
    return end


def visible_text(row: Sequence, end: End, decode: Decode) -> str:
    """The text of a finished row: without its final stop id, or up to its stop string."""
    emitted = row.emitted
    if isinstance(end.stop, int):
        return decode(emitted[:-1])
    text = decode(emitted)
    if end.stop is None:
        return text
    found = _first(text, [end.stop], _protected(row, emitted, decode))
    return text[: found[0]] if found else text


def _find_stop_string(row: Sequence, new: Ids[int], decode: Decode) -> End | None:
    emitted = row.emitted
    protected = _protected(row, [*emitted, *new], decode)
    stops = row.request.stop
    # Text grows with its tokens, but for half a character (U+FFFD), which its other half makes whole.
    grows = not any("\ufffd" in stop for stop in stops)
    if grows and not _first(decode([*emitted, *new]), stops, protected):
        return None
    for kept in range(1, len(new) + 1):
        if found := _first(decode([*emitted, *new[:kept]]), stops, protected):
            return End(kept, "stop", found[1])
    return None


def _protected(row: Sequence, emitted: Ids[int], decode: Decode) -> int:
    """Characters of the first `min_new_tokens` tokens: a stop string must end behind them."""
    least = row.request.min_new_tokens
    return len(decode(emitted[:least])) if least else 0


def _first(text: str, stops: Iterable[str], protected: int) -> tuple[int, str] | None:
    """(offset, stop) of the earliest stop string that ends behind `protected` characters; the longest on a tie."""
    found = [
        (at, -len(stop), stop) for stop in stops if (at := text.find(stop, max(0, protected - len(stop) + 1))) >= 0
    ]
    return (min(found)[0], min(found)[2]) if found else None
