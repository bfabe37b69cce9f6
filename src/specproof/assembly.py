"""From what a user names (a model, a folder, a drafter) to the parts of an engine that fit together."""

import warnings
from pathlib import Path

import torch

from specproof.config import EngineConfig
from specproof.drafters import Cascade, Drafter, ModelDrafter
from specproof.errors import ConfigError
from specproof.kv import LAYOUTS, Slotted
from specproof.lm import LM, HFModel, load_model
from specproof.numerics.choose import choose_numerics
from specproof.support import require_supported
from specproof.tokenizer import Tokenizer, require_same

ModelLike = LM | HFModel | str | Path


def as_lm(model: ModelLike, like: LM | None = None) -> LM:
    """The model, loaded if it is a name or folder: with the dtype and on the device of `like`, if that is given.

    Raises ConfigError for what is no model.
    """
    if isinstance(model, LM):
        return model
    if isinstance(model, str | Path):
        return load_model(model) if like is None else load_model(model, dtype=like.dtype_name, device=str(like.device))
    if not isinstance(model, HFModel):
        raise ConfigError(f"{model!r} is no model; give a Hugging Face model, an LM, a folder or a hub name")
    return LM(model)


def as_drafter(
    drafter: Drafter | ModelLike | None,
    target: LM,
    target_tokenizer: Tokenizer | None,
    draft_tokenizer: Tokenizer | None,
    config: EngineConfig,
) -> Drafter | None:
    """The drafter; a model becomes a ModelDrafter with KV in the layout of the method.

    Raises TokenizerMismatchError where both tokenizers are known and differ, ConfigError for what is no drafter.
    """
    if drafter is None:
        return None
    if hasattr(drafter, "propose"):
        if isinstance(drafter, type):
            raise ConfigError(f"the drafter is the class {drafter.__name__}; give an object of it")
        if hasattr(drafter, "commit") != hasattr(drafter, "release"):
            raise ConfigError(f"{type(drafter).__name__} has one of commit and release; a stateful drafter has both")
        if isinstance(drafter, Cascade) and not isinstance(drafter.model, ModelDrafter):
            model = as_drafter(drafter.model, target, target_tokenizer, draft_tokenizer, config)
            return Cascade(drafter.first, model)
        return drafter  # type: ignore[return-value]
    if isinstance(drafter, str | Path):
        draft_tokenizer = draft_tokenizer or Tokenizer.load(drafter)
    if target_tokenizer is not None and draft_tokenizer is not None:
        require_same(target_tokenizer, draft_tokenizer)
    lm = as_lm(drafter, like=target)  # type: ignore[arg-type]
    require_supported(lm, config.attention)
    if config.draft_head is not None:
        if config.draft_head > lm.vocab_size:
            raise ConfigError(
                f"draft_head is {config.draft_head}, and the draft's head has {lm.vocab_size} ids; leave it out"
            )
        lm = lm.with_head(frequent_ids(lm, draft_tokenizer or target_tokenizer, config.draft_head))
    layout, quick = LAYOUTS[config.parts.layout](lm, config.attention, choose_numerics(lm, config)), None
    if config.draft_bits is not None:
        assert isinstance(layout, Slotted)
        if lm.dtype != torch.bfloat16:
            warnings.warn(
                f"draft_bits: PyTorch's four-bit products are quick in bfloat16 only; in {lm.dtype_name} this draft "
                "takes longer than with its own weights",
                stacklevel=3,
            )
        small = lm.quantized()
        quick = layout.beside(small, choose_numerics(small, config))
    return ModelDrafter(lm, layout, target.vocab_size, config.prefill_chunk, config.shares_prefixes, quick)


def frequent_ids(lm: LM, tokenizer: Tokenizer | None, count: int) -> list[int]:
    """The ids that end a text, and the lowest others up to `count`, rising.

    Vocabularies are learnt by merging what is most frequent first, so ids are in the order of frequency, nearly.
    """
    special = set(lm.eos_ids) | (set() if tokenizer is None else set(tokenizer.special_ids))
    kept = {token for token in special if token < lm.vocab_size}
    for token in range(lm.vocab_size):
        if len(kept) >= count:
            break
        kept.add(token)
    return sorted(kept)
