"""Many rows put to a server, a given number at once; each answer becomes a line of a trace as it comes."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx

from specproof.errors import ResultsError
from specproof.jobs.result import to_line
from specproof.jobs.row import OVERRIDE_KEYS
from specproof.served.ask import RowFailed, ask_patiently
from specproof.served.forms import Ask
from specproof.served.server import Server


async def collect(
    client: httpx.AsyncClient, server: Server, asks: Sequence[Ask], at_once: int, out: Path, told: Callable[[], None]
) -> None:
    """Ask for all rows, `at_once` at any time, and append a line to `out` for each, in the order of their answers.

    A row that fails has its reason as `error`. told: called after each line. Raises ServerError where the server has
    gone, ResultsError if a line cannot be written; what came before stands in `out`.
    """
    waiting = iter(asks)

    async def work() -> None:
        for ask in waiting:  # shared: each worker takes the next row that nobody has
            line = to_line(await _line(client, server, ask))
            try:
                with out.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
            except OSError as error:
                raise ResultsError(f"cannot write {out}: {error.strerror}") from error
            told()

    workers = [asyncio.create_task(work()) for _ in range(min(at_once, len(asks)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()


def failed_line(row_id: str | int, error: str) -> dict[str, Any]:
    """The line of a row that the server was never asked for, or gave nothing for."""
    return {"id": row_id, "token_ids": [], "finish_reason": "error", "error": error}


async def _line(client: httpx.AsyncClient, server: Server, ask: Ask) -> dict[str, Any]:
    """In the form that `specproof audit trace` reads."""
    started = perf_counter()
    try:
        answer, tries = await ask_patiently(client, server.url, server.model, server.form, ask)
    except RowFailed as failed:
        return failed_line(ask.id, str(failed))
    as_ids = server.form.as_ids
    rules = {key: value for key, value in asdict(ask.request).items() if key in OVERRIDE_KEYS}
    return {
        "id": ask.id,
        "prompt_token_ids": answer.prompt_ids or (list(ask.request.prompt_ids) if as_ids else None),
        "prompt": None if as_ids else ask.prompt,
        "token_ids": answer.token_ids,
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop,
        **rules,
        "seconds": round(perf_counter() - started, 6),
        "tries": tries,
    }
