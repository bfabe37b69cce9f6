"""One audited row as ids: `Trace`, and how a line and its prompt become one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from specproof.audit.trace_line import TraceLine
from specproof.errors import RequestError
from specproof.jobs.checks import BadLine, brief
from specproof.jobs.inputs import TextEncoder
from specproof.request import Request

UNSTATED = 2**31  # max_new_tokens where nobody says what it was


@dataclass(frozen=True, slots=True)
class Trace:
    """One audited row, as ids.

    request: the prompt and the row's rules. limit_known: whether request.max_new_tokens is stated anywhere.
    token_ids: everything that was output, whatever follows a stop included. finish_reason, stop: as claimed.
    from_text: the ids were made from text, so that they may not be the engine's: no firm verdict.
    error: the engine's own reason for giving nothing.
    """

    index: int
    id: str
    request: Request
    token_ids: tuple[int, ...]
    limit_known: bool = True
    finish_reason: str | None = None
    stop: str | int | None = None
    from_text: bool = False
    error: str | None = None

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return tuple(self.request.prompt_ids)


def trace_of(
    index: int, name: str, line: TraceLine, request: Request | None, defaults: Request, known: bool,
    tokenizer: TextEncoder | None, chat: bool,
) -> Trace:  # fmt: skip
    """What the line and its row of the prompts say together. Raises BadLine or RequestError."""
    request = replace(request or defaults, **line.rules)
    known = known or request.max_new_tokens != UNSTATED
    if request.min_new_tokens > request.max_new_tokens:
        least, most = brief(request.min_new_tokens), brief(request.max_new_tokens)
        raise BadLine(f"min_new_tokens is {least}, more than max_new_tokens {most}")
    claims = {"finish_reason": line.finish_reason, "stop": line.stop}
    if line.error is not None:
        return Trace(index, name, request, (), known, **claims, error=line.error)
    encoder = tokenizer or NoTokenizer()
    from_text = line.token_ids is None
    token_ids = line.token_ids or ()
    given = tuple(request.prompt_ids)
    prompt_ids = given if line.prompt_ids is None else line.prompt_ids
    if given and prompt_ids != given:
        raise BadLine(
            f"row {name!r} has a prompt of {len(prompt_ids)} ids that is not the one of {len(given)} in the prompts; "
            "give the input that it was made from (and --chat if it was), or leave --prompts out"
        )
    if not prompt_ids and line.prompt is not None:
        messages = [{"role": "user", "content": line.prompt}]
        prompt_ids = tuple(encoder.encode_chat(messages) if chat else encoder.encode(line.prompt))
        from_text = True  # the engine may have put other special tokens around its prompt
    if not prompt_ids:
        raise BadLine("it has no prompt; give prompt_token_ids in the line, or the file of prompts with --prompts")
    if line.prompt_len is not None and line.prompt_len != len(prompt_ids):
        raise BadLine(
            f"its prompt had {line.prompt_len} tokens, the one in the prompts has {len(prompt_ids)}; "
            "give the input that it was made from (and --chat if it was)"
        )
    if line.token_ids is None:
        prompt_ids, token_ids = _from_text(encoder, line, prompt_ids, chat)
    return Trace(index, name, replace(request, prompt_ids=prompt_ids), token_ids, known, **claims, from_text=from_text)


def _from_text(
    encoder: TextEncoder, line: TraceLine, prompt_ids: tuple[int, ...], chat: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Prompt and output ids of text: encoded together where the prompt's text is known, since words may cross."""
    output = line.text or ""
    if line.prompt is None or chat:
        return prompt_ids, _behind_a_prompt(encoder, output)
    both = tuple(encoder.encode(line.prompt + output))
    shared = 0
    while shared < min(len(both), len(prompt_ids)) and both[shared] == prompt_ids[shared]:
        shared += 1
    return (both[:shared], both[shared:]) if shared else (prompt_ids, _behind_a_prompt(encoder, output))


def _behind_a_prompt(encoder: TextEncoder, output: str) -> tuple[int, ...]:
    """Without the special tokens that `encode` puts before a prompt."""
    ids, before = tuple(encoder.encode(output)), tuple(encoder.encode(""))
    return ids[len(before) :] if before and ids[: len(before)] == before else ids


class NoTokenizer:
    """Stands in where there is none: whatever needs text is then an error of its line."""

    def encode(self, text: str) -> list[int]:
        raise RequestError("it is text, and the target has no tokenizer; give token ids")

    def encode_chat(self, messages: Sequence[Any]) -> list[int]:
        return self.encode("")
