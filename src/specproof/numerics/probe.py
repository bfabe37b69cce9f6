"""The probe: on this machine, in this dtype and the model's own shapes, what do the bits of a result depend on?"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from specproof.kv import LAYOUTS
from specproof.kv.layout import Feed
from specproof.lm import LM
from specproof.numerics.finding import Finding, name_values
from specproof.numerics.observe import observe
from specproof.numerics.rule import SMALL_BLOCK, Numerics
from specproof.numerics.trials import try_attention, try_layer, try_linear, try_rowwise, try_short

RESTS = (64, 128, 192, 384, 448, 512)
LONGEST = 4096  # every key length up to it is tried; beyond it one of each kind of length, at 8192, 16384 and 32768


def probe(lm: LM, attention: str, layout: str, numerics: Numerics, most: int) -> tuple[Finding, ...]:
    """All findings of `trials`."""
    return tuple(trials(lm, attention, layout, numerics, most))


@torch.inference_mode()
def trials(lm: LM, attention: str, layout: str, numerics: Numerics, most: int) -> Iterator[Finding]:
    """Try each distinct operation of the model in all shapes that `numerics` allows, then the model as a whole.

    attention: "sdpa" or "eager". layout: a name from LAYOUTS. most: tokens of the largest forward. Takes a second or a
    few; random numbers are its own, and the number of threads is as before afterwards. The quickest trials come first.
    """
    operations = observe(lm, attention, numerics)
    context = lm.context or LONGEST
    longest = min(LONGEST if numerics.invariant else 1024, context)
    beyond = [top - 512 + rest for top in (8192, 16384, 32768) if top <= context for rest in RESTS]
    for name, (module, tensors) in operations.rowwise.items():
        yield try_rowwise(name, module, tensors, most)
    for number, call in operations.compiled.items():
        yield try_layer(lm, number, *call, numerics, most)
        yield from try_short(lm, number, *call, attention, numerics)
    for shape in operations.attention:
        yield try_attention(shape, attention, numerics, lm.dtype, longest, beyond)
    for shape, product in operations.linear.items():
        yield try_linear(shape, product, lm.dtype, numerics.block or SMALL_BLOCK)
    yield _try_whole(layout, lm, attention, numerics)


@torch.inference_mode()
def _try_whole(name: str, lm: LM, attention: str, numerics: Numerics) -> Finding:
    """Three rows together, prompts in chunks, several tokens a step; against two of them alone, one token a step."""
    reach = 76 if lm.context is None else min(76, lm.context)
    prompts = [[(7 * i + 31 * n + 5) % lm.vocab_size for i in range(min(n, reach - 3))] for n in (2, 21, 73)]
    blocks = [[(11 * i + 17 * n + 3) % lm.vocab_size for i in range(n)] for n in (1, 2, 3)]
    together = _logits(name, lm, attention, numerics, prompts, blocks, [len(p) // 2 for p in prompts], 3)
    differing = []
    for i in (0, 2):
        alone = _logits(name, lm, attention, numerics, [prompts[i]], [blocks[i]], [0], 1)
        if not torch.equal(alone, together.split([1, 2, 3])[i]):
            differing.append(len(prompts[i]))
    tried = "three rows together and alone, prompts in chunks or whole, 1 to 3 tokens a step"
    return Finding(f"whole forward, {name}", tried, name_values("the rest of the batch, prompt of", differing))


def _logits(
    name: str, lm: LM, attention: str, numerics: Numerics,
    prompts: Sequence[list[int]], blocks: Sequence[list[int]], cuts: Sequence[int], width: int,
) -> Tensor:  # fmt: skip
    """(tokens of all blocks, V). cuts: where each prompt is cut in two. width: tokens of a block fed at once."""
    layout = LAYOUTS[name](lm, attention, numerics)
    for i, prompt in enumerate(prompts):
        layout.admit(str(i), len(prompt))
    for part in (0, 1):
        feeds = [
            Feed(str(i), cut * part, prompt[cut:] if part else prompt[:cut])
            for i, (prompt, cut) in enumerate(zip(prompts, cuts, strict=True))
        ]
        if feeds := [feed for feed in feeds if feed.length]:
            layout.forward(feeds)
    found = []
    for at in range(0, max(map(len, blocks)), width):
        parts = [(i, block[at : at + width]) for i, block in enumerate(blocks) if block[at:]]
        found.append(layout.forward([Feed(str(i), len(prompts[i]) + at, part, 0, len(part)) for i, part in parts]))
    return torch.cat(found)
