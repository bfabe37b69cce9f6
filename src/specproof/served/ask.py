"""One row put to a server: once, or patiently."""

import asyncio
from typing import Any

import httpx

from specproof.errors import ServerError
from specproof.jobs.checks import BadLine
from specproof.served.forms import Answer, Ask, Form

BUSY = (429, 503)  # worth another try
DELAYS = (0.25, 0.5, 1.0, 2.0)  # seconds before each further try
LONGEST_DELAY = 30.0  # seconds, where the server says when to come back
SHOWN = 200  # characters of an answer that is no error message


class RowFailed(Exception):
    """The server gives nothing for one row. status: of HTTP, None for none. retry_after: seconds, where it says so."""

    def __init__(self, reason: str, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.status, self.retry_after = status, retry_after


async def ask_patiently(client: httpx.AsyncClient, base: str, model: str, form: Form, ask: Ask) -> tuple[Answer, int]:
    """The answer, and the tries it took: a busy server and a broken connection get some more, each after a longer wait.

    Raises RowFailed for this row, ServerError where nothing listens any more.
    """
    tries, delays = 0, iter(DELAYS)
    while True:
        tries += 1
        try:
            return await ask_once(client, base, model, form, ask, ask.request.max_new_tokens), tries
        except (RowFailed, httpx.TransportError) as error:
            if isinstance(error, RowFailed) and error.status not in BUSY:
                raise
            failure = error
        delay = next(delays, None)
        if delay is None:
            if isinstance(failure, httpx.ConnectError | httpx.ConnectTimeout):
                raise ServerError(f"{base} has gone: {reason_of(failure)}, {tries} times")
            raise RowFailed(f"{reason_of(failure)}, {tries} times")
        told = failure.retry_after if isinstance(failure, RowFailed) else None
        await asyncio.sleep(delay if told is None else min(told, LONGEST_DELAY))


async def ask_once(
    client: httpx.AsyncClient, base: str, model: str, form: Form, ask: Ask, max_tokens: int
) -> Answer:  # fmt: skip
    """Raises RowFailed unless the answer can be read, httpx.TransportError for a broken connection."""
    try:
        response = await client.post(base + form.path, json=form.body(ask, model, max_tokens))
        return form.read(_json(response))
    except BadLine as bad:
        raise RowFailed(f"an answer that cannot be read: {bad}") from None
    except (httpx.ReadTimeout, httpx.WriteTimeout):
        raise RowFailed(f"no answer within {client.timeout.read:g} s; --timeout allows more") from None


async def get_json(client: httpx.AsyncClient, url: str) -> Any:
    """Raises RowFailed and httpx.TransportError, as ask_once does."""
    return _json(await client.get(url))


def reason_of(error: Exception) -> str:
    return str(error) or type(error).__name__


def _json(response: httpx.Response) -> Any:
    if response.status_code != 200:
        after = response.headers.get("retry-after", "")
        seconds = float(after) if after.isdecimal() else None
        raise RowFailed(f"HTTP {response.status_code} ({_message(response)})", response.status_code, seconds)
    try:
        return response.json()
    except (ValueError, RecursionError):
        raise RowFailed(f"an answer that is no JSON: {response.text[:SHOWN]!r}") from None


def _message(response: httpx.Response) -> str:
    """What the server says about its refusal: the forms of OpenAI, vLLM and FastAPI, else the text itself."""
    try:
        body = response.json()
        error = body.get("error", body)
        said = error.get("message", error.get("detail")) if isinstance(error, dict) else error
    except (ValueError, AttributeError, RecursionError):
        said = None
    return str(said or response.text or response.reason_phrase)[:SHOWN]
