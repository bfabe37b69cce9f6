"""Rows finish in any order; their results leave in input order."""

from collections.abc import Iterator
from typing import Any, BinaryIO

from specproof.jobs.result import to_line


class InOrder:
    """Lines come in any order and leave in the order of their index."""

    def __init__(self, next_index: int = 0) -> None:
        self.next_index = next_index
        self.waiting: dict[int, str] = {}

    @property
    def num_taken(self) -> int:
        return self.next_index + len(self.waiting)

    def has(self, index: int) -> bool:
        return index < self.next_index or index in self.waiting

    def put(self, index: int, line: str) -> str:
        """The lines, with their line ends, that can leave now that line `index` is here."""
        self.waiting[index] = line
        ready = ""
        while self.next_index in self.waiting:
            ready += self.waiting.pop(self.next_index) + "\n"
            self.next_index += 1
        return ready


class StreamResults:
    """Results to a pipe or a terminal. Lines that wait for their turn are kept in memory only."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._lines = InOrder()

    def add(self, index: int, result: dict[str, Any]) -> None:
        """Row `index` has finished. Raises BrokenPipeError if nobody reads any more."""
        ready = self._lines.put(index, to_line(result))
        if ready:
            self._file.write(ready.encode())
            self._file.flush()

    @property
    def num_done(self) -> int:
        return self._lines.num_taken

    def is_done(self, index: int) -> bool:
        return self._lines.has(index)

    def earlier(self) -> Iterator[dict[str, Any]]:
        return iter(())

    def close(self) -> None:
        """Nothing to do: each line was flushed, and the file belongs to someone else."""
