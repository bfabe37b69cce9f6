"""Which rows are attended together in a flat forward, and how their tokens are laid out for it."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

# What one more call of the attention costs, in pairs of a query and a key. On SmolLM2 and Qwen2.5-1.5B, in bfloat16
# with 150 to 800 keys, 1000 to 3000 gave the shortest steps.
CALL = 2000


class Part(NamedTuple):
    """Tokens of one row that are attended together: `length` of the N from `offset` on, at positions from `start` on.

    emits: whether they are no chunk of a prompt.
    """

    slot: int
    offset: int
    start: int
    length: int
    emits: bool


class Laid(NamedTuple):
    """Parts laid out as (R, m), row after row; see `Block`. end: the highest position, plus one.

    tokens, results: which of the N tokens lies where among the block's R * m results, without repeated ones.
    """

    rows: list[int]
    queries: list[int]
    columns: list[int]
    end: int
    tokens: list[int]
    results: list[int]


def grouped(parts: Sequence[Part], most: int | None) -> Iterator[list[Part]]:
    """What is attended together, at most `most` tokens of a row.

    parts: rows that emit, in the order of their slots, then others likewise. Rows that emit and chunks of prompts are
    apart, each in one group or some (see `cheapest_groups`).
    """
    emitting, chunks = [part for part in parts if part.emits], [part for part in parts if not part.emits]
    for group in [*cheapest_groups(emitting), *cheapest_groups(chunks)]:
        longest = max(part.length for part in group)
        width = most or longest
        for skip in range(0, longest, width):
            yield [
                Part(slot, offset + skip, start + skip, min(length - skip, width), emits)
                for slot, offset, start, length, emits in group
                if length > skip
            ]


def cheapest_groups(parts: Sequence[Part]) -> list[Sequence[Part]]:
    """Rows in the order of their slots, cut where it costs more to be together than another call.

    In a group each row has as many queries as the longest row, and each query meets as many keys as the furthest row
    has. The best cuts, by dynamic programming over the first `end` rows.
    """
    if not parts:
        return []
    ends, lengths = [part.start + part.length for part in parts], [part.length for part in parts]
    least = sum(m * keys for m, keys in zip(lengths, ends, strict=True))
    if _num_rows(parts[0].slot, parts[-1].slot, len(parts)) * max(lengths) * max(ends) <= CALL + least:
        return [parts]  # no cut can save a call
    best = [(0, 0)]  # of the first `end` rows: their cost, where the last group begins
    for end in range(1, len(parts) + 1):
        longest, keys, choices = 0, 0, []
        for start in range(end - 1, -1, -1):
            longest, keys = max(longest, lengths[start]), max(keys, ends[start])
            rows = _num_rows(parts[start].slot, parts[end - 1].slot, end - start)
            choices.append((best[start][0] + CALL + rows * longest * keys, start))
        best.append(min(choices))
    groups, end = [], len(parts)
    while end:
        start = best[end][1]
        groups.insert(0, parts[start:end])
        end = start
    return groups


def _num_rows(first: int, last: int, count: int) -> int:
    """Rows of a group of `count` slots: those between the first and the last are taken along if that saves copying."""
    span = last - first + 1
    return span if span <= 2 * count else count


def lay_out(parts: Sequence[Part]) -> Laid:
    """Rows between the slots are taken along or not, as `_num_rows` has it."""
    slots, m = [part.slot for part in parts], max(part.length for part in parts)
    low, high = min(slots), max(slots) + 1
    spans = _num_rows(low, high - 1, len(slots)) == high - low
    rows = list(range(low, high)) if spans else slots
    queries, columns = [[0] * m] * len(rows), [[0] * m] * len(rows)
    tokens: list[int] = []
    results: list[int] = []
    for number, part in enumerate(parts):
        at = part.slot - low if spans else number
        within = [*range(part.length), *(part.length - 1,) * (m - part.length)]  # short rows repeat their last query
        queries[at] = [part.offset + j for j in within]
        columns[at] = [part.start + j for j in within]
        tokens += range(part.offset, part.offset + part.length)
        results += range(at * m, at * m + part.length)
    end = max(part.start + part.length for part in parts)
    return Laid(rows, list(chain.from_iterable(queries)), list(chain.from_iterable(columns)), end, tokens, results)


def order_of(laid: Sequence[Laid], count: int) -> list[int]:
    """(N,): where each token lies among the blocks' results."""
    order, base = [0] * count, 0
    for block in laid:
        for token, result in zip(block.tokens, block.results, strict=True):
            order[token] = base + result
        base += len(block.queries)
    return order
