"""What goes in (`Request`) and what comes out (`Output`). Plain, frozen data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "error"]


@dataclass(frozen=True, slots=True)
class Request:
    """One row to decode.

    prompt_ids: token ids of the prompt. Empty: the model's BOS takes its place; without a BOS the row is an error.
    max_new_tokens: most tokens to emit, EOS and stop tokens included; at least 1.
    min_new_tokens: tokens emitted before EOS, a stop id or a stop string may end the row; EOS and stop ids cannot
        be chosen earlier.
    stop: strings that end the row where they first occur in the emitted text, at any offset. A token that is an end id
        and completes a stop string counts as the id.
    stop_token_ids: ids that end the row, besides the model's EOS ids.
    ignore_eos: go on past EOS ids (they are then ordinary tokens).
    request_id: a name, unique within a run; default: the row's index.
    """

    prompt_ids: Sequence[int]
    max_new_tokens: int = 128
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """One finished row.

    token_ids: the emitted ids. A final EOS or stop id is included; nothing after it ever is. For a stop string the
        ids end with the token that completes it.
    text: decoded emitted ids without special tokens, a final stop id or the matched stop string and anything after
        it. None where the engine has no tokenizer.
    finish_reason: "stop" (EOS, stop id or stop string), "length" (max_new_tokens or the context is full), "error".
    stop: what matched: the id, or the string. None for "length" and "error".
    error: why the row could not be served; None unless finish_reason is "error".
    num_steps: (row, step) pairs, i.e. how many target forwards emitted tokens for this row.
    num_drafted, num_accepted: draft tokens judged / kept; the target's own tokens are in neither, nor are drafts that
        lie behind the row's end.
    num_shared: prompt tokens whose KV was taken over from another row with the same beginning.
    acceptance_histogram: entry j counts the steps that kept j draft tokens.
    """

    request_id: str
    prompt_len: int
    token_ids: tuple[int, ...]
    text: str | None
    finish_reason: FinishReason
    stop: int | str | None = None
    error: str | None = None
    num_steps: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    acceptance_histogram: tuple[int, ...] = ()
    num_shared: int = 0
