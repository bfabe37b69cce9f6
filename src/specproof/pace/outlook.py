"""What is left to do, as far as it can be known."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outlook:
    """As a step begins. decoding: of each row that decodes in it, the most tokens that it may still emit.

    later: other rows that have not ended: they wait, or their prompts are still read. reading: tokens of prompts that
    are read in this step.
    """

    decoding: Mapping[str, int]
    later: int = 0
    reading: int = 0

    @property
    def steps(self) -> float:
        """Most steps without drafts from now on, if the others are as long as these."""
        return max(self.decoding.values()) * (1 + self.later / len(self.decoding))
