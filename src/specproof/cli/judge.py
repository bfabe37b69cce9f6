"""The target as the commands of `audit` name it: checked and with its tokenizer at once, loaded when it must judge."""

from dataclasses import dataclass

import torch

from specproof.cli.say import say
from specproof.embedded import default_model_folder
from specproof.lm import LM, check_loadable, hide_loading_bars, load_model
from specproof.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class NamedTarget:
    """name: folder or hub name; the rest as for load_model."""

    name: str
    tokenizer: Tokenizer
    dtype: str
    device: str
    trust_remote_code: bool

    def load(self) -> LM:
        return load_model(self.name, dtype=self.dtype, device=self.device, trust_remote_code=self.trust_remote_code)


def find_target(
    name: str | None, *, dtype: str, device: str, threads: int | None, trust_remote_code: bool
) -> NamedTarget:
    """name None: the embedded model. threads: of PyTorch from here on; None: as they are.

    Raises ConfigError or UnsupportedModelError for what cannot be loaded, as far as that can be told without weights.
    """
    hide_loading_bars()
    if threads is not None:
        torch.set_num_threads(threads)
    name = name or str(default_model_folder(say))
    check_loadable(name, dtype, device)
    tokenizer = Tokenizer.load(name, trust_remote_code=trust_remote_code)
    return NamedTarget(name, tokenizer, dtype, device, trust_remote_code)
