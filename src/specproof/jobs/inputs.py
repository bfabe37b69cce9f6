"""Read the prompts of a job: a text file, JSONL, Spec-Bench's JSONL, or standard input. Any size: a line at a time."""

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Protocol

from specproof.errors import InputError, RequestError
from specproof.jobs.row import InputRow, is_json_object, json_row, text_row
from specproof.request import Request

JSONL_SUFFIXES = (".jsonl", ".ndjson", ".json")
UTF8_BOM, UTF16_BOMS = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")


class TextEncoder(Protocol):
    """What this module needs of a tokenizer."""

    def encode(self, text: str) -> list[int]: ...

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class InputFile:
    """An input that was read once, to its end. name: what the user called it. sha256: of its bytes."""

    name: str
    path: Path
    is_jsonl: bool
    num_rows: int
    sha256: str

    def rows(self) -> Iterator[InputRow]:
        """The rows in order; a bad line is a row with `error` set."""
        parse = json_row if self.is_jsonl else text_row
        for index, (line, data) in enumerate(_filled_lines(self.path)):
            yield parse(index, line, data)


@contextmanager
def open_input(name: str) -> Iterator[InputFile]:
    """The input called `name`: a path, or `-` for standard input.

    By its name a file is JSONL (.jsonl, .ndjson, .json) or text (.txt); anything else is JSONL if its first filled line
    is a JSON object, else text. In a text file each line is a prompt, and blank lines are skipped. Standard input and
    pipes are first copied to a temporary file, because the input is read twice.

    Raises InputError if it cannot be read, is not UTF-8 throughout, or gives one id to two rows.
    """
    with tempfile.TemporaryDirectory(prefix="specproof-") as folder:
        path = Path(name)
        try:
            if name == "-" or (path.exists() and not path.is_file() and not path.is_dir()):
                path = Path(folder) / "input"
                with _opened(name) as source, path.open("wb") as copy:
                    shutil.copyfileobj(source, copy)
            scanned = _scan(name, path)
        except OSError as error:
            raise InputError(f"cannot read {name}: {error.strerror}; give a file of prompts, or - for stdin") from error
        yield scanned


def to_request(row: InputRow, tokenizer: TextEncoder, defaults: Request, chat: bool = False) -> Request:
    """The request for `row`: its own overrides, else those of `defaults`. Its request_id is the row's index.

    A prompt is encoded as it stands; with `chat` it is one user message in the chat template instead.

    Raises RequestError if the row is a bad line or cannot be encoded.
    """
    if row.error is not None:
        raise RequestError(row.error)
    if row.token_ids is not None:
        prompt_ids: Sequence[int] = row.token_ids
    elif row.messages is not None:
        prompt_ids = tokenizer.encode_chat(row.messages)
    elif chat:
        prompt_ids = tokenizer.encode_chat([{"role": "user", "content": row.prompt or ""}])
    else:
        prompt_ids = tokenizer.encode(row.prompt or "")
    return replace(defaults, prompt_ids=prompt_ids, request_id=str(row.index), **row.overrides)


def _opened(name: str) -> AbstractContextManager[BinaryIO]:
    return nullcontext(sys.stdin.buffer) if name == "-" else open(name, "rb")


def _filled_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(1-based line number, line without its end) of the lines that are not blank."""
    with path.open("rb") as file:
        for line, data in enumerate(file, start=1):
            if line == 1:
                data = data.removeprefix(UTF8_BOM)
            if data.strip():
                yield line, data.removesuffix(b"\n").removesuffix(b"\r")


def _scan(name: str, path: Path) -> InputFile:
    """Read all of it once: what form it has, how many rows, whether their ids differ."""
    with path.open("rb") as file:
        if file.read(2) in UTF16_BOMS:
            raise InputError(f"{name} is UTF-16; save it as UTF-8 (iconv -f UTF-16 -t UTF-8)")
        file.seek(0)
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    suffix = Path(name).suffix.lower()
    if suffix in JSONL_SUFFIXES or suffix == ".txt":
        is_jsonl = suffix != ".txt"
    else:
        is_jsonl = any(is_json_object(data) for _, data in islice(_filled_lines(path), 1))
    scanned = InputFile(name, path, is_jsonl, 0, sha256)
    num_rows, lines_of_ids = 0, {}
    for row in scanned.rows():
        num_rows += 1
        # As text, since 7 and "7" would be one name to many a reader of the results.
        first_line = row.line if row.id is None else lines_of_ids.setdefault(str(row.id), row.line)
        if first_line != row.line:
            raise InputError(
                f"{name}: lines {first_line} and {row.line} both have the id {row.id!r}; ids must differ "
                "(a row without one has its index, counted from 0)"
            )
    return replace(scanned, num_rows=num_rows)
