"""Batch-speculation loops that get it wrong, each defect a switch: subjects for the auditor, not for use."""

from specproof.baselines.bsp import Bsp
from specproof.baselines.dsd import Dsd
from specproof.baselines.masked_holes import MaskedHoles

__all__ = ["Bsp", "Dsd", "MaskedHoles"]
