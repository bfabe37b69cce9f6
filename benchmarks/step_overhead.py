"""Share of step time spent outside the models' forwards, by method and batch size.

    python benchmarks/step_overhead.py [--dtype bfloat16] [--threads 2] [--batch-sizes 1 2 4 8 16 32] [--compile]
        [--json]

overhead_share = 1 - (seconds inside the target's forward) / (seconds of the step), summed over all steps of a run of
2 * batch_size prompts: prefill, refills and the tail, in which rows leave one by one, are in it. Drafting is scripted
and takes no model; its own seconds are subtracted. The embedded SmolLM2-135M-Instruct is the target, K = 5. The drafter
proposes the next tokens of target-only decoding, the first (7 * row + 3 * index) mod 6 of them right, so that
acceptance is ragged in every step (in bfloat16 a row may leave that text, and is then right less often). The methods
take turns within one run; each figure is the median over `--repeats` runs, with the range beside it.
"""

import argparse
import gc
import json
import statistics
from dataclasses import asdict, dataclass
from time import perf_counter

import numpy as np
import torch

from specproof import Engine, EngineConfig, Request
from specproof.bench.clock import ForwardClock
from specproof.bench.workload import load_subject
from specproof.drafters import DraftRow, Scripted
from specproof.lm import LM
from specproof.prompts import PROMPTS

K = 5
METHODS = ("specproof", "eqspec")


@dataclass(frozen=True)
class Row:
    """One method at one batch size. milliseconds: per step, medians over the repeats."""

    method: str
    batch_size: int
    steps: int
    overhead_share: float
    overhead_share_range: tuple[float, float]
    step_milliseconds: float
    overhead_milliseconds: float
    mean_accepted_length: float


class RaggedDrafter(Scripted):
    """Knows the target's outputs and errs on purpose; counts its own seconds."""

    def __init__(self, outputs: dict[str, tuple[int, ...]], prompt_lens: dict[str, int]) -> None:
        super().__init__(self._ragged)
        self._outputs, self._prompt_lens = outputs, prompt_lens
        self.seconds = 0.0

    def propose(self, rows: list[DraftRow], max_tokens: int) -> list[list[int]]:
        start = perf_counter()
        drafts = super().propose(rows, max_tokens)
        self.seconds += perf_counter() - start
        return drafts

    def _ragged(self, row: DraftRow, max_tokens: int) -> list[int]:
        at = len(row.token_ids) - self._prompt_lens[row.request_id]
        right = (7 * int(row.request_id) + 3 * at) % (K + 1)
        ahead = self._outputs[row.request_id][at : at + max_tokens]
        return [token if i < right else token + 1 for i, token in enumerate(ahead)]


def measure(
    target: LM, config: EngineConfig, requests: list[Request], drafter: RaggedDrafter
) -> tuple[int, float, float, float]:
    """(steps, their seconds without drafting, seconds of the target's forwards, mean accepted length)."""
    engine = Engine(target, drafter, config)
    engine.submit(requests)
    steps, total, inside, left = 0, 0.0, 0.0, len(requests)
    while left:
        drafter.seconds = 0.0
        with ForwardClock(target).running() as clock:
            start = perf_counter()
            record = engine.step()
            seconds = perf_counter() - start
        left -= len(record.finished)
        steps, total, inside = steps + 1, total + seconds - drafter.seconds, inside + clock.seconds
    return steps, total, inside, engine.statistics.mean_accepted_length or 0.0


def growth(rows: list[Row]) -> dict[str, float]:
    """Least squares of log(overhead_milliseconds) on log(batch_size): exponent, and R squared."""
    x = np.log([row.batch_size for row in rows])
    y = np.log([row.overhead_milliseconds for row in rows])
    exponent, constant = np.polyfit(x, y, 1)
    residual = y - (exponent * x + constant)
    return {"exponent": float(exponent), "r_squared": float(1 - residual.var() / y.var())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--max-new-tokens", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    subject = load_subject(None, None, args.dtype, args.threads)
    target, tokenizer = subject.target, subject.tokenizer
    gc.freeze()  # as `specproof generate` does
    rows = []
    for batch_size in args.batch_sizes:
        prompts = [PROMPTS[i % len(PROMPTS)] for i in range(2 * batch_size)]
        ids = [tokenizer.encode_chat([{"role": "user", "content": prompt}]) for prompt in prompts]
        requests = [Request(prompt, max_new_tokens=args.max_new_tokens, ignore_eos=True) for prompt in ids]
        plain = Engine(target, None, EngineConfig(method="target-only", batch_size=batch_size)).generate(requests)
        drafter = RaggedDrafter(
            {output.request_id: output.token_ids for output in plain},
            {output.request_id: output.prompt_len for output in plain},
        )
        runs = {method: [] for method in METHODS}
        for _ in range(args.repeats):
            for method in METHODS:
                config = EngineConfig(method=method, batch_size=batch_size, num_draft_tokens=K, compile=args.compile)
                runs[method].append(measure(target, config, requests, drafter))
        for method in METHODS:
            shares = [1 - inside / total for _, total, inside, _ in runs[method]]
            rows.append(
                Row(
                    method=method,
                    batch_size=batch_size,
                    steps=runs[method][0][0],
                    overhead_share=statistics.median(shares),
                    overhead_share_range=(min(shares), max(shares)),
                    step_milliseconds=statistics.median(1e3 * total / steps for steps, total, _, _ in runs[method]),
                    overhead_milliseconds=statistics.median(1e3 * (t - i) / steps for steps, t, i, _ in runs[method]),
                    mean_accepted_length=statistics.median(length for *_, length in runs[method]),
                )
            )
            if not args.json:
                row = rows[-1]
                print(
                    f"{row.method:10} B {row.batch_size:3}  overhead {row.overhead_share:6.1%} "
                    f"({row.overhead_share_range[0]:.1%} to {row.overhead_share_range[1]:.1%}, {args.repeats} runs)  "
                    f"step {row.step_milliseconds:7.1f} ms  outside {row.overhead_milliseconds:6.2f} ms  "
                    f"mean accepted length {row.mean_accepted_length:.2f}",
                    flush=True,
                )
    fits = {
        method: growth([row for row in rows if row.method == method]) for method in METHODS if len(args.batch_sizes) > 1
    }
    if args.json:
        about = {"torch": torch.__version__, "dtype": args.dtype, "threads": args.threads, "repeats": args.repeats}
        print(json.dumps({**about, "rows": [asdict(row) for row in rows], "growth": fits}, indent=2))
    else:
        for method, fit in fits.items():
            print(f"{method}: overhead per step grows as B^{fit['exponent']:.2f} (R^2 {fit['r_squared']:.2f})")


if __name__ == "__main__":
    main()
