"""The engine under audit: every invariant at every step, from what the models are really given."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from torch import Tensor

from specproof.audit.commitment import StepAudit
from specproof.audit.forward import ForwardAudit
from specproof.audit.recompute import check_kv, check_rows_alone
from specproof.audit.truth import TrueRow
from specproof.audit.violation import Violation
from specproof.drafters.cascade import model_in
from specproof.engine import Engine, request_names
from specproof.errors import ConfigError, RequestError
from specproof.intake import admit
from specproof.kv.layout import Feed, Layout, Sharing
from specproof.request import Output, Request
from specproof.step import StepRecord

LEVELS = ("light", "full")


@dataclass(frozen=True, slots=True)
class EngineAudit:
    """What an audited run gave.

    first: the violations of the earliest step that has any. crash: how the run broke off, if it did.
    """

    outputs: tuple[Output, ...]
    violations: tuple[Violation, ...]
    num_steps: int
    crash: str | None = None

    @property
    def clean(self) -> bool:
        return not self.violations and self.crash is None

    @property
    def first(self) -> tuple[Violation, ...]:
        earliest = min((violation.step for violation in self.violations), default=0)
        return tuple(violation for violation in self.violations if violation.step == earliest)


def audit_engine(engine: Engine, requests: Sequence[Request], level: str = "light") -> EngineAudit:
    """Run the engine on the requests with the invariants checked at every step.

    level: "light" compares integers; "full" also computes the KV of every row again at every forward, and decodes each
    row alone afterwards.
    """
    auditor = Auditor(engine, requests, level)
    try:
        with auditor.watching():
            outputs = engine.generate(requests)
    except Exception as error:  # what was seen before says why
        crash = f"{type(error).__name__}: {error}"
        return EngineAudit((), tuple(auditor.violations), auditor.num_steps, crash)
    auditor.check_outputs(outputs)
    return EngineAudit(tuple(outputs), tuple(auditor.violations), auditor.num_steps)


class Auditor:
    """Watches an engine's forwards and records; collects violations. The engine knows nothing of it."""

    def __init__(self, engine: Engine, requests: Sequence[Request], level: str = "light") -> None:
        if level not in LEVELS:
            raise ConfigError(f"level is {level!r}; known: {', '.join(LEVELS)}")
        self.violations: list[Violation] = []
        self.num_steps = 0
        self._engine, self._requests, self._full = engine, requests, level == "full"
        self._names = request_names(list(requests))
        self._rows = _true_rows(engine, requests, self._names)
        drafter = model_in(engine.drafter)
        self_draft = drafter is engine.drafter and drafter is not None and drafter.quick.lm.model is engine.target.model
        self._watches = [ForwardAudit("target", engine.target, engine.layout, self._rows, self._report)]
        self._layouts = [(engine.layout, self._watches[0])]
        self._full_draft = drafter is not None and drafter.quick is drafter.layout
        if drafter is not None:
            watch = ForwardAudit("draft", drafter.lm, drafter.layout, self._rows, self._report)
            self._watches.append(watch)
            self._layouts += [(layout, watch) for layout in drafter.layouts]
        decode = None if engine.tokenizer is None else engine.tokenizer.decode
        self._step = StepAudit(self._rows, engine.config.parts.commit, self_draft, decode, self._report)
        self._current: ForwardAudit | None = None  # whose layout is computing; target and draft may be one model

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while the block runs."""
        with ExitStack() as stack:
            for layout, watch in self._layouts:
                stack.enter_context(patch.object(layout, "forward", self._layout_forward(layout, watch)))
                if isinstance(layout, Sharing):
                    stack.enter_context(patch.object(layout, "share", _told_first(watch, layout.share)))
            for model in {id(layout.lm.model): layout.lm.model for layout, _ in self._layouts}.values():
                hook = model.register_forward_hook(self._model_was_called, with_kwargs=True)
                stack.callback(hook.remove)
            self._engine.observers.append(self._observe)
            stack.callback(self._engine.observers.remove, self._observe)
            yield

    def check_outputs(self, outputs: Sequence[Output]) -> None:
        """The run is over."""
        self._step.check_outputs(self._names, outputs)
        if self._full:
            check_rows_alone(self._engine, self._requests, outputs, self._report)

    def _layout_forward(self, layout: Layout, watch: ForwardAudit) -> Callable[..., Tensor]:
        original = layout.forward

        def forward(feeds: Sequence[Feed], device_ids: Tensor | None = None) -> Tensor:
            watch.begin(feeds, layout)
            self._current = watch
            logits = original(feeds, device_ids)
            self._current = None
            if watch.name == "target":
                self._step.target_chose(feeds, logits)
            if self._full and (watch.name == "target" or self._full_draft):
                check_kv(watch.lm, watch.layout, feeds, self._rows, watch.name, self._report)
            return logits

        return forward

    def _model_was_called(self, model: object, args: tuple, given: dict[str, Any], output: object) -> None:
        plan = given.get("attention_plan")
        if self._current is not None and plan is not None:
            kv: Any = given.get("cache", given.get("past_key_values"))
            self._current.check(given["input_ids"], given["position_ids"], kv, plan)

    def _observe(self, record: StepRecord) -> None:
        self._step.check(record)
        for watch in self._watches:
            watch.end()
        self.num_steps += 1

    def _report(self, invariant: str, row: str, expected: object, found: object, message: str) -> None:
        self.violations.append(Violation(invariant, self.num_steps, row, expected, found, message))


def _told_first(watch: ForwardAudit, original: Callable[[str, str, int], None]) -> Callable[[str, str, int], None]:
    def share(row: str, donor: str, length: int) -> None:
        watch.share(row, donor, length)
        original(row, donor, length)

    return share


def _true_rows(engine: Engine, requests: Sequence[Request], names: Sequence[str]) -> dict[str, TrueRow]:
    rows = {}
    for number, (request, name) in enumerate(zip(requests, names, strict=True)):
        try:
            row = admit(request, name, engine.target, engine.tokenizer)
        except RequestError:
            continue  # never decoded: there is nothing to watch
        rows[name] = TrueRow(number, request, list(row.token_ids), row.prompt_len, row.limit, row.end_ids)
    return rows
