"""Anything that proposes tokens."""

from specproof.drafters.cascade import Cascade
from specproof.drafters.drafter import (
    Confidence,
    DeviceDrafts,
    Drafter,
    DraftRow,
    HostDrafts,
    PricedDrafter,
    StatefulDrafter,
)
from specproof.drafters.model import ModelDrafter
from specproof.drafters.prompt_lookup import PromptLookup
from specproof.drafters.scripted import Scripted
from specproof.drafters.suffix import Suffix

__all__ = [
    "Cascade",
    "Confidence",
    "DeviceDrafts",
    "DraftRow",
    "Drafter",
    "HostDrafts",
    "ModelDrafter",
    "PricedDrafter",
    "PromptLookup",
    "Scripted",
    "StatefulDrafter",
    "Suffix",
]
