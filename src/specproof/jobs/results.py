"""Write results in input order, though rows finish in any order, and so that a kill at any moment loses none.

A row has finished once its line stands, whole, in one of two files:
- OUT holds the rows 0, 1, 2 ... without a gap, as far as all of them have finished;
- OUT.partial, the journal, holds rows that finished before their turn: index, tab, the line as it will stand in OUT.
When its turn comes, a line is written to OUT as well; the journal goes when OUT is complete and on disk. So at every
moment a finished row stands in OUT or in the journal. In both: the journal's copy is not looked at.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from specproof.errors import ResultsError
from specproof.jobs.in_order import InOrder
from specproof.jobs.inputs import InputFile
from specproof.jobs.result import to_line


class FileResults:
    """Results to a file, going on after what an earlier run left there, if anything.

    Lines are handed to the system one by one, which is safe from a kill; `close` forces them to disk.
    """

    def __init__(self, path: Path, source: InputFile) -> None:
        """Raises ResultsError if `path` cannot be written, or if it is not the beginning of the results of `source`."""
        self._path, self._num_rows = path, source.num_rows
        try:
            self._out, self._journal = _open_at_whole_line(path), _open_at_whole_line(journal_path(path))
        except OSError as error:
            raise ResultsError(f"cannot write {path}: {error.strerror}") from error
        self._num_written = _count_results(path, source)
        self._lines = InOrder(self._num_written)
        for index, line in _journal_lines(path):
            if index >= self._num_written:
                self._put(index, line)

    def add(self, index: int, result: dict[str, Any]) -> None:
        """Row `index` has finished. Raises ResultsError if that cannot be written (disk full)."""
        line = to_line(result)
        if index != self._lines.next_index:
            self._append(self._journal, f"{index}\t{line}\n")
        self._put(index, line)

    @property
    def num_done(self) -> int:
        """Rows that have finished, in this run or an earlier one."""
        return self._lines.num_taken

    def is_done(self, index: int) -> bool:
        """Whether row `index` is among them."""
        return self._lines.has(index)

    def earlier(self) -> Iterator[dict[str, Any]]:
        """The results that are here already, in no particular order."""
        with self._path.open("rb") as file:
            yield from map(json.loads, file)
        yield from map(json.loads, list(self._lines.waiting.values()))

    def close(self) -> None:
        """Force all to disk; remove the journal if no row is missing from OUT. Raises OSError if the disk fails."""
        for file in (self._out, self._journal):
            os.fsync(file.fileno())
            file.close()
        if self._num_written == self._num_rows:
            journal_path(self._path).unlink()

    def _put(self, index: int, line: str) -> None:
        self._append(self._out, self._lines.put(index, line))
        self._num_written = self._lines.next_index

    def _append(self, file: BinaryIO, text: str) -> None:
        rest = memoryview(text.encode())
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError as error:
            raise ResultsError(
                f"cannot write {file.name}: {error.strerror}; the finished rows are kept, --resume goes on after them"
            ) from error


def journal_path(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Keep other processes from writing `path` while the block runs. Raises ResultsError if one does already."""
    lock = FileLock(path.with_name(path.name + ".lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ResultsError(f"{path} is being written by another specproof; wait for it, or name another file") from None
    except OSError as error:
        raise ResultsError(f"cannot write beside {path}: {error.strerror}") from error
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def has_results(path: Path) -> bool:
    """Whether an earlier run left anything."""
    return path.exists() or journal_path(path).exists()


def discard_results(path: Path) -> None:
    # The journal first: left alone beside a new OUT, it would be taken for that one's.
    journal_path(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def cut_torn_line(path: Path) -> None:
    """Remove a last line that has no line end: who wrote it was killed at it."""
    with path.open("rb+") as file:
        file.truncate(sum(len(line) for line in file if line.endswith(b"\n")))


def _open_at_whole_line(path: Path) -> BinaryIO:
    path.touch()
    cut_torn_line(path)
    return path.open("ab", buffering=0)  # type: ignore[return-value]


def _count_results(path: Path, source: InputFile) -> int:
    """How many rows stand in OUT, having made sure that they are the first rows of `source`."""
    count, rows = 0, source.rows()
    with path.open("rb") as file:
        for count, line in enumerate(file, start=1):
            row = next(rows, None)
            try:
                is_row = row is not None and json.loads(line)["id"] == row.id
            except (ValueError, KeyError, TypeError):
                is_row = False
            if not is_row:
                raise ResultsError(
                    f"{path}: line {count} is not the result of row {count} of {source.name}, so it was changed since, "
                    "or is no results file; restore it, name another file, or begin anew with --overwrite"
                )
    return count


def _journal_lines(path: Path) -> Iterator[tuple[int, str]]:
    journal = journal_path(path)
    with journal.open(encoding="utf-8", newline="\n") as file:
        for number, record in enumerate(file, start=1):
            index, _, line = record.rstrip("\n").partition("\t")
            try:
                json.loads(line)
                yield int(index), line
            except ValueError:
                raise ResultsError(f"{journal}: line {number} is damaged; begin anew with --overwrite") from None
