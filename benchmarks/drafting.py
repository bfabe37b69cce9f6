"""Adaptive drafting against target-only decoding and against a fixed K: tokens per second by category and batch size.

    python benchmarks/drafting.py [--target T] [--draft D] [--prompts FILE] [--drafters prompt-lookup cascade]
        [--categories editing qa] [--batch-sizes 1 8] [--rows 8] [--repeats 3] [--compile] [--json]

--prompts takes Spec-Bench's question.jsonl or any JSONL with `category` and `turns` (the first turn is decoded, in the
chat template); Spec-Bench's eight categories of ten questions count as one, `mt_bench`. The built-in category `editing`
(editing.jsonl: answers that copy most of the prompt) is always there. Without --draft only prompt-lookup and suffix
run. Within a repeat all paces of a cell, and target-only, decode the same rows side by side on warmed-up models: the
engine that has used least time so far does the next step, so that a busy moment of the machine falls on all of them
alike. A ratio is the median over repeats of target-only's seconds by a pace's. Every repeat makes new engines, so
learning what pays is in their time. Rows equal: those whose tokens are target-only's (bfloat16 near-ties may differ).
"""

import argparse
import gc
import json
import statistics
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import torch

from specproof import Engine, EngineConfig, Output, Request
from specproof.drafters import Cascade, PromptLookup, Suffix
from specproof.embedded import default_model_folder
from specproof.engine import request_names
from specproof.jobs.provenance import machine, versions
from specproof.jobs.run import CASCADE_MATCH
from specproof.lm import LM, load_model
from specproof.tokenizer import Tokenizer

MT_BENCH = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
DRAFTERS = ("prompt-lookup", "suffix", "model", "cascade")
PACES = ("adaptive", "fixed")


@dataclass(frozen=True)
class Row:
    """One drafter and pace in one cell. ratio: tokens per second over target-only's. Medians over the repeats."""

    category: str
    batch_size: int
    drafter: str
    pace: str
    tokens_per_second: float
    ratio: float
    ratio_range: tuple[float, float]
    acceptance_rate: float | None
    mean_accepted_length: float
    drafted: int
    accepted: int
    expected: float
    draft_share: float  # of the steps' seconds
    rows: int
    rows_equal: int


@dataclass(frozen=True)
class Run:
    seconds: float
    outputs: list[Output]
    engine: Engine

    @property
    def speed(self) -> float:
        return self.engine.statistics.emitted / self.seconds


def read_prompts(paths: list[Path]) -> dict[str, list[str]]:
    """Category -> first turns."""
    found = defaultdict(list)
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            category = "mt_bench" if row["category"] in MT_BENCH else row["category"]
            found[category].append(row["turns"][0])
    return dict(found)


def make_drafter(name: str, draft: LM | None):
    if name == "prompt-lookup":
        return PromptLookup()
    if name == "suffix":
        return Suffix()
    return draft if name == "model" else Cascade(Suffix(size=CASCADE_MATCH), draft)


def make_engine(args: argparse.Namespace, models: tuple, batch_size: int, mode: str) -> Engine:
    """mode: "target-only", or drafter and pace, as in "suffix adaptive"."""
    target, draft, tokenizer = models
    name, _, pace = mode.partition(" ")
    if name == "target-only":
        config = EngineConfig("target-only", batch_size=batch_size, compile=args.compile)
        return Engine(target, None, config, tokenizer)
    config = EngineConfig(
        batch_size=batch_size,
        num_draft_tokens=args.most if pace == "adaptive" else args.fixed,
        adaptive=pace == "adaptive",
        compile=args.compile,
        draft_head=args.draft_head if name in ("model", "cascade") else None,
        draft_bits=args.draft_bits if name in ("model", "cascade") else None,
    )
    return Engine(target, make_drafter(name, draft), config, tokenizer)


def side_by_side(engines: dict[str, Engine], requests: list[Request]) -> dict[str, Run]:
    """Each engine decodes the requests; of those that are not done, the one that has used least time goes next."""
    seconds = dict.fromkeys(engines, 0.0)
    outputs = {mode: {output.request_id: output for output in engines[mode].submit(requests)} for mode in engines}
    while going := [mode for mode in engines if engines[mode].num_unfinished]:
        mode = min(going, key=lambda mode: seconds[mode])
        start = perf_counter()
        record = engines[mode].step()
        seconds[mode] += perf_counter() - start
        outputs[mode] |= {output.request_id: output for output in record.finished}
    return {
        mode: Run(seconds[mode], [outputs[mode][name] for name in request_names(requests)], engine)
        for mode, engine in engines.items()
    }


