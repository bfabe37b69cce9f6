"""What one step did: frozen records, told to every observer."""

from dataclasses import dataclass

from specproof.request import Output


@dataclass(frozen=True, slots=True)
class RowStep:
    """One row's share of a step.

    start: `cached_len` before the step; the pending token was fed at this position.
    num_right: how many drafts the target would have chosen, whatever the commit rule kept of them.
    drafted: the proposed ids, in order, without those behind the row's end. num_accepted: how many were kept.
    emitted: the ids added to the row: the kept drafts, then the target's own token; shorter where the row ended inside.
    """

    request_id: str
    start: int
    drafted: tuple[int, ...]
    num_right: int
    num_accepted: int
    emitted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Prompt tokens computed in a step: positions `[start, start + length)` of one row."""

    request_id: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """The KV of the first `length` positions of a row was taken over from `donor`, which has the same tokens there."""

    request_id: str
    donor: str
    length: int


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One plan, draft, verify, commit round.

    admitted: rows that entered in this step; refilled: how many of them took the place of a finished row while others
    were running. shared: beginnings of prompts that rows took over from others, before this step's forward. grouped:
    the rows were batched because their lengths are equal. realigned: the target's KV was moved to re-pad rows.
    finished: outputs of the rows that ended in this step. num_tokens: tokens of the target's forward. seconds: what the
    step took by the engine's clock, drafting included; draft_seconds: drafting alone. expected: how many drafts should
    have been accepted, as the pace saw it; price: seconds that they cost, of drafting and, as the pace saw it, of a
    longer forward; None if it makes no estimate.
    """

    index: int
    admitted: tuple[str, ...]
    prefilled: tuple[PrefillChunk, ...]
    rows: tuple[RowStep, ...]
    finished: tuple[Output, ...]
    refilled: int
    grouped: bool
    realigned: bool
    num_tokens: int = 0
    seconds: float = 0.0
    draft_seconds: float = 0.0
    expected: float | None = None
    price: float | None = None
    shared: tuple[SharedPrefix, ...] = ()
