"""Is a model decoded exactly? Families that are not tested here are tried before use, and refused if they differ."""

import torch

from specproof.errors import UnsupportedModelError
from specproof.kv.layout import Feed
from specproof.kv.slotted import Slotted
from specproof.lm import LM

# Largest difference that is still rounding, in standard deviations of the logits.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-2, torch.bfloat16: 0.3, torch.float16: 0.1}


def require_supported(lm: LM, attention: str) -> None:
    """Raise UnsupportedModelError unless the model's family is known or passes a trial on a small ragged batch."""
    if lm.checked:
        return
    try:
        worst = _trial(lm, attention)
    except (TypeError, ValueError, RuntimeError, AttributeError, LookupError, NotImplementedError) as error:
        raise UnsupportedModelError(
            f"{lm.family!r} is not a supported family, and the trial of its forward in our KV layout failed: {error}"
        ) from error
    tolerance = _TOLERANCE.get(lm.dtype, 0.3)
    if not worst <= tolerance:
        raise UnsupportedModelError(
            f"{lm.family!r} is not a supported family, and in a ragged batch its logits differ from its plain forward by "
            f"{worst:.2g} standard deviations ({tolerance:g} is rounding); it derives something from the batch's shape"
        )
    lm.checked = True


@torch.inference_mode()
def _trial(lm: LM, attention: str) -> float:
    """Largest difference of logits, plain forward against ours: prompts in chunks, then ragged blocks of 1, 3 and 5."""
    longest = max((window for window in lm.windows if window and window <= 64), default=8) + 9
    prompts = {"a": 2, "b": longest // 2, "c": longest}  # tokens before the block, past small windows
    blocks = {"a": 1, "b": 3, "c": 5}
    ids = {row: [(7 * i + 31 * n + 5) % lm.vocab_size for i in range(n + blocks[row])] for row, n in prompts.items()}
    layout = Slotted(lm, attention)
    for row, n in prompts.items():
        layout.admit(row, n)
    chunks = {row: (n + 1) // 2 for row, n in prompts.items()}
    layout.forward([Feed(row, 0, ids[row][: chunks[row]]) for row in prompts])
    layout.forward([Feed(row, chunks[row], ids[row][chunks[row] : n]) for row, n in prompts.items()])
    ours = layout.forward([Feed(row, n, ids[row][n:], 0, blocks[row]) for row, n in prompts.items()])
    plain = torch.cat(
        [lm.plain_forward(torch.tensor([ids[row]], device=lm.device))[0][0, -blocks[row] :] for row in prompts]
    )
    return float((ours.double() - plain.double()).abs().max() / plain.double().std())
