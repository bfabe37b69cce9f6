"""What auditing costs: a trace against one plain prefill of it, and level light against a run without an auditor.

    python benchmarks/audit_cost.py [--dtype bfloat16] [--threads 2] [--rows 64] [--json]

trace_cost = seconds of `audit_traces` without its plain floor / seconds of one plain forward of the target over each
row's prompt and output (one row at a time, logits of the last position). The trace is one of target-only decoding at
batch 8, of `--rows` prompts. floor_cost: plain against plain on 8 rows, in the same unit; it decodes them anew, twice.
light_cost = seconds of a run audited at level light / seconds of the same run without an auditor - 1, `specproof` with
prompt lookup, batch 8, K = 5. Both sides take turns; medians over `--repeats`, with the range. The target is the
embedded SmolLM2-135M-Instruct unless `--target` names another.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Sequence

import torch

from specproof import Engine, EngineConfig, Request
from specproof.audit import audit_engine, audit_traces
from specproof.audit.plain import measure_floor
from specproof.audit.trace_row import Trace
from specproof.bench.clock import now
from specproof.bench.workload import load_subject
from specproof.drafters import PromptLookup
from specproof.jobs.provenance import machine, versions
from specproof.lm import LM
from specproof.prompts import PROMPTS
from specproof.tokenizer import Tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    subject = load_subject(args.target, None, args.dtype, args.threads)
    target, tokenizer = subject.target, subject.tokenizer
    requests = [
        Request(_prompt(tokenizer, k), max_new_tokens=args.max_new_tokens, ignore_eos=True) for k in range(args.rows)
    ]
    outputs = Engine(target, None, EngineConfig(method="target-only")).generate(requests)
    traces = [
        Trace(k, str(k), request, output.token_ids)
        for k, (request, output) in enumerate(zip(requests, outputs, strict=True))
    ]
    lengths = [len(trace.token_ids) for trace in traces]
    seconds = _in_turn(
        args.repeats,
        {
            "prefill": lambda: _prefill(target, traces),
            "trace": lambda: audit_traces(target, traces, tokenizer, plain_rows=0),
            "floor": lambda: measure_floor(target, traces[:8], lengths[:8], 8),
            "run": lambda: _engine(target).generate(requests),
            "light": lambda: audit_engine(_engine(target), requests, "light"),
        },
    )
    found = {
        "trace_cost": _ratios(seconds["trace"], seconds["prefill"]),
        "floor_cost": _ratios(seconds["floor"], seconds["prefill"]),
        "light_cost": [ratio - 1 for ratio in _ratios(seconds["light"], seconds["run"])],
    }
    summary = {name: {"median": statistics.median(v), "range": [min(v), max(v)]} for name, v in found.items()}
    if args.json:
        about = {"dtype": args.dtype, "rows": args.rows, "repeats": args.repeats}
        print(
            json.dumps({**about, "versions": versions(), "machine": machine(), "seconds": seconds, **summary}, indent=1)
        )
    else:
        for name, value in summary.items():
            low, high = value["range"]
            print(f"{name:10} {value['median']:6.3f}  ({low:.3f} to {high:.3f}, {args.repeats} runs)")


def _prompt(tokenizer: Tokenizer, k: int) -> list[int]:
    return tokenizer.encode_chat([{"role": "user", "content": PROMPTS[k % len(PROMPTS)] + " " * (k // len(PROMPTS))}])


def _engine(target: LM) -> Engine:
    return Engine(target, PromptLookup(), EngineConfig(batch_size=8, num_draft_tokens=5))


@torch.inference_mode()
def _prefill(target: LM, traces: Sequence[Trace]) -> None:
    for trace in traces:
        ids = torch.tensor([[*trace.prompt_ids, *trace.token_ids]], device=target.device)
        target.plain_forward(ids, None, torch.tensor([ids.shape[1] - 1], device=target.device))


def _in_turn(repeats: int, work: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeats):
        for name, do in work.items():
            start = now()
            do()
            seconds[name].append(now() - start)
    return seconds


def _ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(ours, theirs, strict=True)]


if __name__ == "__main__":
    main()
