"""Compiled layers kept on disk, so that the next process need not trace and compile them."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from torch import Tensor

from specproof import __version__
from specproof.embedded import embedded_folder
from specproof.machine import cpu_name

VERSION = 4  # of these files and of the operators that compiled layers call: raise it when they change


def load(about: Mapping[str, Any], names: dict[str, Any]) -> Any:
    """The function that was saved for `about` on this machine, None if none was. names: its globals.

    Like PyTorch's own cache it holds pickled code, in the user's folder.
    """
    code = _read(_path(about, "bin"))
    try:
        return None if code is None else torch.compiler.load_compiled_function(BytesIO(code), f_globals=names)
    except Exception:  # of another PyTorch: compile again
        return None


def save(about: Mapping[str, Any], made: Any) -> None:
    """Code that cannot be saved only means compiling again next time."""
    with suppress(OSError, RuntimeError), TemporaryDirectory() as folder:
        file = Path(folder) / "function"
        made.save_compiled_function(str(file))
        _write(_path(about, "bin"), file.read_bytes())


def library(about: Mapping[str, Any], build: Callable[[Path], None]) -> Callable[[list[Tensor]], list[Tensor]]:
    """What was built for `about` on this machine, else it is built into the file that `build` is given."""
    path = _path(about, "so")
    code = _read(path)
    with TemporaryDirectory() as folder, suppress(RuntimeError):
        file = Path(folder) / path.name
        if code is not None:
            file.write_bytes(code)
            return _runner(file)
    with TemporaryDirectory() as folder:
        file = Path(folder) / path.name
        build(file)
        _write(path, file.read_bytes())
        return _runner(file)


def _runner(file: Path) -> Callable[[list[Tensor]], list[Tensor]]:
    """The file may go once it is loaded. Raises RuntimeError if it is no library for this PyTorch."""
    runner: Any = import_module("torch._C._aoti").AOTIModelContainerRunnerCpu
    return runner(str(file), 1).run


def _read(path: Path) -> bytes | None:
    """None if there is no such file, or not all of it."""
    try:
        digest, _, code = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    return code if digest == _digest(code) else None


def _write(path: Path, code: bytes) -> None:
    """A folder that cannot be written only means compiling again next time."""
    partial = path.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(_digest(code) + b"\n" + code)
        partial.replace(path)


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


def _path(about: Mapping[str, Any], kind: str) -> Path:
    where = {
        "version": (VERSION, __version__),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cpu": cpu_name(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "compiler": compiler(),
    }
    key = hashlib.sha256(json.dumps({**about, **where}, sort_keys=True).encode()).hexdigest()[:32]
    return embedded_folder().parent / "compiled" / f"{key}.{kind}"
