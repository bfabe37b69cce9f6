"""What a KV layout is: the memory of a batch, and the shape of the forward that goes with it.

Between steps a row holds valid KV for positions `[0, cached_len)`. A forward names, per row, where it starts and what
it feeds; shortening a row is just starting earlier next time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from specproof.kv.cells import Cells
from specproof.numerics.rule import PLAIN, Numerics

if TYPE_CHECKING:
    from specproof.lm import LM


@dataclass(frozen=True, slots=True)
class Feed:
    """One row's tokens in a forward: positions `start .. start + length - 1`.

    tokens: ids known on the host; then come `num_device` ids known only on the device. num_logits: how many of the last
    tokens need logits (0 for a chunk of a prompt).
    """

    row: str
    start: int
    tokens: Sequence[int]
    num_device: int = 0
    num_logits: int = 0

    @property
    def length(self) -> int:
        return len(self.tokens) + self.num_device

    @property
    def end(self) -> int:
        return self.start + self.length


class Layout(Protocol):
    """KV memory of the rows of one model."""

    lm: "LM"
    numerics: Numerics
    realigned: bool  # whether KV had to be moved to re-pad rows in the last forward

    def __init__(self, lm: "LM", attention: str, numerics: Numerics = PLAIN) -> None: ...

    def admit(self, row: str, length: int) -> None:
        """A row enters with no KV; it is sure to need `length` positions."""
        ...

    def release(self, row: str) -> None:
        """A row has finished."""
        ...

    def clear(self) -> None:
        """Forget all rows; no memory is held."""
        ...

    def forward(self, feeds: Sequence[Feed], device_ids: Tensor | None = None) -> Tensor:
        """Compute the feeds, each row at most once. device_ids: the device tokens of all feeds, in feed order.

        Returns logits (sum of num_logits, V), in feed order. KV at and after a feed's start is replaced.
        """
        ...

    def locate(self, row: str, length: int) -> tuple[Cells, Tensor] | None:
        """Where positions `[0, length)` of a row lie: the memory and (length,) flat cells. None if the row waits."""
        ...

    @property
    def rows(self) -> Sequence[str]:
        """Rows of the last forward, in the order in which their tokens went through the model."""
        ...

    @property
    def memories(self) -> tuple[Cells, ...]:
        """All KV memory it holds."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of KV memory held."""
        ...


@runtime_checkable
class Sharing(Protocol):
    """A layout in which a row can begin with what another one holds."""

    def share(self, row: str, donor: str, length: int) -> None:
        """In the next forward `row`, which holds nothing yet, holds positions `[0, length)` of `donor` as its own.

        donor: a row that holds them, or held them when it was released; released rows are readable until that forward.
        """
        ...


def to_device(device: torch.device, *arrays: np.ndarray) -> list[Tensor]:
    """Integer arrays as long tensors on the device, in one transfer."""
    packed = torch.from_numpy(np.concatenate([array.ravel() for array in arrays]))
    if device.type == "cuda":
        packed = packed.pin_memory()
    parts = packed.to(device, non_blocking=True).split([array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]
