"""What benchmarks decode, and with what: models on so many threads, some rows of many."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specproof.embedded import default_model_folder
from specproof.jobs.inputs import open_input, to_request
from specproof.lm import LM, hide_loading_bars, load_model
from specproof.request import Request
from specproof.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Subject:
    """name: the target's folder or hub name."""

    name: str
    target: LM
    tokenizer: Tokenizer
    draft: LM | None


def load_subject(target: str | None, draft: str | None, dtype: str, threads: int) -> Subject:
    """target None: the embedded model. threads: of PyTorch, from here on."""
    torch.set_num_threads(threads)
    hide_loading_bars()
    name = target or str(default_model_folder())
    loaded = None if draft is None else load_model(draft, dtype=dtype)
    return Subject(name, load_model(name, dtype=dtype), Tokenizer.load(name), loaded)


def read_chats(path: str, tokenizer: Tokenizer, defaults: Request) -> list[Request]:
    """A request for each row of a file that `specproof generate` reads, in the chat template; named by its index.

    Of Spec-Bench's file, the first turns. Raises RequestError for a bad row.
    """
    with open_input(path) as source:
        return [to_request(row, tokenizer, defaults, chat=True) for row in source.rows()]


def pick(requests: Sequence[Request], count: int, max_prompt_tokens: int) -> list[Request]:
    """At most `count` of them, evenly over those whose prompts are short enough."""
    short = [request for request in requests if len(request.prompt_ids) <= max_prompt_tokens]
    count = min(count, len(short))
    return [short[k * len(short) // count] for k in range(count)]
