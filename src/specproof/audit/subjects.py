"""What faults are planted in: small random models, ragged batches, and drafters that are sometimes right."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specproof.config import EngineConfig
from specproof.engine import Engine
from specproof.lm import LM, random_lm
from specproof.reference import decode_reference
from specproof.request import Request

VOCAB = 61
WINDOW = 7
NEEDS = ("", "draft", "self-draft", "window", "ties", "text", "prefix")
_SIZE = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "head_dim": 8, "max_position_embeddings": 160, "tie_word_embeddings": False,
}  # fmt: skip


class Letters:
    """A tokenizer of one letter an id."""

    bos_id = None

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(97 + token % 26) for token in ids)


@dataclass(frozen=True)
class Subject:
    """An engine's parts and what it is to decode."""

    target: LM
    drafter: LM
    requests: tuple[Request, ...]
    tokenizer: Any = None

    def engine(self, method: str) -> Engine:
        config = EngineConfig(method=method, batch_size=3, num_draft_tokens=4, window=5, prefill_chunk=16)
        return Engine(self.target, self.drafter, config, self.tokenizer)


def subject(needs: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> Subject:
    """A subject that shows what `needs` (one of NEEDS) asks for; its rows end by limits, end ids and stop strings."""
    family = "mistral" if needs == "window" else "llama"
    size = {**_SIZE, "sliding_window": WINDOW} if needs == "window" else _SIZE
    target = random_lm(family, seed, dtype, **size)
    if needs == "ties":
        head = target.model.get_output_embeddings().weight.data  # type: ignore[union-attr]
        head[VOCAB // 2 : VOCAB // 2 * 2] = head[: VOCAB // 2]
    drafter = target if needs == "self-draft" else _noisy(target, random_lm(family, seed, dtype, **size), seed)
    draw = random.Random(seed)
    shapes = [(1, 20), (5, 30), (17, 12), (40, 25), (3, 6), (9, 33), (2, 15), (26, 20)]
    length = 32 if needs == "prefix" else 0
    begins = [[draw.randrange(VOCAB) for _ in range(length)] for _ in range(2)]  # of every other row
    plain = [
        Request([*begins[i % 2], *(draw.randrange(VOCAB) for _ in range(length))], limit)
        for i, (length, limit) in enumerate(shapes)
    ]
    tokenizer = Letters() if needs == "text" else None
    return Subject(target, drafter, tuple(_with_ends(target, plain, tokenizer)), tokenizer)


def _with_ends(target: LM, requests: list[Request], tokenizer: Letters | None) -> list[Request]:
    """Every third row goes to its limit; the others are ended by an id, or a stop string, that they do emit."""
    ended = []
    for i, request in enumerate(requests):
        ids = decode_reference(target, request).token_ids
        if i % 3 == 0 or len(ids) < 8:
            ended.append(request)
        elif tokenizer is not None:
            ended.append(Request(request.prompt_ids, request.max_new_tokens, stop=(tokenizer.decode(ids[6:8]),)))
        else:
            ended.append(Request(request.prompt_ids, request.max_new_tokens, stop_token_ids=(ids[6],)))
    return ended


def _noisy(target: LM, copy: LM, seed: int) -> LM:
    """The target with noise on its weights: right about half of the time."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for ours, theirs in zip(copy.model.parameters(), target.model.parameters(), strict=True):
            noise = torch.randn(theirs.shape, generator=generator, dtype=torch.float64) * 0.05 * theirs.double().std()
            ours.copy_(theirs + noise.to(theirs.dtype))
    return copy
