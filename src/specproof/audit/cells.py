"""Who wrote each column of a foreign loop's cache, recognised by the value of its key, wherever it was moved."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specproof.errors import UnsupportedModelError

START = hash(("start",))  # the context before a row's first token


def extend(context: int, token: int) -> int:
    """The context after one more token: equal for equal sequences of tokens."""
    return hash((context, token))


@dataclass(frozen=True, slots=True)
class Cell:
    """One written key. before, context: what the row was before and after this token, as its query saw it.

    live: the query saw itself. What did not is padding, and has no context.
    """

    step: int
    row: int
    token: int
    position: int
    before: int
    context: int
    live: bool


EMPTY = Cell(-1, -1, -1, -1, 0, 0, False)  # a column of zeros, which no forward wrote


class KeyPrints:
    """Recognises keys bit by bit: a fingerprint of each column's key vector -> the cell that wrote it.

    layer: whose keys; a deep one, as its keys depend on the whole row and not on the token alone.
    """

    def __init__(self, layer: int) -> None:
        self.layer = layer
        self._cells: dict[int, Cell] = {}
        self._weights: Tensor | None = None

    def columns(self, cache: Any) -> list[list[Cell | None]]:
        """Per row, the cell of each column. None: no forward under watch wrote it. [] for an empty cache."""
        return [[self._cells.get(value) for value in row] for row in self._prints(cache)]

    def learn(self, cache: Any, written: list[list[Cell]]) -> None:
        """The last columns of the cache were written by these cells, row by row."""
        for prints, cells in zip(self._prints(cache), written, strict=True):
            count = min(len(prints), len(cells))
            self._cells.update(zip(prints[len(prints) - count :], cells[len(cells) - count :], strict=True))
        self._cells[0] = EMPTY

    def _prints(self, cache: Any) -> list[list[int]]:
        layers = getattr(cache, "layers", None)
        if layers is None:
            raise UnsupportedModelError(f"the probe cannot read a cache of type {type(cache).__name__}")
        if len(layers) <= self.layer or not isinstance(getattr(layers[self.layer], "keys", None), Tensor):
            return []
        keys: Tensor = layers[self.layer].keys  # (B, heads, L, D)
        if keys.numel() == 0:
            return []
        keys = keys[:, :, : int(layers[self.layer].get_seq_length())]  # a static cache is allocated longer
        size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[keys.element_size()]
        flat = keys.detach().transpose(1, 2).flatten(2).contiguous()  # (B, L, heads * D)
        bits = (flat + 0.0).view(size).long()  # + 0.0: no negative zero, so that zeros print as 0
        if self._weights is None or self._weights.shape[0] != bits.shape[-1]:
            source = torch.Generator().manual_seed(0)
            self._weights = torch.randint(-(2**62), 2**62, (bits.shape[-1],), generator=source) | 1
        return (bits * self._weights.to(bits.device)).sum(-1).tolist()  # integers wrap around
