"""One server: where it is, the model it is asked for, and how it is asked so that it tells token ids."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from specproof.errors import ConfigError, ServerError
from specproof.served.ask import RowFailed, ask_once, get_json, reason_of
from specproof.served.forms import FORMS, Ask, Form

KEY = "SPECPROOF_API_KEY"
CONNECT_SECONDS = 10.0
PROBED = 3  # prompts on which the forms are tried before the server is given up


@dataclass(frozen=True, slots=True)
class Server:
    """url: the base, without /v1. model: the name it serves. form: how it is asked."""

    url: str
    model: str
    form: Form


def base_url(url: str) -> str:
    """The base of a URL as people give it: with or without /v1 or /v1/completions. Raises ConfigError."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise ConfigError(f"{url!r} is no URL of a server; give one such as http://localhost:8000")
    return url.rstrip("/").removesuffix("/completions").removesuffix("/v1").rstrip("/")


def open_client(timeout: float, at_once: int) -> httpx.AsyncClient:
    """timeout: seconds for one answer. The key, if there is one, comes from the environment variable KEY."""
    key = os.environ.get(KEY)
    return httpx.AsyncClient(
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=httpx.Timeout(timeout, connect=CONNECT_SECONDS),
        limits=httpx.Limits(max_connections=at_once, max_keepalive_connections=at_once),
    )


async def find_server(client: httpx.AsyncClient, url: str, model: str | None, asks: Sequence[Ask]) -> Server:
    """The model that is served at `url`, and the form in which it tells most, tried on the first few of `asks`.

    Raises ConfigError for a bad URL, ServerError for a server that cannot be used.
    """
    base = base_url(url)
    model = await _model(client, base, model)
    refusals: list[str] = []
    for ask in asks[:PROBED]:
        for form in FORMS:
            try:
                answer = await ask_once(client, base, model, form, ask, max_tokens=1)
            except RowFailed as failed:
                if failed.status in (401, 403, 404) and form.path == FORMS[0].path:
                    raise _unusable(base + form.path, failed) from None
                refusals.append(str(failed))
                continue
            except httpx.TransportError as error:
                refusals.append(reason_of(error))
                continue
            if answer.token_ids is not None or not form.tells_ids:
                return Server(base, model, form)
            refusals.append("no token ids")
    raise ServerError(f"{base} answers none of the first {len(asks[:PROBED])} prompts: {refusals[0]}")


async def _model(client: httpx.AsyncClient, base: str, wanted: str | None) -> str:
    """The model's name: the given one, else the only one that the server lists."""
    url = f"{base}/v1/models"
    try:
        listed = await get_json(client, url)
        names = [str(entry["id"]) for entry in listed["data"]]
    except httpx.TransportError as error:
        raise ServerError(f"cannot reach {base}: {reason_of(error)}; is a server running there?") from None
    except RowFailed as failed:
        if failed.status in (401, 403):
            raise _unusable(url, failed) from None
        names = []  # not every server lists its models
    except (KeyError, TypeError):
        names = []
    if wanted is not None:
        return wanted  # adapters and aliases need not be listed; an unknown one is a 404 of the first prompt
    if len(names) == 1:
        return names[0]
    which = f"lists {', '.join(names)}" if names else "lists no models"
    raise ServerError(f"{url} {which}; give the name of one with --model")


def _unusable(url: str, failed: RowFailed) -> ServerError:
    if failed.status == 404:
        hint = "give the name of a model that it serves with --model, or the URL under which it has /v1/completions"
    else:
        hint = f"set the environment variable {KEY} to its key"
    return ServerError(f"{url}: {failed}; {hint}")
