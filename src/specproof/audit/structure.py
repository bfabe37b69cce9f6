"""What the tokens of a row look like, from integers alone: loops, ids that should not be there, a wrong end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specproof.audit.trace_row import Trace

LOOP_PERIOD, LOOP_TIMES, LOOP_TOKENS = 8, 4, 8


@dataclass(frozen=True, slots=True)
class Termination:
    """A wrong end. kind: after-stop, past-limit, cut-tail or wrong-reason. index: of the first token concerned."""

    kind: str
    index: int
    message: str


def first_end(tokens: Sequence[int], end_ids: frozenset[int]) -> int | None:
    """Index of the first ending id."""
    return next((i for i, token in enumerate(tokens) if token in end_ids), None)


def judged_length(tokens: Sequence[int], end_ids: frozenset[int], min_new_tokens: int) -> int:
    """How many tokens belong to the row: up to its own first stop, which is included."""
    end = next((i for i, token in enumerate(tokens) if token in end_ids and i >= min_new_tokens), None)
    return len(tokens) if end is None else end + 1


def find_loop(tokens: Sequence[int]) -> tuple[int, int] | None:
    """(period, repetitions) of the loop that the row ends in: at least 4 times, at least 8 tokens."""
    for period in range(1, LOOP_PERIOD + 1):
        same = 0
        while same + period < len(tokens) and tokens[-1 - same] == tokens[-1 - same - period]:
            same += 1
        times = (same + period) // period
        if times >= LOOP_TIMES and same + period >= LOOP_TOKENS:
            return period, times
    return None


def check_end(
    trace: Trace, judged: int, end_ids: frozenset[int], filler: frozenset[int], context: int | None,
    wants_end: bool, decode: Callable[[Sequence[int]], str] | None,
) -> Termination | None:  # fmt: skip
    """What is wrong with the row's end. judged: see judged_length. filler: ids that pad a finished row in a batch.

    wants_end: behind the last judged token the target ends the row (or is within the noise of it).
    A row of unknown limit is not called cut unless it claims to have stopped by itself, is empty or under its minimum.
    """
    tokens, behind = trace.token_ids, trace.token_ids[judged:]
    room = context - len(trace.prompt_ids) if context is not None else None
    limit = trace.request.max_new_tokens if trace.limit_known else None
    most = min((bound for bound in (limit, room) if bound is not None), default=None)
    ended = judged > 0 and tokens[judged - 1] in end_ids and judged > trace.request.min_new_tokens
    if any(token not in filler | end_ids for token in behind):
        return Termination("after-stop", judged, f"{len(behind)} tokens follow the stop at {judged - 1}")
    if most is not None and judged > most:
        return Termination("past-limit", most, f"{judged} tokens, the limit is {most}")
    if _stop_string(trace, tokens[: judged - 1], decode) and decode and not trace.request.min_new_tokens:
        return Termination("after-stop", judged - 1, "the text goes on after its stop string")
    claim = (trace.finish_reason or "").lower()
    least = trace.request.min_new_tokens
    if ended:
        if claim in ("length", "max_tokens") and judged != most:
            return Termination("wrong-reason", judged - 1, f"it ended by id {tokens[judged - 1]} and claims {claim!r}")
        return None
    if judged == most or wants_end or _stop_string(trace, tokens[:judged], decode):
        return None  # an engine may leave the ending id out
    if limit is not None:
        return Termination(
            "cut-tail", judged, f"it ends after {judged} of {most} tokens with no stop, the target goes on"
        )
    if judged < max(1, least):
        what = f"it ends after {judged} tokens, at least {least} were asked for" if least else "it is empty"
        return Termination("cut-tail", judged, f"{what}; the target goes on")
    if claim in ("stop", "eos"):
        return Termination(
            "cut-tail", judged, f"it claims {claim!r} after {judged} tokens; no stop, the target goes on"
        )
    return None


def _stop_string(trace: Trace, tokens: Sequence[int], decode: Callable[[Sequence[int]], str] | None) -> bool:
    """Whether the row ended by a stop string, as far as that can be told."""
    stops = [*trace.request.stop, *([trace.stop] if isinstance(trace.stop, str) else [])]
    if not stops:
        return False
    return decode is None or any(stop in decode(tokens) for stop in stops)
