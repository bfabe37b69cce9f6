"""Compiling a model's layers at a known moment, and whether it pays."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from time import perf_counter

from specproof.config import EngineConfig
from specproof.errors import ConfigError
from specproof.kv import LAYOUTS
from specproof.kv.layout import Feed, Layout
from specproof.lm import LM
from specproof.numerics.compiled import compiled_layers, forget_changed, why_not_compiled, why_not_now
from specproof.numerics.observe import small_forward
from specproof.numerics.packed import arrange
from specproof.numerics.rule import Numerics

MOST_BLOCKS = 3  # of a short step of rows with drafts
CACHED = 32  # tokens that each row holds while steps are timed
REPEATS = 7


@dataclass(frozen=True, slots=True)
class Compilation:
    """What compiling cost in this process, and what it saves.

    seconds: all that it added before the first step: PyTorch's compiler imported, the layers (the draft model's too)
    compiled or loaded from disk, these steps timed. rows: of the steps that were timed, one token each.
    step_seconds, plain_step_seconds: median of such a forward of the target, its layers compiled, and as they are.
    """

    seconds: float
    rows: int
    step_seconds: float
    plain_step_seconds: float

    @property
    def break_even_tokens(self) -> int | None:
        """Tokens to emit until the steps have saved `seconds`, at `rows` tokens a step; None if they save nothing."""
        saved = self.plain_step_seconds - self.step_seconds
        return ceil(self.seconds / saved) * self.rows if saved > 0 else None

    def __str__(self) -> str:
        tokens = self.break_even_tokens
        return (
            f"compiled in {self.seconds:.1f} s; a step at batch {self.rows} takes {1e3 * self.step_seconds:.1f} ms, "
            f"{1e3 * self.plain_step_seconds:.1f} ms if not compiled: "
            + ("it does not pay here" if tokens is None else f"pays after {tokens} tokens")
        )


def compile_now(lm: LM, attention: str, packed: bool, drafts: bool) -> None:
    """drafts: whether steps will have rows of different lengths.

    Raises ConfigError, saying why, if the layers cannot be compiled.
    """
    started = perf_counter()
    why = why_not_compiled(lm.model)
    if why is None:
        numerics = Numerics(False, packed, "to compile")
        small_forward(lm, attention, numerics)  # what is wrong with the model itself is said by this one
        forget_changed(lm.model, packed)
        _, layers = compiled_layers(lm.model, packed)
        numerics = replace(numerics, compiled=True)
        try:
            small_forward(lm, attention, numerics)
            for blocks in range(1, (MOST_BLOCKS if drafts else 1) + 1):
                layers.most_blocks = max(layers.most_blocks, blocks)
                # The first time there are no cells yet; short graphs write into those that there are.
                small_forward(lm, attention, numerics, rows=blocks, times=2)
        except ConfigError:
            raise
        except Exception as error:  # compilers fail in many ways
            lines = str(error).strip().splitlines() or [""]
            why = f"{type(error).__name__}: {'; '.join(dict.fromkeys((lines[0], lines[-1])))}"
    if why is not None:
        raise ConfigError(f"the model cannot be compiled here: {why}; leave compile out to decode it")
    compiled_layers(lm.model, packed)[1].seconds += perf_counter() - started


def require_unchanged(lm: LM, packed: bool) -> None:
    """Raises ConfigError if the layers are not such as were compiled; what was compiled would run in their place."""
    arrange(lm.model, packed)
    layers, compiled = compiled_layers(lm.model, packed)
    why = why_not_now(lm.model)
    if why is None and not compiled.are(layers):
        why = "they have changed since"
    if why is not None:
        raise ConfigError(f"the model's layers cannot run as they were compiled: {why}; make another engine")


def measure(layouts: Sequence[Layout], config: EngineConfig) -> Compilation:
    """Time steps of `batch_size` rows both ways, in turns.

    layouts: the target's, and those of others that were compiled with it.
    """
    started, lm = perf_counter(), layouts[0].lm
    rows = [str(i) for i in range(config.batch_size)]
    cached = CACHED if lm.context is None else min(CACHED, lm.context - 1)
    both = {
        compiled: LAYOUTS[config.parts.layout](lm, config.attention, replace(layouts[0].numerics, compiled=compiled))
        for compiled in (True, False)
    }
    for layout in both.values():
        for row in rows:
            layout.admit(row, cached)
        layout.forward([Feed(row, 0, (0,) * cached) for row in rows])
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(REPEATS):
        for compiled, layout in both.items():
            start = perf_counter()
            layout.forward([Feed(row, cached, (1,), 0, 1) for row in rows])[0, 0].item()
            seconds[compiled].append(perf_counter() - start)
    made = {compiled_layers(of.lm.model, of.numerics.packed)[1] for of in layouts}  # models may share their layers
    return Compilation(
        sum(layers.seconds for layers in made) + perf_counter() - started,
        len(rows),
        statistics.median(seconds[True]),
        statistics.median(seconds[False]),
    )
