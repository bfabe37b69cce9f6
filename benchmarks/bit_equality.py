"""Invariant numerics on real models: is each row, tokens and logits, what the target alone gives, to the bit?

    python benchmarks/bit_equality.py question.jsonl [--target FOLDER] [--draft FOLDER] [--dtype bfloat16] [--draws 8]
        [--compile]

The truth is one run of `target-only` at batch 1 in invariant numerics, with the default chunk. Then `--draws` runs with
everything drawn at random: method, batch 1, 3 or 8, K 1 to 7, prefill chunk 17 to 300, order of arrival, drafter
(prompt lookup, suffix, or the draft model if there is one, with its own weights or of four bits), adaptive or not.
Compared are the emitted ids and a digest of the whole logits behind each. rows_equal = rows with the same ids and the
same digests / rows; the interval over all draws is Wilson's at 95 %, rows taken as independent. Exit status 1 if a row
differs.
"""

import argparse
import hashlib
import json
import random
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch

from specproof import METHODS, Engine, EngineConfig, Request
from specproof.audit.compare import rate
from specproof.bench.workload import load_subject, pick, read_chats
from specproof.drafters import PromptLookup, Suffix
from specproof.jobs.provenance import machine, versions
from specproof.lm import LM

Row = tuple[tuple[int, ...], tuple[str, ...]]  # emitted ids, digests of the logits behind them


def main() -> None:
    args = _arguments()
    subject = load_subject(args.target, args.draft, args.dtype, args.threads)
    target, tokenizer, draft = subject.target, subject.tokenizer, subject.draft
    defaults = Request((), max_new_tokens=args.max_new_tokens)
    requests = pick(read_chats(args.prompts, tokenizer, defaults), args.rows, args.max_prompt_tokens)
    alone = EngineConfig("target-only", 1, numerics="invariant", share_prefixes=False, compile=args.compile)
    truth = decode(target, None, alone, requests)
    assert len({row[0] for row in truth.values()}) > 1, "the outputs do not vary"
    draw = random.Random(args.seed)
    runs = []
    for _ in range(args.draws):
        about, drafter, config = _draw(draw, draft, args.compile)
        shuffled = draw.sample(requests, len(requests))
        start = perf_counter()
        found = decode(target, drafter, config, shuffled)
        differ = [name for name in found if found[name] != truth[name]]
        same_ids = sum(found[name][0] == truth[name][0] for name in found)
        runs.append({**about, "rows": len(found), "rows_equal": len(found) - len(differ), "same_ids": same_ids,
                     "differ": differ, "seconds": perf_counter() - start})  # fmt: skip
        print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    total = rate(sum(run["rows_equal"] for run in runs), sum(run["rows"] for run in runs))
    tokens = sum(len(row[0]) for row in truth.values())
    about = {"target": subject.name.rsplit("/", 1)[-1], "draft": args.draft and args.draft.rsplit("/", 1)[-1]}
    document = {
        **about,
        "dtype": args.dtype,
        "compiled": args.compile,
        "tokens_per_run": tokens,
        "rows_equal": total,
        "runs": runs,
    }
    print(json.dumps({**document, "versions": versions(), "machine": machine()}, indent=1))
    raise SystemExit(int(total["hits"] < total["n"]))


def decode(lm: LM, drafter: Any, config: EngineConfig, requests: Sequence[Request]) -> dict[str, Row]:
    """By request name. The digests come from a wrapper around the layout's forward."""
    engine = Engine(lm, drafter, config)
    seen: dict[tuple[str, int], str] = {}
    forward = engine.layout.forward

    def watched(feeds: Any, device_ids: Any = None) -> torch.Tensor:
        logits = forward(feeds, device_ids)
        bits = logits.cpu().view(torch.uint8).numpy()
        at = 0
        for feed in feeds:
            for j in range(feed.num_logits):
                seen[feed.row, feed.end - feed.num_logits + j] = hashlib.blake2b(bits[at], digest_size=16).hexdigest()
                at += 1
        return logits

    engine.layout.forward = watched
    rows = {}
    for output in engine.generate(requests):
        first = output.prompt_len - 1
        digests = (seen[output.request_id, first + i] for i in range(len(output.token_ids)))
        rows[output.request_id] = (output.token_ids, tuple(digests))
    return rows


def _draw(draw: random.Random, draft: LM | None, compiled: bool) -> tuple[dict[str, Any], Any, EngineConfig]:
    method = draw.choice([name for name in METHODS if METHODS[name].drafts])
    names = ["prompt-lookup", "suffix", *(["model"] if draft else [])]
    name = draw.choice(names)
    drafter = {"prompt-lookup": PromptLookup, "suffix": Suffix, "model": lambda: draft}[name]()
    options = {
        "method": method, "batch_size": draw.choice((1, 3, 8)), "num_draft_tokens": draw.randint(1, 7),
        "prefill_chunk": draw.randint(17, 300), "adaptive": method == "specproof" and draw.random() < 0.5,
    }  # fmt: skip
    if name == "model" and METHODS[method].layout == "slotted":
        options["draft_bits"] = draw.choice((None, 4))
    return {**options, "drafter": name}, drafter, EngineConfig(numerics="invariant", compile=compiled, **options)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts")
    parser.add_argument("--target")
    parser.add_argument("--draft")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--compile", action="store_true", help="all runs compiled, the truth too")
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--max-prompt-tokens", type=int, default=2048)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
