"""One line of an input file: what it may hold, and what is said about one that holds something else."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specproof.jobs.checks import BadLine, a_list, kind, text, whole

CONTENT_KEYS = ("prompt", "messages", "token_ids", "turns")
OVERRIDE_KEYS = ("max_new_tokens", "min_new_tokens", "stop", "stop_token_ids", "ignore_eos")
SPEC_BENCH_KEYS = ("question_id", "category", "reference")  # beside `turns`; only the first of them is used


@dataclass(frozen=True, slots=True)
class InputRow:
    """One row to decode: exactly one of `prompt`, `messages` and `token_ids` is given, or else `error` says why not.

    index: 0-based place among the rows; bad rows count, blank lines do not. line: 1-based line of the file.
    id: the row's own id, or else its index; None for a bad JSON line without a usable id, because its index may be the
        id of another row.
    overrides: fields of `Request` that this row sets for itself.
    """

    index: int
    line: int
    id: str | int | None
    prompt: str | None = None
    messages: tuple[dict[str, str], ...] | None = None
    token_ids: tuple[int, ...] | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


def text_row(index: int, line: int, data: bytes) -> InputRow:
    """The row of a text file's line: the line is the prompt, as it stands."""
    try:
        return InputRow(index, line, index, prompt=_decode(data))
    except BadLine as bad:
        return InputRow(index, line, index, error=f"line {line}: {bad}")


def json_row(index: int, line: int, data: bytes) -> InputRow:
    """The row of a JSONL file's line."""
    own_id = None
    try:
        record = _parse_object(data)
        own_id = _own_id(record)
        content = _content(record)
        return InputRow(index, line, index if own_id is None else own_id, **content, overrides=_overrides(record))
    except BadLine as bad:
        return InputRow(index, line, own_id, error=f"line {line}: {bad}")


def is_json_object(data: bytes) -> bool:
    try:
        _parse_object(data)
    except BadLine:
        return False
    return True


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadLine(f"not UTF-8 (byte {error.start + 1} of the line); save the file as UTF-8") from None


def _parse_object(data: bytes) -> dict[str, Any]:
    """The line's object. Keys that are null count as absent: exports of tables write them for empty cells."""
    try:
        record = json.loads(_decode(data), object_pairs_hook=_object, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise BadLine(f"not JSON ({error.msg}, column {error.colno}); a line must be one JSON object") from None
    except BadLine:
        raise
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits, thousands of nested lists
        raise BadLine(f"JSON that cannot be read ({error}); a line must be one JSON object") from None
    if not isinstance(record, dict):
        raise BadLine(f'JSON, but {kind(record)}; a line must be one JSON object, such as {{"prompt": "..."}}')
    return {key: value for key, value in record.items() if value is not None}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise BadLine(f"key {twice!r} is given twice; keep one")
    return record


def _no_constant(name: str) -> None:
    raise BadLine(f"{name} is not JSON; give a number")


def _own_id(record: dict[str, Any]) -> str | int | None:
    key = "question_id" if "turns" in record and "id" not in record else "id"
    value = record.get(key)
    if isinstance(value, str):
        return text(key, value)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise BadLine(f"{key} is {kind(value)}; give a string or a whole number")
    return value


def _content(record: dict[str, Any]) -> dict[str, Any]:
    """The one content key, as a field of `InputRow`. All keys are checked: a misspelled option must not be lost."""
    given = [key for key in CONTENT_KEYS if key in record]
    known = ("id", *CONTENT_KEYS, *OVERRIDE_KEYS, *(SPEC_BENCH_KEYS if "turns" in record else ()))
    unknown = [key for key in record if key not in known]
    if unknown:
        raise BadLine(f"unknown key {unknown[0]!r}; known keys: {', '.join(known)}")
    if len(given) != 1:
        raise BadLine(f"it has {' and '.join(given) or 'no prompt'}; give exactly one of {', '.join(CONTENT_KEYS)}")
    key, value = given[0], record[given[0]]
    if key == "prompt":
        return {"prompt": text(key, value)}
    if key == "token_ids":
        return {"token_ids": tuple(whole(f"token_ids[{i}]", token, 0) for i, token in enumerate(a_list(key, value)))}
    if not a_list(key, value):
        raise BadLine(f"{key} is empty; give at least one")
    if key == "turns":
        turns = [text(f"turns[{i}]", turn) for i, turn in enumerate(value)]
        return {"prompt": turns[0]}
    return {"messages": tuple(_message(f"messages[{i}]", message) for i, message in enumerate(value))}


def _message(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or set(value) != {"role", "content"}:
        raise BadLine(f"{name} must be an object with exactly the keys role and content")
    return {key: text(f"{name}.{key}", value[key]) for key in ("role", "content")}


def _overrides(record: dict[str, Any]) -> dict[str, Any]:
    return {key: checked_rule(key, record[key]) for key in OVERRIDE_KEYS if key in record}


def checked_rule(key: str, value: Any) -> Any:
    """The value of one of OVERRIDE_KEYS, as `Request` has it. Raises BadLine."""
    if key in ("max_new_tokens", "min_new_tokens"):
        return whole(key, value, 1 if key == "max_new_tokens" else 0)
    if key == "ignore_eos":
        if not isinstance(value, bool):
            raise BadLine(f"ignore_eos is {kind(value)}; give true or false")
        return value
    if key == "stop_token_ids":
        return tuple(whole(f"{key}[{i}]", token, 0) for i, token in enumerate(a_list(key, value)))
    stops = [value] if isinstance(value, str) else a_list("stop", value)
    if "" in stops:
        raise BadLine("stop has an empty string, which would match everywhere; leave it out")
    return tuple(text("stop", stop) for stop in stops)
