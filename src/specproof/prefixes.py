"""Rows that begin alike: what one of them has computed, the others take over."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from specproof.step import SharedPrefix

# Fewest tokens taken over or waited for. Measured with SmolLM2 and 8 rows: a copy of 300 tokens costs as much as two
# tokens of prefill, the step that a row may lose by waiting as much as 35, so that waiting pays where three rows do.
LEAST = 16
_BLOCK = 64


@dataclass(frozen=True, slots=True)
class Holder:
    """A row as a donor, or as one that takes over.

    cached_len: positions that have KV. prefill_len: positions that will have it before the row emits; a row takes over
    no more than that.
    """

    request_id: str
    token_ids: Sequence[int]
    cached_len: int
    prefill_len: int


def share_prefixes(rows: Sequence[Holder], past: Sequence[Holder] = ()) -> tuple[tuple[SharedPrefix, ...], set[str]]:
    """What rows without KV take over now, and which of them wait for more to come.

    rows: in the order in which their prompts are computed. past: rows that have ended but are readable still.
    A row waits only for rows before it, and only while their prompts are being computed. So the first row that is not
    ready never waits, and there is always something to do.
    """
    shares, waiting = [], set()
    for i, row in enumerate(rows):
        if row.cached_len or row.prefill_len < LEAST:
            continue
        donor, now, later = "", 0, 0
        for at, other in enumerate(chain(rows, past)):
            coming = other.prefill_len if at < i else 0
            most = min(row.prefill_len, max(other.cached_len, coming))
            common = common_length(row.token_ids, other.token_ids, most)
            later = max(later, min(common, coming))
            if min(common, other.cached_len) > now:
                donor, now = other.request_id, min(common, other.cached_len)
        if later >= (now + LEAST if now >= LEAST else LEAST):
            waiting.add(row.request_id)
        elif now >= LEAST:
            shares.append(SharedPrefix(row.request_id, donor, now))
    return tuple(shares), waiting


def common_length(ours: Sequence[int], theirs: Sequence[int], most: int) -> int:
    """Length of the longest common prefix of two lists, or two tuples, neither shorter than `most`; `most` at most."""
    for start in range(0, most, _BLOCK):
        end = min(start + _BLOCK, most)
        if ours[start:end] != theirs[start:end]:
            return next(at for at in range(start, end) if ours[at] != theirs[at])
    return most
