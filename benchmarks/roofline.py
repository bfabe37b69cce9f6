"""The floor of a decode step on this machine, and the share of it that is reached, by batch and tokens per row.

    python benchmarks/roofline.py [--target FOLDER] [--dtype bfloat16] [--threads 2] [--json]

A step of R rows with w tokens each must at least read every weight that it uses and the rows' KV once, and do 2
operations per weight and token: floor = max(bytes / bandwidth, operations / product rate). bandwidth: sums of a float32
array of 1 GiB, bytes per second. product rate: a packed linear layer of 2048 x 2048 on 64 rows (the most rows of one
product), operations per second. Attention's operations are left out (under 1 % at these lengths), as is what a kernel
reads twice. share = floor / median seconds of the forward over `--repeats`, one forward of each shape in turn.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import nn

from specproof import EngineConfig
from specproof.bench.clock import now
from specproof.embedded import default_model_folder
from specproof.jobs.provenance import machine, versions
from specproof.kv import LAYOUTS
from specproof.kv.layout import Feed
from specproof.lm import LM, hide_loading_bars, load_model
from specproof.numerics.choose import choose_numerics
from specproof.numerics.packed import arrange

CACHED = 200  # tokens of each row


@dataclass(frozen=True)
class Row:
    """One shape. Milliseconds; bound: what the floor is made of."""

    rows: int
    tokens_per_row: int
    floor: float
    bound: str
    measured: float
    share: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--numerics", default="fast", choices=("fast", "invariant"))
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 4, 6])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    hide_loading_bars()
    lm = load_model(args.target or default_model_folder(), dtype=args.dtype)
    bandwidth, rate = read_bandwidth(), product_rate(lm.dtype)
    layout = LAYOUTS["slotted"](lm, "sdpa", choose_numerics(lm, EngineConfig(numerics=args.numerics)))
    for k in range(max(args.batch_sizes)):
        layout.admit(str(k), CACHED)
        layout.forward([Feed(str(k), 0, [(7 * i + k) % lm.vocab_size for i in range(CACHED)])])
    shapes = [(rows, width) for rows in args.batch_sizes for width in args.widths]
    seconds = {shape: [] for shape in shapes}
    for _ in range(args.repeats):
        for rows, width in shapes:
            feeds = [Feed(str(k), CACHED, [5] * width, 0, width) for k in range(rows)]
            seconds[rows, width].append(timed(lambda feeds=feeds: layout.forward(feeds)))
    weights = weight_bytes(lm)
    kv = 2 * CACHED * sum(layer_width(lm)) * lm.dtype.itemsize
    found = []
    for rows, width in shapes:
        reading = (weights + rows * kv) / bandwidth
        computing = 2 * (weights / lm.dtype.itemsize) * rows * width / rate
        measured = statistics.median(seconds[rows, width])
        floor, bound = max((reading, "reading"), (computing, "products"))
        found.append(Row(rows, width, 1e3 * floor, bound, 1e3 * measured, floor / measured))
    if args.json:
        about = {"dtype": args.dtype, "numerics": args.numerics, "repeats": args.repeats, "weight_bytes": weights}
        speed = {"bandwidth": bandwidth, "product_rate": rate}
        rows = [asdict(row) for row in found]
        print(json.dumps({**about, **speed, "versions": versions(), "machine": machine(), "rows": rows}, indent=1))
        return
    print(f"bandwidth {bandwidth / 1e9:.1f} GB/s, products {rate / 1e9:.0f} Gop/s, weights {weights / 1e6:.0f} MB")
    for row in found:
        print(
            f"B {row.rows:3}  {row.tokens_per_row} tokens a row  floor {row.floor:7.1f} ms ({row.bound})  "
            f"measured {row.measured:7.1f} ms  share {row.share:.0%}"
        )


def read_bandwidth() -> float:
    """Bytes per second: the best of some sums over 1 GiB."""
    data = torch.ones(2**28)
    return data.nbytes / min(timed(data.sum) for _ in range(5))


@torch.inference_mode()
def product_rate(dtype: torch.dtype) -> float:
    """Operations per second: the best of some products of a packed 2048 x 2048 layer with 64 rows."""
    model = nn.Sequential(nn.Linear(2048, 2048, bias=False, dtype=dtype))
    arrange(model, packed=True)
    states = torch.randn(64, 2048, dtype=dtype)
    best = min(timed(lambda: [model(states) for _ in range(20)]) for _ in range(5))
    return 20 * 2 * 64 * 2048 * 2048 / best


def weight_bytes(lm: LM) -> int:
    """Of all linear layers, the head among them: what a step reads."""
    lm.unpack()
    return sum(module.weight.nbytes for module in lm.model.modules() if isinstance(module, nn.Linear))


def layer_width(lm: LM) -> list[int]:
    """Numbers of a token's keys in each layer."""
    config = lm.model.config.get_text_config(decoder=True)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return [config.num_key_value_heads * size] * config.num_hidden_layers


def timed(work: Callable[[], object]) -> float:
    start = now()
    work()
    return now() - start


if __name__ == "__main__":
    main()
