"""Anything that proposes tokens."""

from specproof.drafters.drafter import DeviceDrafts, Drafter, DraftRow, StatefulDrafter
from specproof.drafters.model import ModelDrafter
from specproof.drafters.prompt_lookup import PromptLookup
from specproof.drafters.scripted import Scripted

__all__ = ["DeviceDrafts", "DraftRow", "Drafter", "ModelDrafter", "PromptLookup", "Scripted", "StatefulDrafter"]
