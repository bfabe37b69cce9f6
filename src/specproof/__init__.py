"""Batch speculative decoding that is provably the same as ordinary decoding."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specproof.config import METHODS, EngineConfig
    from specproof.engine import Engine
    from specproof.errors import SpecproofError
    from specproof.request import Output, Request

__version__ = "0.1.0"
__all__ = ["METHODS", "Engine", "EngineConfig", "Output", "Request", "SpecproofError", "__version__"]

_HOME = {
    "METHODS": "config",
    "Engine": "engine",
    "EngineConfig": "config",
    "Output": "request",
    "Request": "request",
    "SpecproofError": "errors",
}


def __getattr__(name: str) -> Any:
    # Loaded on first use: PyTorch takes seconds to import, `specproof --help` should not.
    if name in _HOME:
        return getattr(import_module(f"specproof.{_HOME[name]}"), name)
    raise AttributeError(f"module 'specproof' has no attribute {name!r}")
