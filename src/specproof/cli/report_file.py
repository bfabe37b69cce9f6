"""A report's file: claimed before the work begins, whole or not there at all when it ends."""

import os
import shutil
from pathlib import Path

from specproof.errors import ResultsError


class ReportFile:
    """Claimed by writing an empty file beside `path`, which takes its place in `write`. Use it in a `with`.

    A path that is no ordinary file (a pipe, /dev/stdout) is written to as it is.

    Raises ResultsError if `path` cannot be written, or is one of the files that the command reads or writes besides.
    """

    def __init__(self, path: Path, option: str, others: dict[str, Path]) -> None:
        self._path, self._shown, self._option = path.resolve(), path, option
        for name, other in others.items():
            if other.resolve() == self._path:
                raise ResultsError(f"{option} {path} is also {name}; name another file")
        self._special = self._path.exists() and not self._path.is_file() and not self._path.is_dir()
        self._beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            if self._path.is_dir():
                raise IsADirectoryError(None, "it is a folder; name a file")
            if self._path.exists() and not os.access(self._path, os.W_OK):
                raise PermissionError(None, "it may not be written")
            if not self._special:
                self._beside.touch()
        except OSError as error:
            raise self._cannot_write(error) from error

    def __enter__(self) -> "ReportFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._beside.unlink(missing_ok=True)

    def write(self, text: str) -> None:
        """Put `text` there, as UTF-8. Raises ResultsError if that fails; what was at the path is then still there."""
        try:
            if self._special:
                self._path.write_text(text, encoding="utf-8")
                return
            self._beside.write_text(text, encoding="utf-8")
            if self._path.exists():
                shutil.copymode(self._path, self._beside)
            os.replace(self._beside, self._path)
        except OSError as error:
            raise self._cannot_write(error) from error

    def _cannot_write(self, error: OSError) -> ResultsError:
        return ResultsError(f"cannot write {self._option} {self._shown}: {error.strerror}")
