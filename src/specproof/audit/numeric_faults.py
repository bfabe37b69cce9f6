"""Faults of the arithmetic, not of the bookkeeping: what they do to a text must be told from lost synchronisation.

Each is planted in a model, so that whoever uses it, engine or judge, computes in this way. Forwards of one token are
left as they are where the name says so.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch
from torch import Tensor, nn

from specproof.lm import LM

PIECES = 4  # partial sums of a reordered product


def int8_when_wide(lm: LM) -> AbstractContextManager[None]:
    """Activations are rounded to 8 bits, a scale for each token, wherever more than one token is fed."""

    def rounded(linear: nn.Linear, x: Tensor) -> Tensor | None:
        if x.shape[:-1].numel() <= 1:
            return None
        scale = x.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny) / 127
        return nn.functional.linear((x / scale).round() * scale, linear.weight, linear.bias)

    return _computed(_linears(lm), rounded)


def bfloat16_head(lm: LM) -> AbstractContextManager[None]:
    """Logits are computed in bfloat16, whatever the model's dtype."""

    def coarse(head: nn.Linear, x: Tensor) -> Tensor:
        return nn.functional.linear(x.bfloat16(), head.weight.bfloat16()).to(x.dtype)

    return _computed([lm.model.get_output_embeddings()], coarse)  # type: ignore[list-item]


def reordered_sums(lm: LM) -> AbstractContextManager[None]:
    """Every product is summed in pieces, the last one first, wherever more than one token is fed."""

    def summed(linear: nn.Linear, x: Tensor) -> Tensor | None:
        if x.shape[:-1].numel() <= 1:
            return None
        pieces = [
            nn.functional.linear(part, weight)
            for part, weight in zip(x.tensor_split(PIECES, -1), linear.weight.tensor_split(PIECES, -1), strict=True)
        ]
        total = sum(reversed(pieces), torch.zeros_like(pieces[0]))
        return total if linear.bias is None else total + linear.bias

    return _computed(_linears(lm), summed)


NUMERIC_FAULTS = {
    "int8-when-wide": int8_when_wide, "bfloat16-head": bfloat16_head, "reordered-sums": reordered_sums,
}  # fmt: skip


@contextmanager
def _computed(linears: Iterable[nn.Linear], compute: Callable[[nn.Linear, Tensor], Tensor | None]) -> Iterator[None]:
    """What `compute` returns takes the place of a layer's output. By hooks, which a copy of the model keeps."""
    with ExitStack() as stack:
        for linear in linears:
            hook = linear.register_forward_hook(lambda linear, inputs, _: compute(linear, inputs[0]))  # type: ignore[arg-type]
            stack.callback(hook.remove)
        yield


def _linears(lm: LM) -> list[nn.Linear]:
    return [module for module in lm.model.modules() if isinstance(module, nn.Linear)]
