"""KV memory: where each row's keys and values lie, and how a step's tokens reach them."""

from specproof.kv.layout import Layout
from specproof.kv.left_padded import LeftPadded
from specproof.kv.slotted import Slotted

LAYOUTS: dict[str, type[Layout]] = {"slotted": Slotted, "left-padded": LeftPadded}

__all__ = ["LAYOUTS", "Layout", "LeftPadded", "Slotted"]
