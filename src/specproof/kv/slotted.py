"""The slotted layout: row i owns slot i, the token at position p lies in cell p, nothing is moved between steps.

    slot 0  | p0 p1 p2 p3 p4 p5 .. .. .. |   cached_len 6
    slot 1  | p0 p1 p2 .. .. .. .. .. .. |   cached_len 3: what lies behind is never visible
    slot 2  | p0 p1 p2 p3 p4 p5 p6 p7 .. |

The forward is flat: (1, N), the tokens of one row after another, each row as many as it needs.
"""

import copy
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from specproof.kv.attention import AttentionPlan, Block
from specproof.kv.cells import Cells
from specproof.kv.groups import Part, grouped, lay_out, order_of
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

    def beside(self, lm: "LM", numerics: Numerics) -> "Slotted":
        """The same rows in the same memory, computed by another LM whose KV has the same shape."""
        other = copy.copy(self)
        other.lm, other.numerics = lm, numerics
        return other

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
        slots = [self.slots.slot(feed.row) for feed in feeds]
        in_order = _in_order(feeds, slots)
        self._rows = [feeds[i].row for i in in_order]
        ids: list[int] = []
        positions: list[int] = []
        cells: list[int] = []
        offsets = [0] * len(feeds)  # of each feed among the N tokens
        for i in in_order:
            feed, first = feeds[i], slots[i] * capacity
            offsets[i] = len(ids)
            ids += [*feed.tokens, *(0,) * feed.num_device]
            positions += range(feed.start, feed.end)
            cells += range(first + feed.start, first + feed.end)
        logits_at = _last(offsets, feeds, [feed.num_logits for feed in feeds])
        device_at = _last(offsets, feeds, [feed.num_device for feed in feeds])
        parts = [
            Part(slot, offset, feed.start, feed.length, feed.num_logits > 0)
            for slot, offset, feed in zip(slots, offsets, feeds, strict=True)
        ]
        laid = [lay_out(group) for group in grouped([parts[i] for i in in_order], self.numerics.queries)]
        order = order_of(laid, len(ids))

        indices = [order, *(part for block in laid for part in (block.rows, block.queries))]
        runs = [_run(part) for part in indices]
        columns = [block.columns for block in laid]
        left = [part for part, run in zip(indices, runs, strict=True) if run is None]
        given, places, index, wanted, to_fill, *rest = _sent(
            self.lm.device, [ids, positions, cells, logits_at, device_at, *columns, *left]
        )
        sent_columns, others = rest[: len(laid)], iter(rest[len(laid) :])
        whole, *of_blocks = (next(others) if run is None else run for run in runs)
        if device_ids is not None:
            given.index_copy_(0, to_fill, device_ids)
        blocks = [
            Block(rows, queries, column.view(len(block.rows), -1), None, self.numerics.key_length(block.end))
            for block, column, rows, queries in zip(laid, sent_columns, of_blocks[::2], of_blocks[1::2], strict=True)
        ]
        plan = AttentionPlan(blocks, whole, self.lm.windows, self._attention, self.numerics)
        kv = StepCache(self.slots.cells, index, plan)
        return self.lm.forward(given[None], places[None], kv, wanted)[0]


def _sent(device: torch.device, lists: Sequence[Sequence[int]]) -> Sequence[Tensor]:
    """Lists of integers as long tensors on the device, in one transfer."""
    lengths = [len(part) for part in lists]
    (whole,) = to_device(device, np.fromiter(chain.from_iterable(lists), int, sum(lengths)))
    return whole.split(lengths)


def _last(offsets: Sequence[int], feeds: Sequence[Feed], counts: Sequence[int]) -> list[int]:
    """Indices of the last `counts[i]` tokens of each feed."""
    return [
        at
        for offset, feed, count in zip(offsets, feeds, counts, strict=True)
        for at in range(offset + feed.length - count, offset + feed.length)
    ]


def _in_order(feeds: Sequence[Feed], slots: Sequence[int]) -> list[int]:
    """In which order the feeds' tokens go through the model: rows that emit by their slots, then chunks of prompts.

    So what is attended together mostly lies together, and needs no copy.
    """
    return sorted(range(len(feeds)), key=lambda i: (not feeds[i].num_logits, slots[i]))


def _run(index: list[int]) -> slice | None:
    """The slice that an index stands for; None if it is none."""
    run = range(index[0], index[-1] + 1)
    return slice(run.start, run.stop) if index == list(run) else None
