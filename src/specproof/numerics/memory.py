"""Findings kept on disk: a model of the same shape on the same machine is not probed twice."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers

from specproof.embedded import embedded_folder
from specproof.machine import cpu_name
from specproof.numerics.finding import Finding

VERSION = 6  # of what the probe tries: raise it when that changes

_KNOWN: dict[str, tuple[Finding, ...]] = {}


def recall(about: Mapping[str, Any], probe: Callable[[], tuple[Finding, ...]]) -> tuple[Finding, ...]:
    """What is known for `about` on this machine; else `probe()`, kept for next time.

    A cache folder that cannot be read or written only means that the probe runs again.
    """
    where = {
        "version": VERSION,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cpu": cpu_name(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }
    key = hashlib.sha256(json.dumps({**about, **where}, sort_keys=True).encode()).hexdigest()[:32]
    if key not in _KNOWN:
        path = embedded_folder().parent / "numerics" / f"{key}.json"
        found = _read(path)
        if found is None:
            found = probe()
            _write(path, {**about, **where}, found)
        _KNOWN[key] = found
    return _KNOWN[key]


def _read(path: Path) -> tuple[Finding, ...] | None:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["findings"]
        return tuple(Finding(**{**row, "depends_on": tuple(row["depends_on"])}) for row in rows)
    except (OSError, ValueError, KeyError, TypeError):  # not there, half written, of another version
        return None


def _write(path: Path, about: Mapping[str, Any], found: tuple[Finding, ...]) -> None:
    text = json.dumps({"about": about, "findings": [asdict(finding) for finding in found]}, indent=1)
    partial = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError:
        return
