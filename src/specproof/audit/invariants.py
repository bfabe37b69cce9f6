"""The catalogue of invariants. Each is checked at run time by the auditor, and has a fault that breaks it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Invariant:
    """level: "light" where integers suffice, "full" where KV is recomputed or rows are decoded again."""

    number: str
    statement: str
    level: str = "light"


INVARIANTS = {
    "aligned": Invariant(
        "I1",
        "left-padded: padding and content have the same width in every row; slotted: the cell's place is the position, "
        "one slot for one row; flat: the tokens of a step are partitioned by row, in order",
    ),
    "positions-contiguous": Invariant(
        "I2", "a row's position ids are cached_len, cached_len + 1 and so on: zero-based, without a gap"
    ),
    "mask-exact": Invariant(
        "I3",
        "a query sees exactly its own row's cells [0, position], or the window: no padding, rejected or foreign cell",
    ),
    "kv-matches": Invariant(
        "I4",
        "token, position and request that wrote each visible cell are the ones that are now at that place; "
        "at level full, KV recomputed from the tokens equals the cache within the noise of the dtype",
    ),
    "commitment": Invariant(
        "I5",
        "the accepted drafts are the longest prefix that equals the target's choices, each emitted token is "
        "the target's choice on the emitted prefix, and committed tokens never change",
    ),
    "termination": Invariant(
        "I6", "nothing after a stop token, stop string or limit; the reason is right; each row by itself"
    ),
    "draft-in-sync": Invariant(
        "", "the drafter's cache holds committed tokens only; a target that drafts for itself is accepted always"
    ),
    "row-isolated": Invariant("", "permuting, replacing or removing neighbours changes no row", "full"),
    "conserved": Invariant(
        "", "each request is waiting, running or finished, once; outputs come back once, in input order"
    ),
}
