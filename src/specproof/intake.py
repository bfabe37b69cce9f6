"""From a request to a row, or to a clear reason why not."""

from collections.abc import Iterable
from operator import index as as_int

from specproof.errors import RequestError
from specproof.lm import LM
from specproof.request import Request
from specproof.sequence import Sequence
from specproof.tokenizer import Tokenizer
from specproof.whole import is_whole


def admit(request: Request, request_id: str, lm: LM, tokenizer: Tokenizer | None) -> Sequence:
    """The row that serves the request. Raises RequestError for one that cannot be served.

    A row may fill the context but not exceed it: it emits at most `context - prompt_len` tokens, so a prompt must leave
    room for one.
    """
    prompt = _ids("prompt_ids", request.prompt_ids, lm.vocab_size) or _bos(lm, tokenizer)
    for name, least in (("max_new_tokens", 1), ("min_new_tokens", 0)):
        value = getattr(request, name)
        if not is_whole(value, least):
            raise RequestError(f"{name} is {value!r}; it must be a whole number of at least {least}")
    if request.min_new_tokens > request.max_new_tokens:
        raise RequestError(f"min_new_tokens {request.min_new_tokens} exceeds max_new_tokens {request.max_new_tokens}")
    limit = request.max_new_tokens
    if lm.context is not None:
        if len(prompt) >= lm.context:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens, the model's context holds {lm.context}, one of them emitted; "
                "shorten it"
            )
        limit = min(limit, lm.context - len(prompt))
    stops = request.stop
    if not isinstance(stops, list | tuple) or any(not isinstance(stop, str) or not stop for stop in stops):
        raise RequestError(f"stop is {stops!r}; it must be a tuple of strings, none empty")
    if request.stop and tokenizer is None:
        raise RequestError("stop strings need a tokenizer; give the engine one")
    end_ids = frozenset(_ids("stop_token_ids", request.stop_token_ids, lm.vocab_size))
    return Sequence(
        request_id=request_id,
        request=request,
        token_ids=prompt,
        prompt_len=len(prompt),
        limit=limit,
        end_ids=end_ids if request.ignore_eos else end_ids | lm.eos_ids,
    )


def _ids(name: str, ids: Iterable[int], vocab_size: int) -> list[int]:
    try:
        found = [as_int(token) for token in ids]
    except TypeError as error:
        raise RequestError(f"{name} must be a sequence of token ids: {error}") from error
    for token in found:
        if not 0 <= token < vocab_size:
            raise RequestError(f"{name} has {token}, which is not in the model's vocabulary (0 to {vocab_size - 1})")
    return found


def _bos(lm: LM, tokenizer: Tokenizer | None) -> list[int]:
    bos = lm.bos_id if tokenizer is None else tokenizer.bos_id
    if bos is None:
        raise RequestError(
            "the prompt is empty and the tokenizer has no BOS token to start from; give at least one token"
        )
    return [bos]
