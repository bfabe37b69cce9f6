"""Operators that a compiled layer calls without looking inside: packed products, and attention with its cells.

The compiler sees shapes only. What the operators work on (the cells, the plan of the step, how many rows a product may
have) is that of the forward that is running, so that no step and no layer needs a graph of its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from specproof.numerics.rule import LEAST


class Running(Protocol):
    """A forward whose layers are compiled.

    layer: the one that is running. heads: query heads of the layer that attended last, None if no graph can hold its
    attention.
    """

    layer: int
    heads: int | None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, softcap: float | None) -> Tensor:
        """query: (1, H, n, D). key, value: (1, Hkv, n, D) of the same tokens, to be kept. -> (1, n, H, D)."""
        ...

    def blocks(self, heads: int, most: int) -> Any:
        """What the running layer, of so many query heads, needs to attend without the operator: `Blocks`.

        None if it must call it: in this step, with this memory, or because there are more than `most` blocks.
        """
        ...


_RUNNING: ContextVar[Running] = ContextVar("running")


@contextmanager
def during(running: Running) -> Iterator[None]:
    """The operators work on `running` while the block runs."""
    token = _RUNNING.set(running)
    try:
        yield
    finally:
        _RUNNING.reset(token)


_BLOCK: ContextVar[int | None] = ContextVar("block", default=None)


@contextmanager
def at_most(block: int | None) -> Iterator[None]:
    """Packed products get at most `block` rows while the block runs; None: no limit."""
    token = _BLOCK.set(block)
    try:
        yield
    finally:
        _BLOCK.reset(token)


# None where this PyTorch has no such operator; then nothing is packed.
_PRODUCT: Any = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)


def packed_product(rows: Tensor, weight: Tensor, bias: Tensor | None, outputs: int) -> Tensor:
    """rows: (n, in), weight: packed (outputs, in) -> (n, outputs).

    A product gets at least LEAST rows (zeros are added), and at most as many as `at_most` says.
    """
    count, block = rows.shape[0], _BLOCK.get()
    if block is not None and count > block:
        return torch.cat([packed_product(part, weight, bias, outputs) for part in rows.split(block)])
    if 0 < count < LEAST:
        return packed_product(pad(rows, (0, 0, 0, LEAST - count)), weight, bias, outputs)[:count]
    return _PRODUCT(rows, weight, bias, "none", [], "")


@contextmanager
def products_called_directly() -> Iterator[None]:
    """Graphs compiled while the block runs are for LEAST to BLOCK tokens: their products need none of our code."""
    from torch._inductor.ir import TensorBox
    from torch._inductor.lowering import lowerings
    from torch._inductor.mkldnn_ir import LinearUnary

    operator = torch.ops.specproof.linear.default

    def product(rows: Any, weight: Any, bias: Any, outputs: int) -> Any:
        return TensorBox.create(LinearUnary.create(rows, weight, bias, "none", [], ""))

    lowerings[operator] = product
    try:
        yield
    finally:
        del lowerings[operator]


def _attend(query: Tensor, key: Tensor, value: Tensor, scale: float | None, softcap: float | None) -> Tensor:
    return _RUNNING.get().attend(query, key, value, scale, softcap)


_LIBRARY = torch.library.Library("specproof", "DEF")
_LIBRARY.define("linear(Tensor rows, Tensor weight, Tensor? bias, int outputs) -> Tensor")
_LIBRARY.define("attend(Tensor query, Tensor key, Tensor value, float? scale, float? softcap) -> Tensor")
_LIBRARY.impl("linear", packed_product, "CompositeExplicitAutograd")
_LIBRARY.impl("attend", _attend, "CompositeExplicitAutograd")


@torch.library.register_fake("specproof::linear", lib=_LIBRARY)
def _(rows: Tensor, weight: Tensor, bias: Tensor | None, outputs: int) -> Tensor:
    return rows.new_empty(rows.shape[0], outputs)


@torch.library.register_fake("specproof::attend", lib=_LIBRARY)
def _(query: Tensor, key: Tensor, value: Tensor, scale: float | None, softcap: float | None) -> Tensor:
    rows, heads, count, _ = query.shape
    return query.new_empty(rows, count, heads, value.shape[3])
