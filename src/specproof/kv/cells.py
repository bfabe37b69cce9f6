"""The memory itself: per layer one tensor of keys and one of values, cut into equal rows of cells."""

import torch
from torch import Tensor

from specproof.kv.ledger import Ledger


class Cells:
    """`rows` x `capacity` cells per layer. The cell at place p of row r has the flat index r * capacity + p.

    Layers are allocated when first written, on the device and with the heads and dtype of what is written.
    ledger: None, or who wrote each cell; it takes part in every move.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.capacity = 0
        self.keys: dict[int, Tensor] = {}  # layer -> (H, rows * capacity, D)
        self.values: dict[int, Tensor] = {}
        self._views: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}  # by the arguments of `view` and `of_rows`
        self.ledger: Ledger | None = None

    def write(self, layer: int, index: Tensor, keys: Tensor, values: Tensor) -> None:
        """index: (N,) long, flat cells. keys, values: (H, N, D)."""
        if layer not in self.keys:
            self._allocate(layer, keys, values)
        index = index.to(keys.device, non_blocking=True)
        self.keys[layer].index_copy_(1, index, keys)
        self.values[layer].index_copy_(1, index, values)

    def view(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer as (rows, H, capacity, D), without copying."""
        if (layer,) not in self._views:
            shape = (self.rows, self.capacity)
            keys, values = (t[layer].unflatten(1, shape).transpose(0, 1) for t in (self.keys, self.values))
            self._views[layer,] = keys, values
        return self._views[layer,]

    def of_rows(self, layer: int, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Keys and values of `count` rows from `first` on as (H, count, capacity, D), without copying."""
        if (layer, first, count) not in self._views:
            keys, values = (t.transpose(0, 1).narrow(1, first, count) for t in self.view(layer))
            self._views[layer, first, count] = keys, values
        return self._views[layer, first, count]

    def wipe(self, index: Tensor) -> None:
        """Zero these cells, (N,) long, in all layers: a masked cell that holds NaN still spoils what is summed."""
        for tensors in (self.keys, self.values):
            for tensor in tensors.values():
                tensor.index_fill_(1, index.to(tensor.device, non_blocking=True), 0)

    def gather(self, layer: int, index: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer as (r, H, L, D), copied. index: (r, L) long, flat cells."""
        index = index.to(self.keys[layer].device, non_blocking=True)
        keys, values = (t[layer].index_select(1, index.flatten()) for t in (self.keys, self.values))
        return keys.unflatten(1, index.shape).transpose(0, 1), values.unflatten(1, index.shape).transpose(0, 1)

    def rearrange(self, source: Tensor, rows: int, capacity: int) -> None:
        """Take new shape: new cell i holds what cell `source[i]` held. One operation per tensor.

        source: (rows * capacity,) long.
        """
        self.rows, self.capacity = rows, capacity
        self._views.clear()
        for tensors in (self.keys, self.values):
            for layer, tensor in tensors.items():
                tensors[layer] = tensor.index_select(1, source.to(tensor.device, non_blocking=True))
        if self.ledger is not None:
            self.ledger.rearrange(source)

    def reshape(self, rows: int, capacity: int) -> None:
        """Take new shape, forgetting all content."""
        self.rows, self.capacity = rows, capacity
        for held in (self.keys, self.values, self._views):
            held.clear()
        if self.ledger is not None:
            self.ledger.clear(rows * capacity)

    def copy_from(self, other: "Cells", source: Tensor, index: Tensor) -> None:
        """Copy the cells `source` of another memory into the cells `index` of this one, in all layers."""
        for layer, keys in other.keys.items():
            at = source.to(keys.device, non_blocking=True)
            self.write(layer, index, keys.index_select(1, at), other.values[layer].index_select(1, at))
        if self.ledger is not None and other.ledger is not None:
            self.ledger.copy_from(other.ledger, source, index)

    @property
    def nbytes(self) -> int:
        """Bytes held, all layers."""
        return sum(t.nbytes for tensors in (self.keys, self.values) for t in tensors.values())

    def _allocate(self, layer: int, keys: Tensor, values: Tensor) -> None:
        size = self.rows * self.capacity
        self.keys[layer] = torch.zeros(keys.shape[0], size, keys.shape[2], dtype=keys.dtype, device=keys.device)
        self.values[layer] = torch.zeros(
            values.shape[0], size, values.shape[2], dtype=values.dtype, device=values.device
        )
