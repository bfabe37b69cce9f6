"""The same rows put to a server in two ways: one at a time, and many at once. What differs is the server's doing."""

import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from specproof.errors import ResultsError
from specproof.jobs.result import to_line
from specproof.served.collect import collect
from specproof.served.prompts import Asks
from specproof.served.server import Server, find_server, open_client

Progress = Callable[[str, int], AbstractContextManager[Callable[[], None]]]  # name, rows -> called for each answer


@dataclass(frozen=True, slots=True)
class Source:
    """A server as the user names it. prefix: of its traces' names. model: None for the only one that it serves."""

    prefix: str
    url: str
    model: str | None


async def ask_in_both_modes(
    sources: Mapping[str, Source], asks: Asks, concurrency: int, timeout: float, folder: Callable[[], Path],
    progress: Progress,
) -> tuple[dict[str, Server], Path]:  # fmt: skip
    """Write <prefix>alone.jsonl and <prefix>concurrent.jsonl for each source, one mode after the other.

    All servers are found before the first is asked, and before `folder` is called, which tells where to write. Raises
    ServerError for one that cannot be used or has gone, ResultsError if a line cannot be written. However it ends,
    answers that have come stand in that folder. Returns the servers and the folder.
    """
    async with open_client(timeout, concurrency) as client:
        servers = {
            name: await find_server(client, source.url, source.model, asks.asked) for name, source in sources.items()
        }
        where = folder()
        for name, source in sources.items():
            for mode, at_once in (("alone", 1), ("concurrent", concurrency)):
                trace = source.prefix + mode
                out = where / f"{trace}.jsonl"
                out.write_text("".join(to_line(line) + "\n" for line in asks.refused), encoding="utf-8")
                with progress(trace, len(asks.asked)) as told:
                    await collect(client, servers[name], asks.asked, at_once, out, told)
    return servers, where


def trace_folder(save: Path | None) -> Path:
    """Where the traces go: a folder without traces, made if need be. None: a new one among the temporary files."""
    if save is None:
        return Path(tempfile.mkdtemp(prefix="specproof-server-"))
    try:
        save.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResultsError(f"cannot make the folder {save}: {error.strerror}") from error
    if any(save.glob("*.jsonl")):
        raise ResultsError(f"{save} has traces already; name another folder, or judge them with specproof audit trace")
    return save
