"""What invariant numerics cost, and what compiling saves: the same forwards computed in several ways.

    python benchmarks/numerics.py [--target FOLDER] [--dtype bfloat16] [--threads 2] [--layout slotted]
        [--compile] [--json]

Engines' layouts over copies of one model: `invariant` (the rule's shapes), `fast` (packed weights, ordinary shapes) and
`stock` (weights as they came, ordinary shapes); with `--compile` also the first two with their layers compiled. Timed
are forwards: decode with 1 token a row and with K + 1 = 6, at 1 and 8 rows of 100 to 240 cached tokens, and prefill of
one chunk of 256 tokens. The variants take turns within each repeat; a ratio is taken within a repeat, and medians are
over `--repeats` of them, with the range beside.
"""

import argparse
import copy
import json
import statistics
from dataclasses import asdict, dataclass
from time import perf_counter

import torch

from specproof import EngineConfig
from specproof.embedded import default_model_folder
from specproof.jobs.provenance import machine, versions
from specproof.kv import LAYOUTS
from specproof.kv.layout import Feed, Layout
from specproof.lm import LM, hide_loading_bars, load_model
from specproof.numerics.choose import choose_numerics

PLAIN = {
    "invariant": EngineConfig(numerics="invariant"),
    "fast": EngineConfig(numerics="fast"),
    "stock": EngineConfig(numerics="fast", pack=False),
}
COMPILED = {
    "fast compiled": EngineConfig(numerics="fast", compile=True),
    "invariant compiled": EngineConfig(numerics="invariant", compile=True),
}
CHUNK = 256
RATIOS = (
    ("invariant", "fast"),
    ("invariant", "stock"),
    ("fast", "stock"),
    ("fast compiled", "fast"),
    ("invariant compiled", "invariant"),
)


@dataclass(frozen=True)
class Row:
    """One kind of forward. milliseconds: median by variant. ratios: of times, median, least and most."""

    phase: str
    rows: int
    tokens_per_row: int
    milliseconds: dict[str, float]
    ratios: dict[str, tuple[float, float, float]]


def fill(layout: Layout, vocab_size: int, lengths: list[int]) -> None:
    """A row of each length."""
    for i, length in enumerate(lengths):
        layout.admit(str(i), length)
        layout.forward([Feed(str(i), 0, [(7 * j + 31 * i) % vocab_size for j in range(length)])])


def seconds(layout: Layout, feeds: list[Feed]) -> float:
    start = perf_counter()
    layout.forward(feeds)
    return perf_counter() - start


def measure(phase: str, layouts: dict[str, Layout], feeds: list[Feed], repeats: int) -> Row:
    """The same feeds again and again: KV at and after a feed's start is replaced."""
    times: dict[str, list[float]] = {name: [] for name in layouts}
    for repeat in range(repeats + 1):
        for name, layout in layouts.items():
            spent = seconds(layout, feeds)
            if repeat:  # the first is a warm-up
                times[name].append(spent)
    ratios = {}
    for one, other in (pair for pair in RATIOS if pair[0] in times):
        found = [a / b for a, b in zip(times[one], times[other], strict=True)]
        ratios[f"{one} / {other}"] = (statistics.median(found), min(found), max(found))
    medians = {name: 1e3 * statistics.median(found) for name, found in times.items()}
    return Row(phase, len(feeds), feeds[0].length, medians, ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="folder or hub name; default: the embedded SmolLM2-135M-Instruct")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layout", default="slotted", choices=tuple(LAYOUTS))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--compile", action="store_true", help="time compiled layers too")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    variants = {**PLAIN, **(COMPILED if args.compile else {})}
    torch.set_num_threads(args.threads)
    hide_loading_bars()

    lm = load_model(args.target or default_model_folder(), dtype=args.dtype)
    lms = {name: LM(copy.deepcopy(lm.model)) for name in variants}  # type: ignore[arg-type]
    del lm
    chosen = {name: choose_numerics(lms[name], config) for name, config in variants.items()}
    rows = []
    for count, widths in ((1, (1, 6)), (8, (1, 6)), (1, (CHUNK,))):
        layouts = {name: LAYOUTS[args.layout](lms[name], "sdpa", chosen[name]) for name in variants}
        lengths = [100 + 20 * i for i in range(count)]
        for name, layout in layouts.items():
            fill(layout, lms[name].vocab_size, lengths)
        for width in widths:
            phase, ends = ("prefill", [0]) if width == CHUNK else ("decode", lengths)
            feeds = [
                Feed(str(i), end, [(11 * j + i) % 1000 for j in range(width)], 0, 0 if phase == "prefill" else width)
                for i, end in enumerate(ends)
            ]
            rows.append(measure(phase, layouts, feeds, args.repeats))
            if not args.json:
                row = rows[-1]
                times = "  ".join(f"{name} {spent:8.2f} ms" for name, spent in row.milliseconds.items())
                ratios = "  ".join(
                    f"{name} {m:.2f} ({low:.2f} to {high:.2f})" for name, (m, low, high) in row.ratios.items()
                )
                print(f"{row.phase:8} {row.rows} x {row.tokens_per_row:3}  {times}   {ratios}", flush=True)
    if args.json:
        about = {
            "target": args.target or "embedded",
            "dtype": args.dtype,
            "layout": args.layout,
            "repeats": args.repeats,
        }
        print(json.dumps({**about, **versions(), **machine(), "rows": [asdict(row) for row in rows]}, indent=2))


if __name__ == "__main__":
    main()
