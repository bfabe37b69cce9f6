"""What the page is made of in its tests: a tiny random model and its output, with real faults and hostile texts."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from families import VOCAB, tiny_lm
from tokenizers import Tokenizer as RawTokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from specproof.lm import LM
from specproof.reference import decode_reference
from specproof.request import Request

LIMIT = 24
SCRIPT = "<script>document.title='broken'</script>"
TEXTS = (
    SCRIPT, "</style></code>", "\x00\x1b[31m", "\n", "\u202ereversed", '" onload="alert(1)', " &amp;", "{{ 7 * 7 }}",
    " naïve", "日本語", "👩‍💻", "", "    ",
)  # fmt: skip
ODD_ID = "<b>row\ud800\x07</b>"


def texts() -> list[str]:
    """The text of each id: hostile and odd ones first."""
    return [*TEXTS, *(f" w{index}" for index in range(len(TEXTS), VOCAB))]


def prompts(count: int) -> list[list[int]]:
    return [[(7 * i + 11 * k + 3) % VOCAB for i in range(3 + 2 * k)] for k in range(count)]


def outputs_of(lm: LM, rows: Sequence[Sequence[int]], limit: int = LIMIT) -> list[list[int]]:
    return [list(decode_reference(lm, Request(tuple(row), max_new_tokens=limit)).token_ids) for row in rows]


@cache
def twin_model() -> tuple[LM, int, int]:
    """A tiny model in which two ids always have the same logit, and these two ids: the target takes the first."""
    lm = tiny_lm("llama", seed=1)
    used = {token for output in outputs_of(lm, prompts(8)) for token in output}
    first = min(used)
    second = max(set(range(VOCAB)) - used)
    head = lm.model.get_output_embeddings().weight
    with torch.no_grad():
        head[second] = head[first]
    return lm, first, second


@cache
def lines() -> tuple[list[dict], list[dict]]:
    """Lines of a trace, and of its reference: exact, tie, changed token, two swapped, cut, no output, exact."""
    lm, first, second = twin_model()
    assert first < second
    inputs = prompts(8)
    outputs = outputs_of(lm, inputs)
    assert len({tuple(output) for output in outputs}) == 8
    assert len({token for output in outputs for token in output}) > 12
    k = next(k for k, output in enumerate(outputs) if first in output[:-1])
    inputs.insert(1, inputs.pop(k))
    outputs.insert(1, outputs.pop(k))
    reference = _lines(inputs, outputs)
    at = outputs[1].index(first)
    begun = [*inputs[1], *outputs[1][:at], second]
    outputs[1] = [*outputs[1][:at], second, *outputs_of(lm, [begun], LIMIT - at - 1)[0]]
    outputs[2][9] = next(id for id in range(len(TEXTS)) if id != outputs[2][9])  # an id of a hostile text
    outputs[3], outputs[4] = outputs[4], outputs[3]
    del outputs[5][-4:]
    found = _lines(inputs, outputs)
    found[6] |= {"token_ids": None, "error": "out of memory <img src=x>"}
    return found, reference


def _lines(inputs: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> list[dict]:
    return [
        {
            "id": ODD_ID if k == 2 else f"row{k}",
            "prompt_token_ids": list(prompt),
            "token_ids": list(output),
            "max_tokens": LIMIT,
        }
        for k, (prompt, output) in enumerate(zip(inputs, outputs, strict=True))
    ]


STATUSES = ["exact", "benign", "faulty", "faulty", "faulty", "faulty", "unjudged", "exact"]


def write_subject(folder: Path) -> tuple[Path, Path, Path]:
    """The model's folder, the trace, and its reference."""
    vocabulary = {text: index for index, text in enumerate(texts())}
    raw = RawTokenizer(WordLevel(vocabulary, unk_token=" w60"))
    raw.decoder = Fuse()
    PreTrainedTokenizerFast(tokenizer_object=raw).save_pretrained(folder / "model")
    twin_model()[0].model.save_pretrained(folder / "model")
    trace, reference = folder / "trace.jsonl", folder / "reference.jsonl"
    for path, content in zip((trace, reference), lines(), strict=True):
        path.write_text("".join(json.dumps(line) + "\n" for line in content), encoding="utf-8")
    return folder / "model", trace, reference
