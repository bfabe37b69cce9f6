"""The table of docs/baselines.md:  PYTHONPATH=src:tests python tests/audit_probe/table.py [--smollm2 PROMPTS.jsonl]

PROMPTS.jsonl: Spec-Bench questions (`turns`); 4 of them are decoded as one batch, 16 tokens each, in float32.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from probe_subjects import BATCHES, LOOPS, Run, noisy, run, watch

from specproof.embedded import default_model_folder
from specproof.lm import load_model
from specproof.reference import decode_reference
from specproof.request import Request
from specproof.tokenizer import Tokenizer

SLOW_TABLE = (
    "BSP as in the paper", "DSD as in the paper", "masked holes", "DSD, no defect", "DSD, KV not realigned",
    "BSP, rejected KV visible", "DSD, no position ids", "DSD, no mask",
)  # fmt: skip


def cell(found: Run) -> str:
    """Exact rows, where the others diverge, and what the probe names."""
    wrong = sorted(at for at in found.diverged if at is not None)
    at = f", from {', '.join(map(str, wrong))}" if wrong else ""
    names = sorted({name for name in found.named if name})
    return f"{found.exact} of {len(found.diverged)}{at}{'; ' + ', '.join(names) if names else ''}"


def table(columns: dict[str, Callable[[str], Run]], loops: Iterable[str] = LOOPS) -> Iterator[str]:
    """One line of Markdown after the other."""
    yield "| loop | " + " | ".join(columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    for name in loops:
        yield "| " + " | ".join([name, *(cell(make(name)) for make in columns.values())]) + " |"


def tiny() -> Iterator[str]:
    return table(
        {
            f"{family}, batch {batch}": lambda name, f=family, b=batch: run(name, f, b)
            for family in ("llama", "opt")
            for batch in BATCHES
        }
    )


def smollm2(path: Path) -> Iterator[str]:
    folder = default_model_folder()
    lm, tokenizer = load_model(folder), Tokenizer.load(folder)
    drafter = noisy(lm.model, 0.03)
    questions = path.read_text().splitlines()[:400:100]
    prompts = [tokenizer.encode(json.loads(line)["turns"][0])[:64] for line in questions]
    truth = [decode_reference(lm, Request(p, max_new_tokens=16, ignore_eos=True)).token_ids for p in prompts]
    lm.model.generation_config.eos_token_id = None
    return table({"batch 4": lambda name: watch(LOOPS[name], lm, drafter, prompts, truth, 4)}, SLOW_TABLE)


if __name__ == "__main__":
    for line in smollm2(Path(sys.argv[2])) if sys.argv[1:2] == ["--smollm2"] else tiny():
        print(line, flush=True)
