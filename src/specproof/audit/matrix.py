"""The detection matrix: each fault against what caught it, and clean runs against alarms."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from specproof.audit.auditor import audit_engine
from specproof.audit.faults import FAULTS
from specproof.audit.subjects import NEEDS, subject


@dataclass(frozen=True, slots=True)
class Detection:
    """caught_by: the invariants violated in the first step that shows anything, the fault's own first.

    caught_by_name: whether the fault's own invariant is among them.
    """

    name: str
    method: str
    invariant: str
    level: str
    caught_by: tuple[str, ...]
    first: str | None

    @property
    def caught_by_name(self) -> bool:
        return self.invariant in self.caught_by


def places() -> list[tuple[str, str]]:
    """(fault, method): each fault in each method where it can happen."""
    return [(name, method) for name, fault in FAULTS.items() for method in fault.methods]


def detect(name: str, method: str) -> Detection:
    """Plant one fault and audit a run with it, at the fault's own level."""
    fault = FAULTS[name]
    parts = subject(fault.needs)
    engine = parts.engine(method)
    with fault.plant(engine):
        audit = audit_engine(engine, parts.requests, fault.level)
    names = {violation.invariant for violation in audit.first}
    order = sorted(names, key=lambda invariant: (invariant != fault.invariant, invariant))
    return Detection(
        name, method, fault.invariant, fault.level, tuple(order), str(audit.first[0]) if names else audit.crash
    )


def false_alarm(needs: str, method: str, seed: int, dtype: torch.dtype, level: str = "light") -> str | None:
    """The first violation of a run without any fault; None as it should be."""
    parts = subject(needs, seed, dtype)
    audit = audit_engine(parts.engine(method), parts.requests, level)
    return None if audit.clean else audit.crash or str(audit.first[0])


def false_alarms(runs: int) -> Iterator[str | None]:
    """The alarm of each of `runs` clean runs, None as it should be.

    Seeds, models, methods and dtypes in turn, every eighth run at level full.
    """
    methods = ("specproof", "eqspec", "exspec", "rollback")
    dtypes = (torch.float64, torch.float32, torch.bfloat16)
    for run in range(runs):
        needs, method, dtype = NEEDS[run % len(NEEDS)], methods[run // 2 % 4], dtypes[run % 3]
        level = "full" if run % 8 == 7 else "light"
        alarm = false_alarm(needs, method, run, dtype, level)
        yield alarm and f"run {run} ({needs or 'plain'}, {method}, {dtype}, {level}): {alarm}"
