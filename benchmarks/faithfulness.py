"""Does each method write the target's own text? Traces of methods and of the broken loops, audited side by side.

    python benchmarks/faithfulness.py question.jsonl [--target FOLDER] [--draft FOLDER] [--dtype bfloat16] [--json]

Prompts are the first turns of Spec-Bench's file (or any input that `generate` reads), in the chat template, `--rows` of
them evenly over those of at most `--max-prompt-tokens`. `plain-1` is target-only decoding at batch 1, the reference of
every comparison; `plain-B` is target-only at `--batch-size`: the floor beside which every figure stands. `bsp` and
`dsd` are the paper's broken loops (`specproof.baselines`), watched by a Probe, which names the first invariant that
they violate. Without --draft the methods draft by prompt lookup, and the loops with a copy of the target that has
`NOISE` on its weights. Traces are kept in `--traces`: what is there is not decoded again. Numerics are `fast`, since
what rounding does is the subject here; in `invariant` numerics all rows equal plain-1 (bit_equality.py).

exact: rows equal to plain-1 / rows. partial: tokens before the first difference / tokens of plain-1. ROUGE-L: mean of
rows. Statuses and classes are of rows, as `specproof audit trace` counts them; rows that several methods share are
judged once, and the noise is that of all of them. Intervals are Wilson's at 95 %.
"""

import argparse
import copy
import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from specproof import Engine, EngineConfig, Request
from specproof.audit import Probe, audit_traces
from specproof.audit.agreement import agreement
from specproof.audit.compare import rouge_l
from specproof.audit.finding import RowVerdict
from specproof.audit.trace_row import Trace
from specproof.audit.traces import read_traces
from specproof.baselines import Bsp, Dsd
from specproof.bench.workload import load_subject, pick, read_chats
from specproof.drafters import PromptLookup
from specproof.jobs.provenance import machine, versions
from specproof.lm import LM, HFModel
from specproof.numerics.packed import arrange, why_not
from specproof.tokenizer import Tokenizer

METHODS = ("plain-1", "plain-B", "specproof", "eqspec", "exspec", "bsp", "dsd")
LOOPS = {"bsp": Bsp, "dsd": Dsd}
DEFECTS = {
    "bsp": {"implicit_positions": True, "no_stop": True},
    "dsd": {"draft_bonus": True, "no_mask": True, "implicit_positions": True, "not_unpadded": True},
}
NOISE = 0.03  # standard deviations of each weight matrix


def main() -> None:
    args = _arguments()
    subject = load_subject(args.target, args.draft, args.dtype, args.threads)
    target, tokenizer, draft = subject.target, subject.tokenizer, subject.draft
    defaults = Request((), max_new_tokens=args.max_new_tokens)
    requests = pick(read_chats(args.prompts, tokenizer, defaults), args.rows, args.max_prompt_tokens)
    lengths = [len(request.prompt_ids) for request in requests]
    _say(f"{len(requests)} prompts of {min(lengths)} to {max(lengths)} tokens")
    args.traces.mkdir(parents=True, exist_ok=True)
    for name in args.methods:
        if not _path(args, name).exists():
            _say(f"decoding: {name}")
            decode = _watch_loop if name in LOOPS else _decode
            _write(_path(args, name), requests, *decode(name, target, draft, requests, args))
    if args.decode_only:
        return
    traces = {name: read_traces(_path(args, name), tokenizer) for name in args.methods}
    asked = {tuple(request.prompt_ids) for request in requests}
    for name, rows in traces.items():  # before hours of judging
        if {trace.prompt_ids for trace in rows} != asked:
            sys.exit(f"{_path(args, name)} was made from other prompts; name another folder, or delete it")
    distinct = _distinct(traces)
    _say(f"judging {len(distinct)} distinct rows")
    rows = [replace(named[0][1], index=k, id=str(k)) for k, named in enumerate(distinct)]
    verdict = audit_traces(target, rows, tokenizer, num_draft_tokens=args.num_draft_tokens, plain_rows=0)
    judged = {(name, trace.id): row for named, row in zip(distinct, verdict.rows, strict=True) for name, trace in named}
    reference = {trace.id: trace.token_ids for trace in traces["plain-1"]}
    methods = {}
    for name in args.methods:
        methods[name] = {
            **_against([(trace.token_ids, reference[trace.id]) for trace in traces[name]], tokenizer),
            "counts": dict(Counter(judged[name, trace.id].status for trace in traces[name])),
            "classes": dict(Counter(judged[name, trace.id].cls for trace in traces[name])),
            "first_violations": _violations(_path(args, name)),
        }
        _say(_line(name, methods[name]))
    if args.json:
        about = {
            "target": Path(subject.name).name, "draft": args.draft and Path(args.draft).name, "dtype": args.dtype,
            "rows": len(requests), "batch_size": args.batch_size, "max_new_tokens": args.max_new_tokens,
            "num_draft_tokens": args.num_draft_tokens, "numerics": args.numerics,
            "versions": versions(), "machine": machine(), "distinct_rows": len(distinct),
        }  # fmt: skip
        noise = verdict.noise.to_dict() if verdict.noise else None
        print(json.dumps({**about, "noise": noise, "methods": methods, "findings": _findings(judged)}, indent=1))


