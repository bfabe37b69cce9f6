"""Who wrote each cell: an integer triple beside the keys and values, moved whenever they are moved.

Stale, shifted or foreign KV is then an inequality of integers, with no tolerance to argue about.
"""

import torch
from torch import Tensor


class Ledger:
    """entries: (cells, 3) long: number of the request, position, token. -1 where nothing was written."""

    def __init__(self, size: int) -> None:
        self.entries = torch.empty(0, 3, dtype=torch.long)
        self.clear(size)

    def clear(self, size: int) -> None:
        self.entries = torch.full((size, 3), -1)

    def rearrange(self, source: Tensor) -> None:
        """Entry i becomes what entry `source[i]` was."""
        self.entries = self.entries[source.to("cpu")]

    def copy_from(self, other: "Ledger", source: Tensor, index: Tensor) -> None:
        self.entries[index.to("cpu")] = other.entries[source.to("cpu")]

    def stamp(self, index: Tensor, entries: Tensor) -> None:
        """index: (N,) cells. entries: (N, 3), what is written there now."""
        self.entries[index] = entries
