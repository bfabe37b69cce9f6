"""OUT.meta.jsonl: how the results beside it came about. A line per run when it starts, and one when it ends.

A start line holds versions, arguments, models, dtype, device and threads. Its `identity` is what the results depend on,
and what a run that resumes must share; batch size, method and the like may change, as they change no token.
"""

import json
from pathlib import Path
from typing import Any

from specproof.errors import ResultsError
from specproof.jobs.results import cut_torn_line


def sidecar_path(out: Path) -> Path:
    return out.with_name(out.name + ".meta.jsonl")


def begin_sidecar(out: Path, start: dict[str, Any]) -> None:
    """Write the first line, in place of what an earlier run left. Raises ResultsError if that fails."""
    _write(out, "w", {"event": "start", **start})


def append_to_sidecar(out: Path, event: str, record: dict[str, Any]) -> None:
    """Add a line. Raises ResultsError if that fails."""
    _write(out, "a", {"event": event, **record})


def check_identity(out: Path, identity: dict[str, Any]) -> None:
    """Raises ResultsError, naming what differs, unless the results at `out` were begun with the same `identity`."""
    path = sidecar_path(out)
    try:
        cut_torn_line(path)
        with path.open(encoding="utf-8") as file:
            earlier = json.loads(file.readline())["identity"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ResultsError(
            f"{path} does not say how {out} was begun, so it cannot be resumed; begin anew with --overwrite"
        ) from None
    differences = [
        f"{key} was {json.dumps(earlier.get(key))} and is {json.dumps(identity.get(key))}"
        for key in dict.fromkeys([*earlier, *identity])
        if earlier.get(key) != identity.get(key)
    ]
    if differences:
        raise ResultsError(
            f"{out} was begun differently: {'; '.join(differences)}. Give the same input and options to resume it, "
            "name another file, or begin anew with --overwrite"
        )


def _write(out: Path, mode: str, record: dict[str, Any]) -> None:
    path = sidecar_path(out)
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
    except OSError as error:
        raise ResultsError(f"cannot write {path}: {error.strerror}") from error