def _distinct(traces: dict[str, list[Trace]]) -> list[list[tuple[str, Trace]]]:
    """Rows of all methods, those with the same prompt and output together: they are judged once."""
    found: dict[tuple, list[tuple[str, Trace]]] = {}
    for name, rows in traces.items():
        for trace in rows:
            found.setdefault((trace.prompt_ids, trace.token_ids), []).append((name, trace))
    return list(found.values())


def _against(pairs: list[tuple[tuple[int, ...], tuple[int, ...]]], tokenizer: Tokenizer) -> dict[str, Any]:
    """Of (candidate, reference) pairs."""
    return {
        **agreement(pairs).to_dict(),
        "rouge_l": sum(rouge_l(ours, theirs, tokenizer.decode) for ours, theirs in pairs) / len(pairs),
    }


def _findings(judged: dict[tuple[str, str], RowVerdict]) -> list[dict[str, Any]]:
    return [
        {"method": name, "id": row, "class": found.cls, "index": found.finding.index, "margin": found.finding.margin}
        for (name, row), found in judged.items()
        if found.finding is not None
    ]


def _decode(
    name: str, target: LM, draft: LM | None, requests: list[Request], args: argparse.Namespace
) -> tuple[list[tuple[int, ...]], None]:
    """Emitted ids of each row, by the engine."""
    plain = name in ("plain-1", "plain-B")
    config = EngineConfig(
        method="target-only" if plain else name,
        batch_size=1 if name == "plain-1" else args.batch_size,
        num_draft_tokens=args.num_draft_tokens,
        numerics=args.numerics,
        share_prefixes=not plain,
    )
    engine = Engine(target, None if plain else draft or PromptLookup(), config)
    return [output.token_ids for output in engine.generate(requests)], None


def _watch_loop(
    name: str, target: LM, draft: LM | None, requests: list[Request], args: argparse.Namespace
) -> tuple[list[tuple[int, ...]], dict[str, int]]:
    """Emitted ids of each row, by a broken loop; and in how many batches the probe names which invariant first."""
    drafter = draft.model if draft is not None else _noisy(target)
    for model in (target.model, drafter):
        arrange(model, packed=why_not(target.dtype) is None)
    loop = LOOPS[name](
        num_draft_tokens=args.num_draft_tokens, max_new_tokens=args.max_new_tokens, pad_id=0, **DEFECTS[name]
    )
    rows: list[tuple[int, ...]] = []
    named: Counter[str] = Counter()
    for at in range(0, len(requests), args.batch_size):
        prompts = [list(request.prompt_ids) for request in requests[at : at + args.batch_size]]
        with Probe(target.model, prompts, max_new_tokens=args.max_new_tokens) as probe:
            outputs = loop.generate(target.model, drafter, prompts)
        first = probe.report(outputs).first
        named[first.invariant if first else "none"] += 1
        rows += [tuple(output) for output in outputs]
    return rows, dict(named)


def _noisy(target: LM) -> HFModel:
    """A copy that is wrong now and then."""
    model = copy.deepcopy(target.model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                noise = torch.randn(weight.shape, generator=generator)
                weight.add_((noise * NOISE * weight.float().std()).to(weight.dtype))
    return model


def _path(args: argparse.Namespace, name: str) -> Path:
    return args.traces / f"{name}.jsonl"


def _write(path: Path, requests: list[Request], rows: list[tuple[int, ...]], named: dict[str, int] | None) -> None:
    """A trace in vLLM's form; beside it, what the probe named."""
    if named is not None:
        path.with_suffix(".violations.json").write_text(json.dumps(named))
    lines = [
        {
            "request_id": request.request_id, "prompt_token_ids": list(request.prompt_ids), "token_ids": list(row),
            "max_tokens": request.max_new_tokens,
        }
        for request, row in zip(requests, rows, strict=True)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _violations(path: Path) -> dict[str, int] | None:
    beside = path.with_suffix(".violations.json")
    return json.loads(beside.read_text()) if beside.exists() else None


def _line(name: str, found: dict[str, Any]) -> str:
    exact, partial, named = found["exact_match"], found["partial_match"], found["first_violations"]
    low, high = exact["wilson95"]
    return (
        f"{name:9}  exact {exact['hits']} of {exact['n']} ({low:.0%} to {high:.0%})  partial {partial['rate']:.1%}  "
        f"ROUGE-L {found['rouge_l']:.3f}  {found['counts']}  {found['classes']}"
        + (f"  named first: {named}" if named else "")
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts")
    parser.add_argument("--target")
    parser.add_argument("--draft")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--numerics", default="fast", choices=("fast", "invariant"))
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=(*METHODS, "rollback"))
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--max-prompt-tokens", type=int, default=2048)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--num-draft-tokens", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--decode-only", action="store_true")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
