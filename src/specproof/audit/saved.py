"""A finding as it was saved: alone, in its row, or in a whole verdict."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specproof.audit.finding import Replay
from specproof.errors import InputError
from specproof.jobs.checks import BadLine, a_list, kind, text, whole

LISTED = 20  # ids that an error names


@dataclass(frozen=True, slots=True)
class SavedFinding:
    """What a replay needs of a finding; see Finding. id: the row's, where the file tells it. target: likewise."""

    id: str
    target: str | None
    index: int
    token: int
    choice: int
    margin: float
    noise: float
    cls: str
    prefix_ids: tuple[int, ...]
    replay: Replay


def read_saved(path: Path, row: str | None) -> SavedFinding:
    """The finding in `path`: what `--json` printed, or a part of it. row: whose, where there are several.

    Raises InputError for anything else, naming what is wrong or which rows there are.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not one JSON document ({error}); give what --json printed, or a part") from error
    found = _findings(document) if isinstance(document, dict) else None
    if found is None:
        raise InputError(f"{path} holds no finding, row or verdict; give what `specproof audit trace --json` printed")
    name = _pick(path, found, row)
    try:
        return _parse(name, document.get("target"), found[name])
    except BadLine as bad:
        whose = f" of row {name}" if name else ""
        raise InputError(f"{path}: its finding{whose} cannot be replayed: {bad}") from bad


def _findings(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """Row -> its finding, of rows that have one. In the document of `audit server` a row is called mode/id."""
    if "prefix_ids" in document:
        return {"": document}
    if "finding" in document:
        return _of_rows([document])
    if "findings" in document:
        return _of_rows(document["findings"])
    modes = {mode: document[mode] for mode in ("alone", "concurrent") if isinstance(document.get(mode), dict)}
    if not modes:
        return None
    per_mode = {mode: _of_rows(verdict.get("findings")) for mode, verdict in modes.items()}
    return {f"{mode}/{name}": finding for mode, rows in per_mode.items() for name, finding in rows.items()}


def _of_rows(rows: Any) -> dict[str, Any]:
    given = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return {str(row.get("id")): row["finding"] for row in given if row.get("finding") is not None}


def _pick(path: Path, found: Mapping[str, Any], row: str | None) -> str:
    if not found:
        raise InputError(f"{path}: no row has a divergence, so there is nothing to replay")
    if row is None and len(found) == 1:
        return next(iter(found))
    if row in found:
        return str(row)
    more = f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
    ids = ", ".join(list(found)[:LISTED]) + more
    if row is None:
        raise InputError(f"{path} has {len(found)} findings; name one with --row: {ids}")
    raise InputError(f"{path}: row {row!r} has no divergence; these have: {ids}")


def _parse(name: str, target: Any, value: Any) -> SavedFinding:
    finding = _object("it", value)
    replay = _object("replay", finding.get("replay"))
    other = replay.get("other_ids")
    index, prefix_ids = whole("index", finding.get("index"), 0), _ids("prefix_ids", finding.get("prefix_ids"))
    rest = _ids("replay.rest", replay.get("rest"))
    token = whole("token", finding.get("token"), 0)
    if len(prefix_ids) <= index:
        raise BadLine(f"prefix_ids has {len(prefix_ids)} ids; a prompt and {index} tokens of output are needed")
    if rest[:1] != (token,):
        raise BadLine(f"replay.rest must begin with the token {token}")
    return SavedFinding(
        id=name,
        target=target if isinstance(target, str) else None,
        index=index,
        token=token,
        choice=whole("choice", finding.get("choice"), 0),
        margin=_number("margin", finding.get("margin")),
        noise=_number("noise", finding.get("noise")),
        cls=text("class", finding.get("class")),
        prefix_ids=prefix_ids,
        replay=Replay(
            dtype=text("replay.dtype", replay.get("dtype")),
            width=whole("replay.width", replay.get("width"), 1),
            rest=rest,
            end_ids=_ids("replay.end_ids", replay.get("end_ids")),
            min_new_tokens=whole("replay.min_new_tokens", replay.get("min_new_tokens"), 0),
            other_ids=None if other is None else _ids("replay.other_ids", other),
        ),
    )


def _object(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadLine(f"{name} is {kind(value)}; an object is needed")
    return value


def _ids(name: str, value: Any) -> tuple[int, ...]:
    return tuple(whole(f"{name}[{i}]", token, 0) for i, token in enumerate(a_list(name, value)))


def _number(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise BadLine(f"{name} is {kind(value)}; give a number")
    return float(value)
