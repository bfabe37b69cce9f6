"""The engine under audit: every invariant at every step, from what the models are really given."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from torch import Tensor

from specproof.audit.commitment import StepAudit
from specproof.audit.forward import ForwardAudit
from specproof.audit.truth import TrueRow
from specproof.audit.violation import Violation
from specproof.drafters import ModelDrafter
from specproof.engine import Engine, request_names
from specproof.errors import RequestError
from specproof.intake import admit
from specproof.kv.layout import Feed
from specproof.request import Output, Request


@dataclass(frozen=True, slots=True)
class EngineAudit:
    """What an audited run gave. first: the violations of the earliest step that has any."""

    outputs: tuple[Output, ...]
    violations: tuple[Violation, ...]
    num_steps: int

    @property
    def first(self) -> tuple[Violation, ...]:
        earliest = min((violation.step for violation in self.violations), default=0)
        return tuple(violation for violation in self.violations if violation.step == earliest)


def audit_engine(engine: Engine, requests: Sequence[Request]) -> EngineAudit:
    """Run the engine on the requests with every invariant of level light checked at every step."""
    auditor = Auditor(engine, requests)
    with auditor.watching():
        outputs = engine.generate(requests)
    auditor.check_outputs(outputs)
    return EngineAudit(tuple(outputs), tuple(auditor.violations), auditor.num_steps)


class Auditor:
    """Watches an engine's forwards and records; collects violations. The engine knows nothing of it."""

    def __init__(self, engine: Engine, requests: Sequence[Request]) -> None:
        self.violations: list[Violation] = []
        self.num_steps = 0
        self._engine = engine
        self._names = request_names(list(requests))
        self._rows = _true_rows(engine, requests, self._names)
        drafter = engine.drafter if isinstance(engine.drafter, ModelDrafter) else None
        self_draft = drafter is not None and drafter.lm.model is engine.target.model
        self._target = ForwardAudit("target", engine.target, engine.layout, self._rows, self._report)
        self._draft = (
            None if drafter is None else ForwardAudit("draft", drafter.lm, drafter.layout, self._rows, self._report)
        )
        decode = None if engine.tokenizer is None else engine.tokenizer.decode
        self._step = StepAudit(self._rows, engine.config.parts.commit, self_draft, decode, self._report)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while the block runs."""
        with ExitStack() as stack:
            for watch in (self._target, self._draft):
                if watch is not None:
                    stack.enter_context(patch.object(watch.layout, "forward", self._layout_forward(watch)))
            self._engine.observers.append(self._observe)
            try:
                yield
            finally:
                self._engine.observers.remove(self._observe)

    def check_outputs(self, outputs: Sequence[Output]) -> None:
        """The run is over."""
        self._step.check_outputs(self._names, outputs)

    def _layout_forward(self, watch: ForwardAudit) -> Callable[..., Tensor]:
        """The layout's forward, its model's forward watched inside."""
        layout_forward, model_forward = watch.layout.forward, watch.lm.forward

        def forward(feeds: Sequence[Feed], device_ids: Tensor | None = None) -> Tensor:
            def watched(ids: Tensor, position_ids: Tensor, kv, columns: Tensor) -> Tensor:
                logits = model_forward(ids, position_ids, kv, columns)
                watch.check(ids, position_ids, kv)
                return logits

            watch.begin(feeds)
            with patch.object(watch.lm, "forward", watched):
                logits = layout_forward(feeds, device_ids)
            if watch is self._target:
                self._step.target_chose(feeds, logits)
            return logits

        return forward

    def _observe(self, record) -> None:
        self._step.check(record)
        for watch in (self._target, self._draft):
            if watch is not None:
                watch.end()
        self.num_steps += 1

    def _report(self, invariant: str, row: str, expected: object, found: object, message: str) -> None:
        self.violations.append(Violation(invariant, self.num_steps, row, expected, found, message))


def _true_rows(engine: Engine, requests: Sequence[Request], names: Sequence[str]) -> dict[str, TrueRow]:
    rows = {}
    for number, (request, name) in enumerate(zip(requests, names, strict=True)):
        try:
            row = admit(request, name, engine.target, engine.tokenizer)
        except RequestError:
            continue  # never decoded: there is nothing to watch
        rows[name] = TrueRow(number, request, list(row.token_ids), row.prompt_len, row.limit, row.end_ids)
    return rows
