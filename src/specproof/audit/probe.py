"""Watches any decoding loop on a Hugging Face model, and names the first invariant that it breaks.

    with Probe(model, prompts=ids) as probe:
        their_generate(model, ...)
    print(probe.report())

The model is left as it is, but for hooks. What a loop does not give (position ids, a mask) is taken as the model's own
layers got it. Which KV a column holds is known by the value of its key, wherever a loop copied it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from specproof.audit.cells import Cell, KeyPrints
from specproof.audit.foreign import ForeignRows
from specproof.audit.target_choices import TargetChoices
from specproof.audit.violation import Violation
from specproof.audit.watch import Seen, Watch
from specproof.errors import ConfigError
from specproof.lm import HFModel, layer_windows

# Of several rows at one step, the violation that explains most comes first.
_ORDER = ("positions-contiguous", "mask-exact", "kv-matches", "aligned", "commitment")


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """violations: one for each row and forward at most, in order of steps (a step here is a forward of the model).

    forwards: how many were watched. unknown: (row, forward) pairs that could not be judged, as KV was visible that no
    forward under watch had written.
    """

    violations: tuple[Violation, ...]
    forwards: int
    unknown: int

    @property
    def first(self) -> Violation | None:
        return self.violations[0] if self.violations else None

    def __str__(self) -> str:
        unjudged = f"; {self.unknown} rows of forwards not judged: unknown KV" if self.unknown else ""
        if self.first is None:
            return f"{self.forwards} forwards, no violation{unjudged}"
        more = f" ({len(self.violations) - 1} more behind it)" if len(self.violations) > 1 else ""
        return f"{self.forwards} forwards; first violation: {self.first}{more}{unjudged}"


class Probe:
    """Context manager around a loop.

    prompts: ids of each row, if known: what comes first in a row is then checked too, and what follows is told from it;
        without them, whatever is fed to an empty cache counts as prompt.
    max_new_tokens: if known, whatever a finished row is fed behind it is not judged.
    greedy: False for loops that sample or process logits: their tokens are not compared with the highest logit.
    Raises UnsupportedModelError for caches that are no list of layers with growing keys, and for embeddings as input.
    """

    def __init__(
        self,
        model: HFModel,
        prompts: Sequence[Sequence[int]] | None = None,
        *,
        max_new_tokens: int | None = None,
        greedy: bool = True,
    ) -> None:
        windows = layer_windows(model)
        full = [layer for layer, window in enumerate(windows) if window is None]
        ends = model.generation_config.eos_token_id if model.generation_config else None
        self._target = TargetChoices(
            prompts,
            max_new_tokens,
            greedy,
            frozenset(() if ends is None else [ends] if isinstance(ends, int) else ends),
        )
        self._rows = ForeignRows(
            self._target,
            absolute=not any("rotary" in name for name, _ in model.named_modules()),
            window=None if full else windows[0],
            contextual=bool(full[-1] if full else len(windows) - 1),
        )
        self._prints = KeyPrints(full[-1] if full else len(windows) - 1)
        self._watch = Watch(model, full[0] if full else 0, self._begin, self._end)
        self._columns: list[list[Cell | None]] = []
        self._violations: list[Violation] = []
        self.seen: list[Seen] = []

    def __enter__(self) -> "Probe":
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.stop()

    def report(self, outputs: Sequence[Sequence[int]] | None = None) -> ProbeReport:
        """outputs: the ids that the loop emitted for each prompt; then commitment and termination are checked on them.

        Raises ConfigError for outputs without prompts, or of another number.
        """
        found = tuple(self._violations)
        if outputs is not None:
            if self._target.prompts is None or len(self._target.prompts) != len(outputs):
                raise ConfigError("outputs can be judged only with the probe's prompts, one for each")
            found += tuple(self._target.check_outputs(len(self.seen), outputs))
        return ProbeReport(found, len(self.seen), self._rows.unknown)

    def _begin(self, cache: Any) -> int:
        self._columns = [] if cache is None else self._prints.columns(cache)
        return len(self._columns[0]) if self._columns else 0

    def _end(self, seen: Seen, cache: Any, choices: list[list[frozenset[int]]]) -> None:
        violations, written = self._rows.forward(seen, self._columns)
        self._violations += sorted(violations, key=lambda v: _ORDER.index(v.invariant))
        self._target.learn(written, choices)
        if cache is not None:
            self._prints.learn(cache, written)
        self.seen.append(replace(seen, visible=seen.visible[:0]))  # the mask is large, and judged
