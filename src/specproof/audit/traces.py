"""Read the rows to audit: a trace file, beside it the file of prompts where the trace has none."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specproof.audit.trace_line import TraceLine, parse_trace_line
from specproof.audit.trace_row import UNSTATED, NoTokenizer, Trace, trace_of
from specproof.errors import InputError, RequestError
from specproof.jobs.checks import BadLine, kind, text
from specproof.jobs.inputs import TextEncoder, open_input, to_request
from specproof.jobs.row import OVERRIDE_KEYS, checked_rule
from specproof.jobs.sidecar import sidecar_path
from specproof.request import Request


def read_traces(
    path: str | Path,
    tokenizer: TextEncoder | None,
    prompts: str | Path | None = None,
    *,
    max_new_tokens: int | None = None,
    chat: bool = False,
) -> list[Trace]:
    """The rows of a trace file, in its order (see trace_line for the forms).

    prompts: an input as `generate` reads it (JSONL, Spec-Bench's questions, text). Its rows are matched by id (a row
    without one has its index) and give the prompt, and the limits and stops that they set. Our own output needs it,
    since it holds no prompts; `OUT.meta.jsonl` beside it, where there is one, tells the run's limits, stops and `chat`,
    and that the prompts are the same. max_new_tokens: the limit where no row states it. chat: a prompt as text is a
    user message in the chat template.

    Raises InputError, naming the line, for anything that cannot be audited.
    """
    path = Path(path)
    lines = list(_lines(path))
    if not lines:
        raise InputError(f"{path} has no rows")
    identity = _identity(path)
    chat = chat or identity.get("chat", False)
    defaults, known = _defaults(identity, max_new_tokens)
    requests, refused = _requests(prompts, tokenizer, defaults, chat, identity) if prompts else ({}, {})
    traces, seen = [], {}
    for index, (number, line) in enumerate(lines):
        where = f"{path}: line {number}"
        name = str(index if line.id is None else line.id)
        if seen.setdefault(name, number) != number:
            raise InputError(f"{where}: the id {name!r} is that of line {seen[name]} too; ids must differ")
        if prompts and name not in requests and line.error is None:
            raise InputError(f"{where}: {refused.get(name, f'its id {name!r} is not in {prompts}')}")
        try:
            traces.append(trace_of(index, name, line, requests.get(name), defaults, known, tokenizer, chat))
        except (BadLine, RequestError) as error:
            raise InputError(f"{where}: {error}") from error
    return traces


def _lines(path: Path) -> Iterator[tuple[int, TraceLine]]:
    """(1-based number, line) of the lines that are not blank."""
    if str(path) == "-":
        raise InputError("a trace is read from a file, not from standard input; write it to one and name that")
    try:
        content = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start + 1})") from error
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise BadLine("it is no JSON object")
            yield number, parse_trace_line({key: value for key, value in record.items() if value is not None})
        except BadLine as error:
            raise InputError(f"{path}: line {number}: {error}") from error
        except json.JSONDecodeError as error:
            where = f"{path}: line {number}: not JSON ({error.msg}, column {error.colno})"
            raise InputError(f"{where}; a line must be one JSON object") from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: line {number}: not JSON ({error}); a line must be one JSON object") from error


def _identity(path: Path) -> dict[str, Any]:
    """What the sidecar of our own results says about the run; empty for the output of anything else.

    Raises InputError for a rule of the run that cannot be one.
    """
    sidecar = sidecar_path(path)
    try:
        with sidecar.open(encoding="utf-8") as file:
            identity = dict(json.loads(file.readline())["identity"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    try:
        rules = {key: checked_rule(key, identity[key]) for key in OVERRIDE_KEYS if key in identity}
        if not isinstance(identity.get("chat", False), bool):
            raise BadLine(f"chat is {kind(identity['chat'])}; give true or false")
        if "input_sha256" in identity:
            text("input_sha256", identity["input_sha256"])
    except BadLine as error:
        raise InputError(f"{sidecar}: what it says of the run is wrong: {error}") from error
    return identity | rules


def _defaults(identity: dict[str, Any], max_new_tokens: int | None) -> tuple[Request, bool]:
    """The run's rules, and whether its limit is known."""
    limit = max_new_tokens or identity.get("max_new_tokens")
    rules = {key: identity[key] for key in OVERRIDE_KEYS if key in identity}
    return Request((), **{**rules, "max_new_tokens": limit or UNSTATED}), limit is not None


def _requests(
    prompts: str | Path, tokenizer: TextEncoder | None, defaults: Request, chat: bool, identity: dict[str, Any]
) -> tuple[dict[str, Request], dict[str, str]]:
    """By id: the rows of the prompts, and what is wrong with those that are none."""
    if tokenizer is None:
        tokenizer = NoTokenizer()
    with open_input(str(prompts)) as source:
        if identity.get("input_sha256", source.sha256) != source.sha256:
            raise InputError(f"{prompts} is not the input that these results were made from; it was changed since")
        found, refused = {}, {}
        for row in source.rows():
            if row.id is None:
                continue
            try:
                found[str(row.id)] = to_request(row, tokenizer, defaults, chat)
            except RequestError as error:
                refused[str(row.id)] = f"its row of {prompts} cannot be used: {error}"
        return found, refused
