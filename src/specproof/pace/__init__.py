"""How many drafts a step asks for and verifies. It changes what a step costs, never what the rows are."""

from specproof.pace.adaptive import Adaptive
from specproof.pace.outlook import Outlook
from specproof.pace.pace import Fixed, Pace

__all__ = ["Adaptive", "Fixed", "Outlook", "Pace"]
