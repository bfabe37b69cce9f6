"""The slotted layout: row i owns slot i, the token at position p lies in cell p, nothing is moved between steps.

    slot 0  | p0 p1 p2 p3 p4 p5 .. .. .. |   cached_len 6
    slot 1  | p0 p1 p2 .. .. .. .. .. .. |   cached_len 3: what lies behind is never visible
    slot 2  | p0 p1 p2 p3 p4 p5 p6 p7 .. |

The forward is flat: (1, N), the tokens of one row after another, each row as many as it needs.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from specproof.kv.attention import AttentionPlan, Block
from specproof.kv.cells import Cells
from specproof.kv.layout import Feed, to_device
from specproof.kv.slots import Slots
from specproof.kv.transformers_cache import StepCache
from specproof.numerics.rule import PLAIN, Numerics

if TYPE_CHECKING:
    from specproof.lm import LM


class Slotted:
    """See the module's drawing. A rollback needs nothing: cells behind `cached_len` are masked, then overwritten."""

    realigned = False

    def __init__(self, lm: "LM", attention: str, numerics: Numerics = PLAIN) -> None:
        self.lm = lm
        self.numerics = numerics
        self.slots = Slots()
        self._rows: list[str] = []
        self._attention = attention

    def admit(self, row: str, length: int) -> None:
        self.slots.admit(row, length)

    def release(self, row: str) -> None:
        self.slots.release(row)

    def clear(self) -> None:
        self.slots.clear()

    def share(self, row: str, donor: str, length: int) -> None:
        self.slots.share(row, donor, length)

    def locate(self, row: str, length: int) -> tuple[Cells, Tensor]:
        cells = self.slots.cells
        return cells, self.slots.slot(row) * cells.capacity + torch.arange(length)

    @property
    def rows(self) -> Sequence[str]:
        return self._rows

    @property
    def memories(self) -> tuple[Cells, ...]:
        return (self.slots.cells,)

    @property
    def nbytes(self) -> int:
        return sum(cells.nbytes for cells in self.memories)

    @torch.inference_mode()
    def forward(self, feeds: Sequence[Feed], device_ids: Tensor | None = None) -> Tensor:
        self.slots.reserve({feed.row: self.numerics.key_length(feed.end) for feed in feeds})
        capacity = self.slots.cells.capacity
        slots = np.array([self.slots.slot(feed.row) for feed in feeds])
        lengths = np.array([feed.length for feed in feeds])
        starts = np.array([feed.start for feed in feeds])
        in_order = _in_order(feeds, slots)
        self._rows = [feeds[i].row for i in in_order]
        ends = np.empty_like(lengths)  # of each feed among the N tokens
        ends[in_order] = np.cumsum(lengths[in_order])
        offsets = ends - lengths
        row_of = np.repeat(in_order, lengths[in_order])
        positions = np.arange(len(row_of)) - (offsets - starts)[row_of]
        ids = np.array([t for i in in_order for t in (*feeds[i].tokens, *(0,) * feeds[i].num_device)])
        logits_at = _last(ends, np.array([feed.num_logits for feed in feeds]))
        device_at = _last(ends, np.array([feed.num_device for feed in feeds]))
        blocks = [
            _block(slots[g], np.minimum(lengths[g] - skip, most), starts[g] + skip, offsets[g] + skip, self.numerics)
            for g, skip, most in _groups(feeds, lengths, in_order, self.numerics.block)
        ]
        order = _order(blocks, len(row_of))

        device = self.lm.device
        arrays = [ids, positions, slots[row_of] * capacity + positions, logits_at, device_at, order]
        arrays += [array for block in blocks for array in (block["queries"], block["columns"], block["rows"])]
        ids, positions, cells, logits_at, device_at, on_device, *of_blocks = to_device(device, *arrays)
        if device_ids is not None:
            ids.index_copy_(0, device_at, device_ids)
        plan = AttentionPlan(
            blocks=[
                Block(
                    rows=block["span"] or of_blocks[3 * i + 2],
                    queries=block["run"] or of_blocks[3 * i],
                    columns=of_blocks[3 * i + 1],
                    first=None,
                    length=block["length"],
                )
                for i, block in enumerate(blocks)
            ],
            order=_run(order) or on_device,
            windows=self.lm.windows,
            kind=self._attention,
            numerics=self.numerics,
        )
        kv = StepCache(self.slots.cells, cells, plan)
        return self.lm.forward(ids[None], positions[None], kv, logits_at)[0]