def summary(category: str, batch_size: int, mode: str, runs: list[Run], plain: list[Run]) -> Row:
    name, _, pace = mode.partition(" ")
    ratios = [run.speed / base.speed for run, base in zip(runs, plain, strict=True)]
    last = runs[-1].engine.statistics
    pairs = zip(runs[-1].outputs, plain[-1].outputs, strict=True)
    return Row(
        category=category,
        batch_size=batch_size,
        drafter=name,
        pace=pace,
        tokens_per_second=statistics.median(run.speed for run in runs),
        ratio=statistics.median(ratios),
        ratio_range=(min(ratios), max(ratios)),
        acceptance_rate=last.acceptance_rate,
        mean_accepted_length=last.mean_accepted_length or 0.0,
        drafted=last.drafted,
        accepted=last.accepted,
        expected=last.expected,
        draft_share=last.draft_seconds / last.seconds,
        rows=len(runs[-1].outputs),
        rows_equal=sum(ours.token_ids == theirs.token_ids for ours, theirs in pairs),
    )


def show(row: Row) -> str:
    low, high = row.ratio_range
    return (
        f"{row.category:14} B {row.batch_size:3}  {row.drafter:13} {row.pace:8} {row.tokens_per_second:7.1f} tokens/s  "
        f"{row.ratio:5.3f} of target-only ({low:.3f} to {high:.3f})  accepted {row.accepted} of {row.drafted} "
        f"(expected {row.expected:.0f})  length {row.mean_accepted_length:.2f}  drafting {row.draft_share:.1%}  "
        f"equal {row.rows_equal}/{row.rows}"
    )


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=None, help="folder or hub name (default: the embedded SmolLM2)")
    parser.add_argument("--draft", default=None, help="folder or hub name of the draft model")
    parser.add_argument("--draft-head", type=int, default=None)
    parser.add_argument("--draft-bits", type=int, default=None)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--compile", action="store_true", help="compiled layers in all runs, target-only too")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompts", type=Path, nargs="*", default=[])
    parser.add_argument("--categories", nargs="+", default=None, help="(default: all)")
    parser.add_argument("--drafters", nargs="+", default=None, choices=DRAFTERS)
    parser.add_argument("--paces", nargs="+", default=list(PACES), choices=PACES)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rows", type=int, default=8, help="prompts of each category; batch_size at least")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--most", type=int, default=16, help="K of the adaptive pace")
    parser.add_argument("--fixed", type=int, default=5, help="K of the fixed pace")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    args = options()
    torch.set_num_threads(args.threads)
    prompts = read_prompts([Path(__file__).with_name("editing.jsonl"), *args.prompts])
    unknown = [name for name in args.categories or () if name not in prompts]
    if unknown:
        sys.exit(f"no prompts of category {', '.join(unknown)}; there are {', '.join(prompts)}")
    drafters = args.drafters or (DRAFTERS if args.draft else DRAFTERS[:2])
    if not args.draft and {"model", "cascade"} & set(drafters):
        sys.exit("model and cascade need --draft")
    folder = args.target or str(default_model_folder())
    target = load_model(folder, dtype=args.dtype, device=args.device)
    tokenizer = Tokenizer.load(folder)
    draft = load_model(args.draft, dtype=args.dtype, device=args.device) if args.draft else None
    models = (target, draft, tokenizer)
    gc.freeze()  # as `specproof generate` does
    modes = ["target-only", *(f"{name} {pace}" for name in drafters for pace in args.paces)]
    rows = []
    for category in args.categories or prompts:
        ids = [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in prompts[category]]
        for batch_size in args.batch_sizes:
            count = max(batch_size, args.rows)
            requests = [Request(ids[i % len(ids)], max_new_tokens=args.max_new_tokens) for i in range(count)]
            runs = defaultdict(list)
            for repeat in range(-1, args.repeats):
                engines = {mode: make_engine(args, models, batch_size, mode) for mode in modes}
                if repeat < 0:  # the first forwards of each kind are slow
                    side_by_side(engines, [Request(ids[0], max_new_tokens=8)])
                    continue
                for mode, run in side_by_side(engines, requests).items():
                    runs[mode].append(run)
            for mode in modes[1:]:
                rows.append(summary(category, batch_size, mode, runs[mode], runs["target-only"]))
                if not args.json:
                    print(show(rows[-1]), flush=True)
    if args.json:
        about = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
        about["prompts"] = [path.name for path in args.prompts]
        print(
            json.dumps({**about, **versions(), "machine": machine(), "rows": [asdict(row) for row in rows]}, indent=2)
        )


if __name__ == "__main__":
    main()
