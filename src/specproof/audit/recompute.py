"""Level full: what is in the cache against what it would be, and each row against itself alone."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specproof.audit.truth import TrueRow
from specproof.config import EngineConfig
from specproof.engine import Engine
from specproof.kv.cells import Cells
from specproof.kv.layout import Feed, Layout
from specproof.kv.slotted import Slotted
from specproof.lm import LM
from specproof.request import Output, Request

Report = Callable[[str, str, object, object, str], None]

# Largest difference of a key or value that is rounding, as a share of the layer's largest; measured on tiny models and
# SmolLM2, with a wide margin.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}


@torch.inference_mode()
def check_kv(
    lm: LM, layout: Layout, feeds: Sequence[Feed], rows: dict[str, TrueRow], name: str, report: Report
) -> None:
    """Compute each fed row's KV again, alone and from nothing, and compare all of its cells."""
    for feed in feeds:
        tokens = rows[feed.row].known(name)[: feed.end]
        found = layout.locate(feed.row, len(tokens))
        if found is None:
            continue  # waits in a pool; compared when it is computed next
        fresh = Slotted(lm, "sdpa")
        fresh.admit(feed.row, len(tokens))
        fresh.forward([Feed(feed.row, 0, tokens)])
        again = fresh.locate(feed.row, len(tokens))
        worst = max(_difference(a, b) for a, b in zip(_tensors(*found), _tensors(*again), strict=True))
        if not worst <= TOLERANCE.get(lm.dtype, 1e-1):
            invariant = "kv-matches" if name == "target" else "draft-in-sync"
            report(invariant, feed.row, "equal", f"{worst:.2g}", "KV recomputed from the row's tokens")


def check_rows_alone(engine: Engine, requests: Sequence[Request], outputs: Sequence[Output], report: Report) -> None:
    """Decode each row with no neighbours and no drafter; a difference must be a near-tie of the target's own logits."""
    alone = Engine(
        engine.target, None, EngineConfig("target-only", batch_size=1, share_prefixes=False), engine.tokenizer
    )
    tolerance = TOLERANCE.get(engine.target.dtype, 1e-1)
    for request, output in zip(requests, outputs, strict=True):
        (single,) = alone.generate([request])
        at = next((i for i, (a, b) in enumerate(zip(output.token_ids, single.token_ids, strict=False)) if a != b), None)
        if at is None:
            if output.token_ids != single.token_ids:
                report(
                    "row-isolated",
                    output.request_id,
                    len(single.token_ids),
                    len(output.token_ids),
                    "length of the row alone",
                )
            continue
        ours, theirs = output.token_ids[at], single.token_ids[at]
        prefix = torch.tensor([[*request.prompt_ids, *single.token_ids[:at]]], device=engine.target.device)
        logits = engine.target.plain_forward(prefix)[0][0, -1].double()
        margin = float((logits[theirs] - logits[ours]) / logits.std())
        if abs(margin) > 10 * tolerance:
            report(
                "row-isolated",
                output.request_id,
                theirs,
                ours,
                f"token {at}, with a margin of {margin:.2g} sd of the logits",
            )


def _tensors(cells: Cells, index: Tensor) -> list[Tensor]:
    """Keys and values of all layers at these cells, each (H, length, D)."""
    tensors = [memory[layer] for layer in sorted(cells.keys) for memory in (cells.keys, cells.values)]
    return [tensor.index_select(1, index.to(tensor.device)) for tensor in tensors]


def _difference(ours: Tensor, again: Tensor) -> float:
    return float((ours.double() - again.double()).abs().max() / again.double().abs().max())
