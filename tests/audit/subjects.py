"""Traces to audit: made by Transformers' own `generate`, at batch 8 with left padding, and spoiled copies of them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from families import VOCAB, tiny_lm
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specproof.audit.trace_row import Trace
from specproof.lm import LM
from specproof.request import Request

LIMIT, PAD = 24, 60


@cache
def judge(family: str = "llama", eos: int | None = None) -> LM:
    lm = tiny_lm(family, seed=1, eos_token_id=eos, pad_token_id=PAD)
    return lm


def prompts(count: int = 8) -> list[list[int]]:
    """Ragged: 1 to 15 tokens, and all different."""
    return [[(7 * i + 11 * k + 3) % VOCAB for i in range(1 + 2 * k)] for k in range(count)]


@torch.inference_mode()
def generate(lm: LM, rows: Sequence[Sequence[int]], limit: int = LIMIT, pad: int = PAD) -> list[list[int]]:
    """What `generate` returns behind the prompts, padding behind a finished row included."""
    longest = max(map(len, rows))
    ids = torch.tensor([[pad] * (longest - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    eos = sorted(lm.eos_ids) or None
    out = lm.model.generate(
        ids, attention_mask=mask, max_new_tokens=limit, do_sample=False, eos_token_id=eos, pad_token_id=pad
    )
    return out[:, longest:].tolist()


def traces_of(rows: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], limit: int = LIMIT) -> list[Trace]:
    return [
        Trace(k, f"row{k}", Request(tuple(prompt), max_new_tokens=limit), tuple(output))
        for k, (prompt, output) in enumerate(zip(rows, outputs, strict=True))
    ]


@cache
def clean(family: str = "llama", eos: int | None = None) -> tuple[Trace, ...]:
    """The trace of the tiny model, its outputs checked to vary."""
    rows = prompts()
    outputs = generate(judge(family, eos), rows)
    assert len({token for output in outputs for token in output}) >= 12, outputs
    assert len({tuple(output) for output in outputs}) == len(outputs), outputs
    return tuple(traces_of(rows, outputs))


def spoil(traces: Sequence[Trace], row: int, tokens: Sequence[int], **changes) -> list[Trace]:
    """A copy in which one row has other tokens."""
    spoiled = list(traces)
    spoiled[row] = replace(spoiled[row], token_ids=tuple(tokens), **changes)
    return spoiled


def write_lines(path: Path, records: Sequence[dict]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def vllm_lines(traces: Sequence[Trace]) -> list[dict]:
    return [
        {
            "request_id": trace.id,
            "prompt_token_ids": list(trace.prompt_ids),
            "outputs": [{"index": 0, "token_ids": list(trace.token_ids), "finish_reason": trace.finish_reason}],
            "max_tokens": trace.request.max_new_tokens,
        }
        for trace in traces
    ]


def save_tiny(folder: Path, lm: LM) -> Path:
    """A tiny model as a folder, with a tokenizer whose words are t0, t1, ..."""
    lm.model.save_pretrained(folder)
    backend = Backend(models.WordLevel({f"t{k}": k for k in range(VOCAB)}, unk_token="t0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(folder)
    return folder
