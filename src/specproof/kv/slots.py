"""Rows in cells: which row is whose, and how much memory they get. The token at position p lies at place p."""

import numpy as np
import torch

from specproof.kv.cells import Cells

SLACK = 1.25


class Slots:
    """Cells whose rows are slots: all together at most SLACK times what the longest live row asks, for each live row.

    A slot is taken in `admit` and given up in `release`. Memory changes shape only in `reserve`, before a forward: each
    change copies all of it, so it does not follow every token and every row that finishes.
    """

    def __init__(self) -> None:
        self.cells = Cells()
        self._slot: dict[str, int | None] = {}  # None: admitted, no slot yet
        self._asks: dict[str, int] = {}

    def __contains__(self, row: str) -> bool:
        return row in self._slot

    def admit(self, row: str, length: int) -> None:
        """Give the row a free slot, or one in the next `reserve`. length: positions it is sure to need."""
        taken = set(self._slot.values())
        self._slot[row] = next((i for i in range(self.cells.rows) if i not in taken), None)
        self._asks[row] = length

    def release(self, row: str) -> None:
        """The row has finished: its slot is free."""
        del self._slot[row], self._asks[row]
        if not self._slot:
            self.cells.reshape(0, 0)

    def reserve(self, needs: dict[str, int]) -> None:
        """Make room for positions `[0, needs[row])`; give back what no live row needs."""
        for row, need in needs.items():
            self._asks[row] = max(self._asks[row], need)
        need = max(self._asks.values(), default=0)
        cells, live = self.cells, len(self._slot)
        fits = need <= cells.capacity and cells.rows * cells.capacity <= SLACK * need * live
        if fits and None not in self._slot.values():
            return
        # Half of the slack is for tokens to come, the other half for rows to go.
        capacity = int(need * SLACK**0.5)
        placed = sorted((slot, row) for row, slot in self._slot.items() if slot is not None)
        order = [row for _, row in placed] + [row for row, slot in self._slot.items() if slot is None]
        if cells.rows == 0:
            cells.reshape(live, capacity)
        else:
            old = np.array([self._slot[row] or 0 for row in order])
            places = np.minimum(np.arange(capacity), cells.capacity - 1)
            source = old[:, None] * cells.capacity + places
            cells.rearrange(torch.from_numpy(source.ravel()), live, capacity)
        self._slot = {row: i for i, row in enumerate(order)}

    def slot(self, row: str) -> int:
        """The row's slot; valid until the next `reserve`."""
        slot = self._slot[row]
        assert slot is not None, f"{row} has no slot before reserve"
        return slot
