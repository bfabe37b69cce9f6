"""What sharing prefixes saves: rows with one system prompt, shared or computed anew, taking turns.

    python benchmarks/shared_prefix.py [--rows 16] [--prefix 300] [--new-tokens 16] [--batch-size 8] [--json]

The embedded SmolLM2-135M-Instruct decodes `--rows` short prompts behind a common beginning of `--prefix` tokens,
without drafts. Before the first repeat each variant runs once, and the rows that are equal are counted: in invariant
numerics all of them. A ratio is on / off within a repeat; each figure is the median over `--repeats`, with the range.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from time import perf_counter

import torch

from specproof import Engine, EngineConfig, Request
from specproof.bench.workload import load_subject
from specproof.prompts import PROMPTS
from specproof.tokenizer import Tokenizer


def requests(tokenizer: Tokenizer, rows: int, prefix: int, new_tokens: int) -> list[Request]:
    text = "You answer questions briefly and to the point. "
    common = (tokenizer.encode(text) * prefix)[:prefix]
    asked = [tokenizer.encode(PROMPTS[i % len(PROMPTS)])[:24] + tokenizer.encode(f" ({i})") for i in range(rows)]
    return [Request([*common, *ids], new_tokens, ignore_eos=True) for ids in asked]


def measure(engine: Engine, work: Sequence[Request]) -> tuple[list[tuple[int, ...]], float, int]:
    """Token ids of each row, seconds, prompt tokens computed."""
    before, start = engine.statistics.prefilled, perf_counter()
    outputs = engine.generate(work)
    return [row.token_ids for row in outputs], perf_counter() - start, engine.statistics.prefilled - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--prefix", type=int, default=300)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    subject = load_subject(None, None, args.dtype, args.threads)
    target = subject.target
    work = requests(subject.tokenizer, args.rows, args.prefix, args.new_tokens)
    engines = {
        share: Engine(target, config=EngineConfig("target-only", args.batch_size, share_prefixes=share))
        for share in (True, False)
    }
    first = {share: measure(engine, work)[0] for share, engine in engines.items()}
    runs = {share: [] for share in engines}
    for _ in range(args.repeats):
        for share, engine in engines.items():
            runs[share].append(measure(engine, work)[1:])
    ratios = [on / off for (on, _), (off, _) in zip(runs[True], runs[False], strict=True)]
    found = {
        "torch": torch.__version__,
        "dtype": args.dtype,
        "threads": args.threads,
        "numerics": engines[True].numerics.kind,
        "rows": args.rows,
        "prefix": args.prefix,
        "new_tokens": args.new_tokens,
        "batch_size": args.batch_size,
        "repeats": args.repeats,
        "rows_equal": sum(on == off for on, off in zip(first[True], first[False], strict=True)),
        "prompt_tokens_computed": {"on": runs[True][0][1], "off": runs[False][0][1]},
        "prompt_tokens_ratio": runs[True][0][1] / runs[False][0][1],
        "seconds": {name: statistics.median(s for s, _ in runs[name == "on"]) for name in ("on", "off")},
        "seconds_ratio": statistics.median(ratios),
        "seconds_ratio_range": (min(ratios), max(ratios)),
    }
    if args.json:
        print(json.dumps(found, indent=2))
        return
    low, high = found["seconds_ratio_range"]
    computed = found["prompt_tokens_computed"]
    print(
        f"{args.rows} rows, {args.prefix} common tokens, {args.new_tokens} new ones, {args.dtype}, "
        f"batch {args.batch_size}, {found['numerics']} numerics: {found['rows_equal']} rows equal\n"
        f"prompt tokens computed  {computed['on']} of {computed['off']} ({found['prompt_tokens_ratio']:.2f})\n"
        f"seconds                 {found['seconds']['on']:.2f} of {found['seconds']['off']:.2f}, "
        f"ratio {found['seconds_ratio']:.2f} ({low:.2f} to {high:.2f}, {args.repeats} repeats)"
    )


if __name__ == "__main__":
    main()