def _last(ends: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Indices of the last `counts[i]` tokens of each feed."""
    total = int(counts.sum())
    within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(ends - counts, counts) + within


def _in_order(feeds: Sequence[Feed], slots: np.ndarray) -> np.ndarray:
    """In which order the feeds' tokens go through the model: rows that emit by their slots, then chunks of prompts.

    So what is attended together mostly lies together, and needs no copy.
    """
    return np.array(sorted(range(len(feeds)), key=lambda i: (not feeds[i].num_logits, slots[i])))


def _run(index: np.ndarray) -> slice | None:
    """The slice that an index stands for; None if it is none."""
    first, last = int(index[0]), int(index[-1])
    return slice(first, last + 1) if np.array_equal(index, np.arange(first, last + 1)) else None


def _groups(
    feeds: Sequence[Feed], lengths: np.ndarray, in_order: np.ndarray, most: int | None
) -> Iterator[tuple[np.ndarray, int, int]]:
    """Feeds attended together, tokens to skip of each, and at most how many to take.

    All feeds that emit are one group, or two (see `_alike`), each chunk of a prompt another (lengths differ widely).
    """
    decode = np.array([i for i in in_order if feeds[i].num_logits], dtype=int)
    chunks = [np.array([i]) for i in in_order if not feeds[i].num_logits]
    for group in [*_alike(decode, lengths), *chunks]:
        longest = int(lengths[group].max())
        for skip in range(0, longest, most or longest):
            yield group[lengths[group] > skip], skip, most or longest


def _alike(decode: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """Rows that emit: together, or those with one token apart where repeated queries would be most of the work."""
    counts = lengths[decode]
    if len(decode) and len(decode) * counts.max() > 2 * counts.sum():
        return [group for group in (decode[counts == 1], decode[counts > 1]) if len(group)]
    return [decode] if len(decode) else []


def _block(slots: np.ndarray, lengths: np.ndarray, starts: np.ndarray, offsets: np.ndarray, numerics: Numerics) -> dict:
    """Lay a group's queries out as (R, m). Rows of the span between its slots are taken along if that saves copying.

    tokens, results: which of the N tokens lies where among the block's R * m results, without repeated ones.
    """
    low, high, m = int(slots.min()), int(slots.max()) + 1, int(lengths.max())
    spans = 2 * len(slots) >= high - low
    rows = np.arange(low, high) if spans else slots
    at = slots - low if spans else np.arange(len(slots))
    within = np.minimum(np.arange(m), (lengths - 1)[:, None])  # short rows repeat their last query
    queries = np.zeros((len(rows), m), dtype=int)
    columns = np.zeros((len(rows), m), dtype=int)
    queries[at] = offsets[:, None] + within
    columns[at] = starts[:, None] + within
    own = np.arange(m) < lengths[:, None]
    return {
        "rows": rows,
        "span": slice(low, high) if spans else None,
        "queries": queries.ravel(),
        "run": _run(queries.ravel()),
        "columns": columns,
        "length": numerics.key_length(int((starts + lengths).max())),
        "tokens": queries[at][own],
        "results": (at[:, None] * m + np.arange(m))[own],
    }


def _order(blocks: Sequence[dict], count: int) -> np.ndarray:
    """(N,): where each token lies among the blocks' results."""
    order, base = np.zeros(count, dtype=int), 0
    for block in blocks:
        order[block["tokens"]] = base + block["results"]
        base += block["queries"].size
    return order
