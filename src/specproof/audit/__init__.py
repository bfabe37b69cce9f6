"""Audits: traces of any engine, any decoding loop, our own engine. What is found is data; nothing here is printed."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specproof.audit.trace import audit_traces
    from specproof.audit.verdict import Verdict

__all__ = ["Verdict", "audit_traces"]

_HOME = {"audit_traces": "trace", "Verdict": "verdict"}


def __getattr__(name: str) -> Any:
    # Loaded on first use: PyTorch takes seconds to import.
    if name in _HOME:
        return getattr(import_module(f"specproof.audit.{_HOME[name]}"), name)
    raise AttributeError(f"module 'specproof.audit' has no attribute {name!r}")
