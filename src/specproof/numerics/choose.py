"""Which numerics a model gets on this machine."""

from specproof.config import EngineConfig
from specproof.lm import LM
from specproof.numerics.packed import why_not
from specproof.numerics.rule import Numerics


def choose_numerics(lm: LM, config: EngineConfig) -> Numerics:
    why = why_not(lm.dtype)
    if why or not config.pack:
        return Numerics(False, False, why or "packing is off")
    return Numerics(config.numerics != "fast", True, "packed weights; shapes not probed")
