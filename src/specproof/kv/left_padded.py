"""The left-padded layout: one rectangle, all rows end at the same column (the paper's sections 1.2 and 1.6).

    row 0  | __ __ p0 p1 p2 p3 |      pad 2, cached_len 4
    row 1  | p0 p1 p2 p3 p4 p5 |      pad 0, cached_len 6
    row 2  | __ __ __ __ p0 p1 |      pad 4, cached_len 2

A forward appends (b, n) columns. Rows that keep different numbers of them no longer end together; before the next
forward their KV is moved by the change of their padding. Rows that sit out wait in a pool of slots.
"""

from collections.abc import Sequence
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


class LeftPadded:
    """See the module's drawing. The only state beside the cells is each row's padding; position p lies at pad + p."""

    def __init__(self, lm: "LM", attention: str, numerics: Numerics = PLAIN) -> None:
        self.lm = lm
        self.numerics = numerics
        self.realigned = False
        self._attention = attention
        self._cells = Cells()
        self._pads: dict[str, int] = {}  # the rows of the rectangle, in order
        self._written: dict[str, int] = {}  # positions of each live row that hold something
        self._pool = Slots()
        self._pooled: dict[str, int] = {}  # positions of each live row that the pool holds as well

    def admit(self, row: str, length: int) -> None:
        self._written[row] = self._pooled[row] = 0

    def release(self, row: str) -> None:
        del self._written[row], self._pooled[row]
        if row in self._pool:
            self._pool.release(row)
        if not self._written:
            self.clear()

    def clear(self) -> None:
        self._written, self._pooled, self._pads = {}, {}, {}
        self._cells.reshape(0, 0)
        self._pool.clear()

    def locate(self, row: str, length: int) -> tuple[Cells, Tensor] | None:
        if row not in self._pads:
            return None
        first = self.rows.index(row) * self._cells.capacity + self._pads[row]
        return self._cells, first + torch.arange(length)

    @property
    def memories(self) -> tuple[Cells, ...]:
        return self._cells, self._pool.cells

    @property
    def nbytes(self) -> int:
        return sum(cells.nbytes for cells in self.memories)

    @property
    def rows(self) -> tuple[str, ...]:
        """Those of the rectangle, from its first to its last."""
        return tuple(self._pads)

    @torch.inference_mode()
    def forward(self, feeds: Sequence[Feed], device_ids: Tensor | None = None) -> Tensor:
        self.realigned = False
        self._pool.reserve({})  # give back what finished rows held there
        chunks = [feed for feed in feeds if not feed.num_logits]
        emitting = [feed for feed in feeds if feed.num_logits]
        logits = [self._rectangle(group, device_ids) for group in (chunks, emitting) if group]
        return logits[-1]

    def _rectangle(self, feeds: Sequence[Feed], device_ids: Tensor | None) -> Tensor:
        width = max(feed.length for feed in feeds)
        end = self._arrange({feed.row: feed.start for feed in feeds}, width)
        place = {row: i for i, row in enumerate(self._pads)}
        at = np.array([place[feed.row] for feed in feeds])
        lengths = np.array([feed.length for feed in feeds])
        starts = np.array([feed.start for feed in feeds])
        ids, positions = np.zeros((2, len(feeds), width), dtype=int)
        for i, feed in zip(at, feeds, strict=True):
            ids[i, : len(feed.tokens)] = feed.tokens
            ids[i, feed.length :] = feed.tokens[-1] if feed.tokens else 0
        # Columns behind a row's own tokens are fillers: nothing real sees them, and they are never kept. They
        # repeat one of the row's own, since what is masked must be a number too.
        positions[at] = starts[:, None] + np.minimum(np.arange(width), lengths[:, None] - 1)
        columns = np.broadcast_to(end + np.arange(width), positions.shape)
        cells = np.arange(len(feeds))[:, None] * self._cells.capacity + columns
        device_at = [i * width + len(f.tokens) + j for i, f in zip(at, feeds, strict=True) for j in range(f.num_device)]
        wanted = [(i, f.length - f.num_logits + j) for i, f in zip(at, feeds, strict=True) for j in range(f.num_logits)]
        first_wanted = min((column for _, column in wanted), default=width)
        logits_at = np.array([i * (width - first_wanted) + column - first_wanted for i, column in wanted], dtype=int)

        ids, positions, columns, cells, pads, device_at, logits_at, kept = to_device(
            self.lm.device,
            *(ids, positions, columns, cells, np.array(list(self._pads.values())), np.array(device_at, dtype=int)),
            *(logits_at, np.arange(first_wanted, width)),
        )
        if device_ids is not None and len(device_at):
            ids.view(-1).index_copy_(0, device_at, device_ids)
        if self.numerics.invariant:
            blocks, order, gathered = self._in_position_order(positions, pads)
        else:
            whole = slice(0, ids.numel())
            blocks, order, gathered = [Block(slice(None), whole, columns, pads, end + width)], whole, None
        plan = AttentionPlan(blocks, order, self.lm.windows, self._attention, self.numerics)
        logits = self.lm.forward(ids, positions, StepCache(self._cells, cells.flatten(), plan, gathered), kept)
        for feed in feeds:
            self._written[feed.row] = feed.end
        return logits.flatten(0, 1).index_select(0, logits_at)

    def _in_position_order(self, positions: Tensor, pads: Tensor) -> tuple[list[Block], Tensor, Tensor | None]:
        """Blocks that see each row's cells by position, so that padding does not shift the order of summation.

        positions: (b, n). -> blocks, where each of the b * n tokens lies among their results, the cells to gather.
        """
        count, width = positions.shape
        most, device = self.numerics.queries or width, positions.device
        length = self.numerics.key_length(int(positions.max()) + 1)
        blocks, order, base = [], torch.empty(count, width, dtype=torch.long, device=device), 0
        for skip in range(0, width, most):
            m = min(most, width - skip)
            column = skip + torch.arange(m, device=device)
            queries = torch.arange(count, device=device)[:, None] * width + column
            order[:, skip : skip + m] = base + torch.arange(count * m, device=device).view(count, m)
            blocks.append(Block(slice(None), queries.flatten(), positions[:, column], None, length))
            base += count * m
        capacity = self._cells.capacity
        if length <= capacity and not any(self._pads.values()):
            return blocks, order.flatten(), None
        places = (pads[:, None] + torch.arange(length, device=device)).clamp(max=capacity - 1)
        return blocks, order.flatten(), torch.arange(count, device=device)[:, None] * capacity + places

    def _arrange(self, starts: dict[str, int], width: int) -> int:
        """Make the rectangle hold these rows, `[0, start)` of each, all ending at one column; return that column."""
        for row, start in starts.items():
            self._written[row] = min(self._written[row], start)
            self._pooled[row] = min(self._pooled[row], start)
        same_rows = starts.keys() == self._pads.keys()
        pads = self._aligned(starts, same_rows)
        end = max(pads[row] + start for row, start in starts.items())
        if same_rows and pads == self._pads and end + width <= self._cells.capacity:
            return end
        filled = [row for row, start in starts.items() if start]
        if all(row in self._pads for row in filled):
            self.realigned |= len({pads[row] - self._pads[row] for row in filled}) > 1
        else:
            self.realigned |= len({starts[row] for row in filled}) > 1
        self._move(pads, filled, max(int((end + width) * 1.125), self.numerics.key_length(end + width)))
        self._pads = pads
        return end

    def _aligned(self, starts: dict[str, int], same_rows: bool) -> dict[str, int]:
        """The rows' new padding: as it is where the rows end together already, else the least that aligns them."""
        if same_rows and len({self._pads[row] + start for row, start in starts.items()}) == 1:
            return self._pads
        end = max(starts.values())
        return {row: end - starts[row] for row in (self._pads if same_rows else starts)}

    def _move(self, pads: dict[str, int], filled: list[str], capacity: int) -> None:
        """Rebuild the rectangle: one operation per tensor from the old one, or from the pool if a row waits there."""
        self._park([row for row in self._pads if row in self._written and row not in pads])
        if all(row in self._pads for row in filled):
            place = {row: i for i, row in enumerate(self._pads)}
            if filled:
                source = _source(pads, place, self._pads, self._cells.capacity, capacity)
                self._cells.rearrange(source, len(pads), capacity)
            else:
                self._cells.reshape(len(pads), capacity)
        else:
            self._park([row for row in filled if row in self._pads])
            place = {row: self._pool.slot(row) for row in filled}
            source = _source(pads, place, {}, self._pool.cells.capacity, capacity)
            self._cells.reshape(len(pads), capacity)
            self._cells.copy_from(self._pool.cells, source, torch.arange(len(source)))
        if self._written.keys() <= pads.keys():  # nobody waits: the pool would only hold copies
            self._pool.clear()
            self._pooled = dict.fromkeys(self._pooled, 0)

    def _park(self, rows: list[str]) -> None:
        """Copy to the pool what it does not hold yet of rows in the rectangle."""
        rows = [row for row in rows if self._pooled[row] < self._written[row]]
        if not rows:
            return
        for row in rows:
            if row not in self._pool:
                self._pool.admit(row, self._written[row])
        self._pool.reserve({row: self._written[row] for row in rows})
        place = {row: i for i, row in enumerate(self._pads)}
        source, index = [], []
        for row in rows:
            positions = np.arange(self._pooled[row], self._written[row])
            source.append(place[row] * self._cells.capacity + self._pads[row] + positions)
            index.append(self._pool.slot(row) * self._pool.cells.capacity + positions)
            self._pooled[row] = self._written[row]
        source, index = to_device(self.lm.device, np.concatenate(source), np.concatenate(index))
        self._pool.cells.copy_from(self._cells, source, index)


def _source(
    pads: dict[str, int], place: dict[str, int], old_pads: dict[str, int], old_capacity: int, capacity: int
) -> Tensor:
    """For each cell of the new rectangle, the cell of the old memory that holds the same row and position.

    Cells without content take any cell: they are never visible.
    """
    rows = np.array([place.get(row, 0) for row in pads])
    shift = np.array([pad - old_pads.get(row, 0) for row, pad in pads.items()])
    places = np.clip(np.arange(capacity) - shift[:, None], 0, old_capacity - 1)
    return torch.from_numpy((rows[:, None] * old_capacity + places).ravel())
