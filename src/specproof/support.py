"""Is a model decoded exactly? Families that are not tested here are tried before use, and refused if they differ."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specproof.errors import UnsupportedModelError
from specproof.kv import LAYOUTS
from specproof.kv.layout import Feed
from specproof.lm import LM

# Largest difference that is still rounding: root mean square over the vocabulary, in standard deviations of the logits.
# SmolLM2 on a CPU: 3e-6 in float32, 0.008 in float16, 0.09 in bfloat16; a wrong position or a lost token: 0.5 to 1.
_TOLERANCE = {torch.float64: 1e-7, torch.float32: 5e-4, torch.float16: 0.05, torch.bfloat16: 0.2}


def require_supported(lm: LM, attention: str) -> None:
    """Raise UnsupportedModelError unless the model's family is known or passes a trial on a small ragged batch.

    The trial is short: a few dozen tokens, so that windows of up to 64 tokens are crossed. What lies beyond is settled
    by name: our attention refuses a window that the config does not give, a mask or sinks of the model's own.
    """
    if lm.checked:
        return
    refused = f"{lm.family!r} is not a supported family"
    prompts, blocks = _rows(lm)
    try:
        plain = _plain(lm, prompts, blocks)
    except UnsupportedModelError:
        raise
    except Exception as error:  # a foreign model's code may raise anything
        raise UnsupportedModelError(f"{refused}, and its own forward with a KV cache failed: {_said(error)}") from error
    for name in LAYOUTS:
        try:
            ours = _in_layout(name, lm, attention, prompts, blocks)
        except UnsupportedModelError:
            raise
        except Exception as error:
            said = "its attention is code of its own, which cannot be replaced" if lm.own_attention else _said(error)
            raise UnsupportedModelError(f"{refused}, and its forward in the {name} layout failed: {said}") from error
        worst = _difference(ours, plain)
        tolerance = _TOLERANCE.get(lm.dtype, 0.2)
        if not worst <= tolerance:
            raise UnsupportedModelError(
                f"{refused}, and in a ragged batch ({name} layout) its logits differ from those of the row alone by "
                f"{worst:.2g} standard deviations ({tolerance:g} is rounding); it depends on more than the row itself"
            )
    lm.checked = True


def _rows(lm: LM) -> tuple[list[list[int]], list[list[int]]]:
    """Three rows: prompts of very different length, the longest past small windows; then blocks of 1, 3, 5 tokens."""
    longest = max((window for window in lm.windows if window and window <= 64), default=8) + 9
    prompts = [[(7 * i + 31 * n + 5) % lm.vocab_size for i in range(n)] for n in (2, longest // 2, longest)]
    blocks = [[(11 * i + 17 * n + 3) % lm.vocab_size for i in range(n)] for n in (1, 3, 5)]
    return prompts, blocks


@torch.inference_mode()
def _plain(lm: LM, prompts: Sequence[list[int]], blocks: Sequence[list[int]]) -> Tensor:
    """The model's own way: each row alone, its prompt at once, then one token at a time. -> (tokens of blocks, V)"""
    logits = []
    for prompt, block in zip(prompts, blocks, strict=True):
        _, state = lm.plain_forward(torch.tensor([prompt], device=lm.device))
        for token in block:
            out, state = lm.plain_forward(torch.tensor([[token]], device=lm.device), state)
            logits.append(out[0, -1])
    return torch.stack(logits)


@torch.inference_mode()
def _in_layout(name: str, lm: LM, attention: str, prompts: Sequence[list[int]], blocks: Sequence[list[int]]) -> Tensor:
    """The engine's way: all rows together, each prompt in two chunks, then the blocks as one ragged step."""
    layout = LAYOUTS[name](lm, attention)
    halves = [(len(prompt) + 1) // 2 for prompt in prompts]
    for i, prompt in enumerate(prompts):
        layout.admit(str(i), len(prompt))
    layout.forward([Feed(str(i), 0, prompts[i][:half]) for i, half in enumerate(halves)])
    layout.forward([Feed(str(i), half, prompts[i][half:]) for i, half in enumerate(halves)])
    return layout.forward([Feed(str(i), len(prompts[i]), block, 0, len(block)) for i, block in enumerate(blocks)])


def _difference(ours: Tensor, plain: Tensor) -> float:
    """The worst position's root mean square difference over the vocabulary, in standard deviations of its logits."""
    ours, plain = ours.double(), plain.double()
    return float(((ours - plain).square().mean(-1).sqrt() / plain.std(-1)).max())


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
