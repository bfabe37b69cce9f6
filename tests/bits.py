"""Decoding with the logits behind every emitted token, to be compared bit for bit."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from families import VOCAB, tiny_lm
from torch import Tensor

from specproof import Engine, EngineConfig, Output, Request
from specproof.lm import LM

# Widths are multiples of 64, so that no activation has a tail that is computed another way than the rest.
_WIDE = {"hidden_size": 64, "max_position_embeddings": 640}
_GQA = {**_WIDE, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
_WINDOW = {**_GQA, "sliding_window": 37}
SIZES: dict[str, dict] = {
    "mistral": _WINDOW,
    "phi3": _WINDOW,
    "gemma3_text": {**_WINDOW, "query_pre_attn_scalar": 16},
    "opt": {**_WIDE, "ffn_dim": 128, "word_embed_proj_dim": 64},
    "gpt2": {"n_embd": 64, "n_positions": 640},
    "gpt_neox": {**_WIDE, "intermediate_size": 128},
}


def wide_lm(family: str, dtype: torch.dtype, **overrides) -> LM:
    return tiny_lm(family, seed=1, dtype=dtype, **{**SIZES.get(family, _GQA), **overrides})


@dataclass(frozen=True)
class Bits:
    """output, and per emitted token the logits that it was chosen from, (V,) each."""

    output: Output
    logits: list[Tensor]


def decode_bits(lm: LM, requests: Sequence[Request], drafter: object = None, **config) -> dict[str, Bits]:
    """By request name. Skips the test on CPUs without invariant numerics, unless fast is asked for."""
    engine = Engine(lm, drafter, EngineConfig(**config))  # type: ignore[arg-type]
    if config.get("numerics") != "fast" and not engine.numerics.invariant:
        # Seen to hold on CPUs with AVX-512: there, a probe that says otherwise is itself at fault.
        elsewhere = torch.backends.cpu.get_cpu_capability() != "AVX512"
        (pytest.skip if elsewhere else pytest.fail)(f"no invariant numerics here: {engine.numerics.reason}")
    seen: dict[tuple[str, int], Tensor] = {}
    forward = engine.layout.forward

    def watched(feeds, device_ids=None):
        logits = forward(feeds, device_ids)
        at = 0
        for feed in feeds:
            for j in range(feed.num_logits):
                seen[feed.row, feed.end - feed.num_logits + j] = logits[at].clone()
                at += 1
        return logits

    engine.layout.forward = watched
    return {
        output.request_id: Bits(
            output, [seen[output.request_id, output.prompt_len - 1 + i] for i in range(len(output.token_ids))]
        )
        for output in engine.generate(requests)
    }


def rows_that_differ(ours: dict[str, Bits], alone: dict[str, Bits]) -> list[str]:
    """Per row that is not the same to the bit, where it differs first, in words."""
    assert ours.keys() == alone.keys()
    found = []
    for name, mine in ours.items():
        theirs = alone[name]
        for i, (a, b) in enumerate(zip(mine.logits, theirs.logits, strict=False)):
            if not torch.equal(a, b):
                best = b.float().topk(2)
                off = float((a.float() - b.float()).abs().max())
                found.append(
                    f"{name} (prompt {mine.output.prompt_len}) token {i}: logits off by {off:.3g}, the token alone is "
                    f"{int(best.indices[0])} with margin {float(best.values[0] - best.values[1]):.3g}"
                )
                break
        else:
            if mine.output.token_ids != theirs.output.token_ids:
                found.append(f"{name}: {mine.output.token_ids} instead of {theirs.output.token_ids}")
    return found


def some_rows(lengths: Sequence[tuple[int, int]]) -> list[Request]:
    """(prompt length, tokens to emit) of each row."""
    return [
        Request([(7 * i + 5 * i * i + 3 * k) % VOCAB for i in range(n)], max_new_tokens=m, request_id=f"row{k}")
        for k, (n, m) in enumerate(lengths)
    ]
