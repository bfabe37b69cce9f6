"""One small forward of the model, watched: which operations it has, and in which shapes."""

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from specproof.kv.attention import AttentionPlan, Block
from specproof.kv.cells import Cells
from specproof.kv.transformers_cache import StepCache
from specproof.layers import decoder_layers
from specproof.lm import LM
from specproof.numerics.compiled import compiled_layers
from specproof.numerics.linear import linear_shape
from specproof.numerics.packed import PackedLinear, arrange
from specproof.numerics.rule import Numerics

TOKENS = 8


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Heads H, key heads Hkv, head sizes of keys and values, and what else the product depends on."""

    heads: int
    kv_heads: int
    size: int
    value_size: int
    scale: float | None
    softcap: float | None
    window: int | None


@dataclass(slots=True)
class Operations:
    """Distinct ones, each with what does it.

    linear: by (out, in, has a bias). rowwise: all other modules without children, with the arguments of the call: the
    norms, activations and rotary tables, which take tokens along dimension 1. compiled: the first layer of each kind,
    by number, with the arguments of the call.
    """

    linear: dict[tuple[int, int, bool], Callable[[Tensor], Tensor]] = field(default_factory=dict)
    rowwise: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = field(default_factory=dict)
    attention: dict[AttentionShape, int] = field(default_factory=dict)  # to a layer
    compiled: dict[int, tuple[tuple, dict[str, Any]]] = field(default_factory=dict)


@torch.inference_mode()
def observe(lm: LM, attention: str, numerics: Numerics) -> Operations:
    """Where layers are compiled, what is fused in them is no operation: the layer is one, by itself."""
    found = Operations()
    arrange(lm.model, numerics.packed)  # so that the modules that are watched are those that will run
    inside = set(decoder_layers(lm.model).modules()) if numerics.compiled else set()
    with _watching(lm.model, found, inside):
        small_forward(lm, attention, replace(numerics, compiled=False), found)
    if numerics.compiled:
        _, compiled = compiled_layers(lm.model, numerics.packed)
        with compiled.noting(found.compiled):
            small_forward(lm, attention, numerics)
    return found


@torch.inference_mode()
def small_forward(
    lm: LM, attention: str, numerics: Numerics, found: Operations | None = None, rows: int = 1, times: int = 1
) -> None:
    """TOKENS tokens of each row, a block of its own; the same `times` times, in the same cells.

    found: None, or where the shapes of its attention are noted.
    """
    place = torch.arange(TOKENS, device=lm.device)
    blocks = [
        Block(slice(row, row + 1), slice(row * TOKENS, (row + 1) * TOKENS), place[None], None, TOKENS)
        for row in range(rows)
    ]
    plan = _Recorder(blocks, slice(None), lm.windows, attention, numerics)
    plan.found = found or Operations()
    cells = Cells()
    cells.reshape(rows, TOKENS)
    index = torch.arange(rows * TOKENS, device=lm.device)
    ids = (7 * place + 3).repeat(rows) % lm.vocab_size
    for _ in range(times):
        lm.forward(ids[None], place.repeat(rows)[None], StepCache(cells, index, plan), place)


class _Recorder(AttentionPlan):
    """Notes the shapes that it is asked for."""

    found: Operations

    def attend(
        self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scale: float | None, softcap: float | None
    ) -> Tensor:
        shape = AttentionShape(
            query.shape[1], keys.shape[1], query.shape[3], values.shape[3], scale, softcap, self.windows[layer]
        )
        self.found.attention.setdefault(shape, layer)
        return super().attend(layer, query, keys, values, scale, softcap)


@contextmanager
def _watching(model: nn.Module, found: Operations, inside: Container[nn.Module]) -> Iterator[None]:
    """inside: modules of which only linear layers are noted."""

    def note(module: nn.Module, args: tuple, kwargs: dict, out: object) -> None:
        shape = linear_shape(module)
        if shape is not None:
            found.linear.setdefault(shape, module.product if isinstance(module, PackedLinear) else module)
            return
        if module in inside:
            return
        given = (*args, *kwargs.values())
        tensors = tuple(a for a in given if isinstance(a, Tensor))
        takes_tokens = tensors and all(t.ndim > 1 and t.shape[1] == TOKENS for t in tensors)
        if takes_tokens and tensors[0].is_floating_point() and len(tensors) == len(given):
            shapes = " and ".join("x".join(map(str, t.shape[2:])) or "positions" for t in tensors)
            found.rowwise.setdefault(f"{type(module).__name__} {shapes}", (module, tensors))

    leaves = [module for module in model.modules() if not list(module.children())]
    hooks = [module.register_forward_hook(note, with_kwargs=True) for module in leaves]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
