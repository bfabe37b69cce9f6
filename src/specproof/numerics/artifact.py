"""Compiled layers kept on disk, so that the next process need not trace and compile them."""

import hashlib
import json
import os
from collections.abc import Mapping
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
import transformers

from specproof import __version__
from specproof.embedded import embedded_folder
from specproof.machine import cpu_name

VERSION = 3  # of these files and of the operators that compiled layers call: raise it when they change


def load(about: Mapping[str, Any], names: dict[str, Any]) -> Any:
    """What was saved for `about` on this machine, None if nothing was. names: globals of the compiled function.

    Like PyTorch's own cache it holds pickled code, in the user's folder.
    """
    try:
        digest, _, code = _path(about).read_bytes().partition(b"\n")
        if digest != _digest(code):
            return None
        return torch.compiler.load_compiled_function(BytesIO(code), f_globals=names)
    except Exception:  # not there, of another PyTorch: compile again
        return None


def save(about: Mapping[str, Any], made: Any) -> None:
    """A folder that cannot be written, or code that cannot be saved, only means compiling again next time."""
    path = _path(about)
    partial = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        made.save_compiled_function(str(partial))
        code = partial.read_bytes()
        partial.write_bytes(_digest(code) + b"\n" + code)
        partial.replace(path)
    except (OSError, RuntimeError):
        return


def _digest(code: bytes) -> bytes:
    return hashlib.sha256(code).hexdigest().encode()


@cache
def compiler() -> str | None:
    """The C++ compiler that PyTorch finds, with its version; None if it finds none."""
    from torch._inductor.cpp_builder import get_compiler_version_info, get_cpp_compiler

    try:
        path = get_cpp_compiler()
    except (RuntimeError, OSError):
        return None
    return f"{path} {get_compiler_version_info(path)}"


def _path(about: Mapping[str, Any]) -> Path:
    where = {
        "version": (VERSION, __version__),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cpu": cpu_name(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "compiler": compiler(),
    }
    key = hashlib.sha256(json.dumps({**about, **where}, sort_keys=True).encode()).hexdigest()[:32]
    return embedded_folder().parent / "compiled" / f"{key}.bin"
