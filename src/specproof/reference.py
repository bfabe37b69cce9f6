"""The judge: one row, one token at a time, with the model's own forward, cache and attention.

It shares nothing with the engine, on purpose: its rules are written out again here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from specproof.lm import LM
from specproof.request import Request


@dataclass(frozen=True, slots=True)
class Reference:
    """What the target alone gives. margins: per emitted token, its logit minus the next best one's."""

    token_ids: tuple[int, ...]
    margins: tuple[float, ...]
    text: str | None
    finish_reason: str
    stop: int | str | None


@torch.inference_mode()
def decode_reference(lm: LM, request: Request, decode: Callable[[Sequence[int]], str] | None = None) -> Reference:
    """Greedy target-only decoding of one valid request with a non-empty prompt.

    decode: needed for text and stop strings. Raises ValueError if the prompt leaves no room in the context.
    """
    prompt = list(request.prompt_ids)
    limit = request.max_new_tokens if lm.context is None else min(request.max_new_tokens, lm.context - len(prompt))
    if limit < 1:
        raise ValueError(f"the prompt has {len(prompt)} tokens, the context holds {lm.context}")
    ends = set(request.stop_token_ids) if request.ignore_eos else set(request.stop_token_ids) | lm.eos_ids
    device, state = lm.device, None
    if len(prompt) > 1:
        _, state = lm.plain_forward(torch.tensor([prompt[:-1]], device=device))
    emitted: list[int] = []
    margins: list[float] = []
    feed = prompt[-1]
    while True:
        logits, state = lm.plain_forward(torch.tensor([[feed]], device=device), state)
        scores = logits[0, -1].clone()
        if len(emitted) < request.min_new_tokens:
            scores[list(ends)] = -torch.inf
        feed = int(scores.argmax())
        best = scores.topk(2).values.tolist()
        emitted.append(feed)
        margins.append(best[0] - best[1])
        if feed in ends:
            return Reference(tuple(emitted), tuple(margins), decode and decode(emitted[:-1]), "stop", feed)
        if decode and len(emitted) > request.min_new_tokens and request.stop:
            text, short = decode(emitted), len(decode(emitted[: request.min_new_tokens]))
            ends_late = [(text.find(s, max(0, short - len(s) + 1)), -len(s), s) for s in request.stop]
            hits = sorted(hit for hit in ends_late if hit[0] >= 0)
            if hits:
                return Reference(tuple(emitted), tuple(margins), text[: hits[0][0]], "stop", hits[0][2])
        if len(emitted) == limit:
            return Reference(tuple(emitted), tuple(margins), decode and decode(emitted), "length", None)
