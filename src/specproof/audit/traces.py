"""Read the rows to audit: a trace file, beside it the file of prompts where the trace has none."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specproof.audit.trace_line import TraceLine, parse_trace_line
from specproof.audit.trace_row import UNSTATED, NoTokenizer, Trace, trace_of
from specproof.errors import InputError, RequestError
from specproof.jobs.checks import BadLine
from specproof.jobs.inputs import TextEncoder, open_input, to_request
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
    chat = chat or bool(identity.get("chat"))
    defaults, known = _defaults(identity, max_new_tokens)
    requests = _requests(prompts, tokenizer, defaults, chat, identity) if prompts else {}
    traces, seen = [], {}
    for index, (number, line) in enumerate(lines):
        where = f"{path}: line {number}"
        name = str(index if line.id is None else line.id)
        if seen.setdefault(name, number) != number:
            raise InputError(f"{where}: the id {name!r} is that of line {seen[name]} too; ids must differ")
        if prompts and name not in requests:
            raise InputError(f"{where}: its id {name!r} is not in {prompts}")
        try:
            traces.append(trace_of(index, name, line, requests.get(name), defaults, known, tokenizer, chat))
        except (BadLine, RequestError) as error:
            raise InputError(f"{where}: {error}") from error
    return traces


def _lines(path: Path) -> Iterator[tuple[int, TraceLine]]:
    """(1-based number, line) of the lines that are not blank."""
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
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: line {number}: not JSON ({error}); a line must be one JSON object") from error


def _identity(path: Path) -> dict[str, Any]:
    """What the sidecar of our own results says about the run; empty for the output of anything else."""
    try:
        with sidecar_path(path).open(encoding="utf-8") as file:
            return dict(json.loads(file.readline())["identity"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _defaults(identity: dict[str, Any], max_new_tokens: int | None) -> tuple[Request, bool]:
    """The run's rules, and whether its limit is known."""
    limit = max_new_tokens or identity.get("max_new_tokens")
    request = Request(
        prompt_ids=(),
        max_new_tokens=limit or UNSTATED,
        min_new_tokens=identity.get("min_new_tokens", 0),
        stop=tuple(identity.get("stop", ())),
        ignore_eos=identity.get("ignore_eos", False),
    )
    return request, limit is not None


def _requests(
    prompts: str | Path, tokenizer: TextEncoder | None, defaults: Request, chat: bool, identity: dict[str, Any]
) -> dict[str, Request]:
    if tokenizer is None:
        tokenizer = NoTokenizer()
    with open_input(str(prompts)) as source:
        if identity.get("input_sha256", source.sha256) != source.sha256:
            raise InputError(f"{prompts} is not the input that these results were made from; it was changed since")
        found = {}
        for row in source.rows():
            if row.id is not None and row.error is None:
                found[str(row.id)] = to_request(row, tokenizer, defaults, chat)
        return found
