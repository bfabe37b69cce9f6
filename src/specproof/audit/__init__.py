"""Audits: traces of any engine, any decoding loop, our own engine. What is found is data; nothing here is printed."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specproof.audit.auditor import audit_engine
    from specproof.audit.probe import Probe
    from specproof.audit.trace import audit_traces
    from specproof.audit.verdict import Verdict

__all__ = ["Probe", "Verdict", "audit_engine", "audit_traces"]

_HOME = {"Probe": "probe", "Verdict": "verdict", "audit_engine": "auditor", "audit_traces": "trace"}


def __getattr__(name: str) -> Any:
    # Loaded on first use: PyTorch takes seconds to import.
    if name in _HOME:
        return getattr(import_module(f"specproof.audit.{_HOME[name]}"), name)
    raise AttributeError(f"module 'specproof.audit' has no attribute {name!r}")
