"""Ways to ask a server for greedy tokens, and to read them from its answer: one form for each kind of server.

An OpenAI-compatible server says nothing of token ids by itself; what it takes to get them differs between engines.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from specproof.jobs.checks import BadLine, a_list, kind, text, whole
from specproof.request import Request


@dataclass(frozen=True, slots=True)
class Ask:
    """One row to ask for. id: the row's. prompt: its text, special tokens spelt out, for servers that take no ids."""

    id: str | int
    request: Request
    prompt: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server gave. prompt_ids: as it says it read them. None: it does not say."""

    text: str | None
    token_ids: tuple[int, ...] | None
    prompt_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None
    stop: int | str | None = None


class Form(Protocol):
    @property
    def name(self) -> str:
        """As shown to the user."""
        ...

    @property
    def as_ids(self) -> bool:
        """Whether the prompt is sent as ids, and not as text."""
        ...

    @property
    def path(self) -> str:
        """Behind the server's base URL."""
        ...

    @property
    def tells_ids(self) -> bool:
        """Whether it is of no use unless the answer has token ids."""
        ...

    def body(self, ask: Ask, model: str, max_tokens: int) -> dict[str, Any]:
        """The request's JSON."""
        ...

    def read(self, answer: Any) -> Answer:
        """The answer's JSON. Raises BadLine for one of another form."""
        ...


@dataclass(frozen=True, slots=True)
class Completions:
    """The completions of OpenAI. as_ids: the prompt is sent as ids. extra: what this engine is told besides.

    Penalties are switched off by name: vLLM and SGLang would otherwise take them from the model's generation config.
    """

    name: str
    as_ids: bool
    tells_ids: bool
    extra: Mapping[str, Any]
    path: str = "/v1/completions"

    def body(self, ask: Ask, model: str, max_tokens: int) -> dict[str, Any]:
        request = ask.request
        rules = {
            "stop": list(request.stop),
            "min_tokens": request.min_new_tokens,
            "stop_token_ids": list(request.stop_token_ids),
            "ignore_eos": request.ignore_eos,
        }
        return {
            "model": model,
            "prompt": list(request.prompt_ids) if self.as_ids else ask.prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            **{key: value for key, value in rules.items() if value},
            **self.extra,
        }

    def read(self, answer: Any) -> Answer:
        choices = a_list("choices", _object("the answer", answer).get("choices"))
        if len(choices) != 1:
            raise BadLine(f"the answer has {len(choices)} choices; one was asked for")
        choice = _object("choices[0]", choices[0])
        ids = choice.get("token_ids")
        token_ids = _ids("token_ids", ids) if ids is not None else _ids_in_logprobs(choice.get("logprobs"))
        prompt_ids = choice.get("prompt_token_ids", answer.get("prompt_token_ids"))
        stop = choice.get("stop_reason", choice.get("matched_stop"))
        return Answer(
            text=text("text", choice.get("text")),
            token_ids=token_ids,
            prompt_ids=None if prompt_ids is None else _ids("prompt_token_ids", prompt_ids),
            finish_reason=choice.get("finish_reason"),
            stop=stop if isinstance(stop, int | str) else None,
        )


@dataclass(frozen=True, slots=True)
class SGLang:
    """SGLang's own `/generate`: ids in, ids out."""

    name: str = "SGLang /generate"
    path: str = "/generate"
    as_ids: bool = True
    tells_ids: bool = True

    def body(self, ask: Ask, model: str, max_tokens: int) -> dict[str, Any]:
        request = ask.request
        sampling = {
            "temperature": 0,
            "max_new_tokens": max_tokens,
            "min_new_tokens": request.min_new_tokens,
            "stop": list(request.stop),
            "stop_token_ids": list(request.stop_token_ids),
            "ignore_eos": request.ignore_eos,
            "repetition_penalty": 1.0,
        }
        return {"input_ids": list(request.prompt_ids), "sampling_params": sampling}

    def read(self, answer: Any) -> Answer:
        found = _object("the answer", answer)
        reason = _object("meta_info", found.get("meta_info", {})).get("finish_reason") or {}
        return Answer(
            text=text("text", found.get("text")),
            token_ids=_ids("output_ids", found.get("output_ids")),
            finish_reason=_object("finish_reason", reason).get("type"),
            stop=reason.get("matched"),
        )


_GREEDY = {"repetition_penalty": 1.0, "presence_penalty": 0, "frequency_penalty": 0}
# The best evidence first. Each later one is for servers that know none of those before it.
FORMS: Sequence[Form] = (
    Completions("return_token_ids", True, True, {**_GREEDY, "return_token_ids": True}),
    # vLLM before 0.10.2 writes tokens as "token_id:42"; llama.cpp puts an id beside each logprob.
    Completions("ids in logprobs", True, True, {**_GREEDY, "return_tokens_as_token_ids": True, "logprobs": 1}),
    SGLang(),
    Completions("prompt ids, text back", True, False, _GREEDY),
    Completions("text only", False, False, {}),
)


def _ids_in_logprobs(logprobs: Any) -> tuple[int, ...] | None:
    """The ids that logprobs tell in passing; None if they tell none."""
    if not isinstance(logprobs, dict):
        return None
    entries = logprobs.get("content")
    if isinstance(entries, list) and entries and all(isinstance(entry, dict) and "id" in entry for entry in entries):
        return _ids("logprobs.content", [entry["id"] for entry in entries])
    tokens = logprobs.get("tokens")
    if not isinstance(tokens, list) or not all(str(token).startswith("token_id:") for token in tokens):
        return None
    numbers = [str(token).removeprefix("token_id:") for token in tokens]
    if not all(number.isdecimal() for number in numbers):
        raise BadLine("logprobs.tokens has a token_id that is no number")
    return tuple(map(int, numbers))


def _ids(name: str, value: Any) -> tuple[int, ...]:
    return tuple(whole(f"{name}[{i}]", token, 0) for i, token in enumerate(a_list(name, value)))


def _object(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadLine(f"{name} is {kind(value)}; an object is needed")
    return value
