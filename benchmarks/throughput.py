"""Tokens per second at one batch size: Transformers' `generate`, target-only in both numerics, adaptive speculation.

    python benchmarks/throughput.py [--target FOLDER] [--draft FOLDER] [--dtype bfloat16] [--batch-size 8] [--json]

`generate` decodes batches padded on the left, on a copy of the model; each of ours has a new engine. EOS is ignored, so
that all emit the same number of tokens; prefill is in the time, packing of weights, compiling and the first forwards of
a process are not. Within a repeat all decode side by side: after each step of `generate` every engine steps until it
has emitted as many tokens, so that a busy moment of the machine falls on all alike. A ratio is `generate`'s seconds by
an engine's, of the same repeat; medians are over `--repeats`, with the range beside. The prompts are the built-in ones,
or `--prompts FILE` (what `specproof generate` reads), in the chat template.
"""

import argparse
import gc
import json
import statistics
from collections.abc import Callable
from dataclasses import replace

import torch

from specproof import Engine, EngineConfig, Request
from specproof.bench.clock import now
from specproof.bench.workload import load_subject, pick, read_chats
from specproof.cli.demo import generate_with_transformers
from specproof.drafters import Suffix
from specproof.jobs.provenance import machine, versions
from specproof.lm import LM
from specproof.prompts import PROMPTS
from specproof.tokenizer import Tokenizer


def main() -> None:
    args = _arguments()
    subject = load_subject(args.target, args.draft, args.dtype, args.threads)
    target, tokenizer, draft = subject.target, subject.tokenizer, subject.draft
    requests = _requests(args, tokenizer)
    theirs = load_subject(args.target, None, args.dtype, args.threads).target
    theirs.model.generation_config.eos_token_id = None  # type: ignore[union-attr]
    plain = EngineConfig("target-only", batch_size=args.batch_size)
    drafting = EngineConfig(batch_size=args.batch_size, num_draft_tokens=16, adaptive=True, numerics="fast")
    engines: dict[str, Callable[[], Engine]] = {
        "target-only, fast": lambda: Engine(target, None, replace(plain, numerics="fast")),
        "target-only, stock weights": lambda: Engine(theirs, None, replace(plain, numerics="fast", pack=False)),
        "target-only, invariant": lambda: Engine(target, None, replace(plain, numerics="invariant")),
        "target-only, compiled": lambda: Engine(target, None, replace(plain, numerics="fast", compile=True)),
        "target-only, invariant, compiled": lambda: Engine(
            target, None, replace(plain, numerics="invariant", compile=True)
        ),
        "adaptive, suffix": lambda: Engine(target, Suffix(), drafting),
        "adaptive, suffix, compiled": lambda: Engine(target, Suffix(), replace(drafting, compile=True)),
    }
    if draft is not None:
        engines["adaptive, model, compiled"] = lambda: Engine(target, draft, replace(drafting, compile=True))
    engines = {name: make for name, make in engines.items() if args.only is None or name in args.only}
    gc.freeze()  # as `specproof generate` does
    seconds: dict[str, list[float]] = {name: [] for name in ("generate", *engines)}
    for _ in range(args.repeats):
        turns = Turns({name: make() for name, make in engines.items()}, requests, args.batch_size)
        for name, used in turns.run(theirs).items():
            seconds[name].append(used)
    tokens = len(requests) * args.max_new_tokens
    rows = [_row(name, tokens, seconds) for name in seconds]
    if args.json:
        about = {
            name: value for name, value in vars(args).items() if name not in ("target", "draft", "prompts", "only")
        }
        print(
            json.dumps(
                {**about, "tokens": tokens, "versions": versions(), "machine": machine(), "rows": rows}, indent=1
            )
        )
        return
    for row in rows:
        low, high = row["ratio_range"]
        print(
            f"{row['name']:32} {row['tokens_per_second']:7.1f} tokens/s  {row['ratio']:.2f} ({low:.2f} to {high:.2f})"
        )


class Turns:
    """`generate` and engines in turns, as a criterion for stopping that is asked after each token and never stops."""

    def __init__(self, engines: dict[str, Engine], requests: list[Request], batch_size: int) -> None:
        self._requests, self._batch_size = requests, batch_size
        self._engines = engines
        for engine in engines.values():
            engine.generate([replace(requests[0], max_new_tokens=2)])  # packs
        self._before = {name: engine.statistics.emitted for name, engine in engines.items()}
        self._used = dict.fromkeys(("generate", *engines), 0.0)
        self._emitted, self._started = 0, 0.0

    def run(self, theirs: LM) -> dict[str, float]:
        """Seconds that each used."""
        generate_with_transformers(theirs, [replace(self._requests[0], max_new_tokens=2)], 1)
        for engine in self._engines.values():
            engine.submit(self._requests)
        self._started = now()
        generate_with_transformers(theirs, self._requests, self._batch_size, self)
        self._used["generate"] += now() - self._started
        total = sum(request.max_new_tokens for request in self._requests)
        assert self._emitted == total
        for name, engine in self._engines.items():
            assert engine.statistics.emitted - self._before[name] == total
        return self._used

    def __call__(self, ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
        """ids: (b, n), of a batch of `generate`."""
        self._used["generate"] += now() - self._started
        self._emitted += len(ids)
        for name, engine in self._engines.items():
            start = now()
            while engine.statistics.emitted - self._before[name] < self._emitted:
                engine.step()
            self._used[name] += now() - start
        self._started = now()
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)


def _row(name: str, tokens: int, seconds: dict[str, list[float]]) -> dict:
    ratios = [base / ours for base, ours in zip(seconds["generate"], seconds[name], strict=True)]
    return {
        "name": name,
        "tokens_per_second": tokens / statistics.median(seconds[name]),
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
    }


def _requests(args: argparse.Namespace, tokenizer: Tokenizer) -> list[Request]:
    defaults = Request((), max_new_tokens=args.max_new_tokens, ignore_eos=True)
    if args.prompts is not None:
        every = read_chats(args.prompts, tokenizer, defaults)
    else:
        chats = (tokenizer.encode_chat([{"role": "user", "content": prompt}]) for prompt in PROMPTS)
        every = [replace(defaults, prompt_ids=ids) for ids in chats]
    return pick(every, args.rows, args.max_prompt_tokens)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target")
    parser.add_argument("--draft")
    parser.add_argument("--prompts")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--max-prompt-tokens", type=int, default=256)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", help="names of engines (default: all)")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
