"""Rows in cells: which row is whose, and how much memory they get. The token at position p lies at place p."""

import numpy as np
import torch

from specproof.kv.cells import Cells
from specproof.kv.layout import to_device

SLACK = 1.25


class Slots:
    """Cells whose rows are slots: all together at most SLACK times what the longest live row asks, for each live row.

    A slot is taken in `admit` and given up in `release`. Memory changes shape only in `reserve`, before a forward: each
    change copies all of it, so it does not follow every token and every row that finishes. What `share` asks for is
    copied then as well: until that `reserve`, slots that were given up can be read.
    """

    def __init__(self) -> None:
        self.cells = Cells()
        self._slot: dict[str, int | None] = {}  # None: admitted, no slot yet
        self._asks: dict[str, int] = {}
        self._left: dict[str, int] = {}  # rows that have finished since the last reserve -> what was their slot
        self._taken: dict[str, tuple[int, int]] = {}  # row -> (slot, length) that it begins with

    def __contains__(self, row: str) -> bool:
        return row in self._slot

    def admit(self, row: str, length: int) -> None:
        """Give the row a free slot, or one in the next `reserve`. length: positions it is sure to need."""
        taken = set(self._slot.values())
        self._slot[row] = next((i for i in range(self.cells.rows) if i not in taken), None)
        self._asks[row] = length
        self._left.pop(row, None)

    def release(self, row: str) -> None:
        """The row has finished: its slot is free."""
        slot = self._slot.pop(row)
        del self._asks[row]
        self._taken.pop(row, None)
        if slot is not None:
            self._left[row] = slot

    def clear(self) -> None:
        """No rows, no memory."""
        for table in (self._slot, self._asks, self._left, self._taken):
            table.clear()
        self.cells.reshape(0, 0)

    def share(self, row: str, donor: str, length: int) -> None:
        """The row, which holds nothing, begins with places `[0, length)` of the donor's slot."""
        slot = self._slot[donor] if donor in self._slot else self._left[donor]
        assert slot is not None, f"{donor} holds nothing"
        self._taken[row] = slot, length

    def reserve(self, needs: dict[str, int]) -> None:
        """Make room for positions `[0, needs[row])`; give back what no live row needs."""
        for row, need in needs.items():
            self._asks[row] = max(self._asks[row], need)
        need = max(self._asks.values(), default=0)
        cells, live = self.cells, len(self._slot)
        fits = need <= cells.capacity and cells.rows * cells.capacity <= SLACK * need * live
        if fits and None not in self._slot.values():
            self._copy()
        else:
            self._reshape(need, live)
        self._left.clear()
        self._taken.clear()

    def _copy(self) -> None:
        """Copy what is taken over, all at once: a slot may be both read and written."""
        moves = [(*taken, self.slot(row)) for row, taken in self._taken.items() if taken[0] != self._slot[row]]
        if moves:
            old, lengths, new = np.array(moves).T
            within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            starts = np.repeat(np.stack([old, new]) * self.cells.capacity, lengths, axis=1)
            device = next(iter(self.cells.keys.values())).device
            source, index = to_device(device, *(starts + within))
            self.cells.copy_from(self.cells, source, index)

    def _reshape(self, need: int, live: int) -> None:
        """Move all rows to memory of the size that is needed; a row that takes over comes from its donor's slot."""
        cells = self.cells
        # Half of the slack is for tokens to come, the other half for rows to go.
        capacity = int(need * SLACK**0.5)
        placed = sorted((slot, row) for row, slot in self._slot.items() if slot is not None)
        order = [row for _, row in placed] + [row for row, slot in self._slot.items() if slot is None]
        if not cells.rows or not live:
            cells.reshape(live, capacity)
        else:
            old = np.array([self._taken[row][0] if row in self._taken else self._slot[row] or 0 for row in order])
            places = np.minimum(np.arange(capacity), cells.capacity - 1)
            source = old[:, None] * cells.capacity + places
            cells.rearrange(torch.from_numpy(source.ravel()), live, capacity)
        self._slot = {row: i for i, row in enumerate(order)}

    def slot(self, row: str) -> int:
        """The row's slot; valid until the next `reserve`."""
        slot = self._slot[row]
        assert slot is not None, f"{row} has no slot before reserve"
        return slot
