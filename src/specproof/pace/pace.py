"""What a pace is, and the simplest one: always K."""

from typing import Protocol

from specproof.drafters.drafter import GoOn
from specproof.drafters.proposal import Proposal
from specproof.pace.outlook import Outlook
from specproof.step import StepRecord


class Pace(Protocol):
    """Asked in every step before anything is drafted, and again before it is verified; an observer of what came of it.

    go_on: what a drafter that drafts token by token asks before each round; None if it need not ask.
    """

    go_on: GoOn | None

    def asks(self, outlook: Outlook) -> bool:
        """Whether this step drafts at all."""
        ...

    def cut(self, proposal: Proposal) -> Proposal:
        """The part of the proposal that is to be verified."""
        ...

    def __call__(self, record: StepRecord) -> None:
        """What the step gave, and took."""
        ...


class Fixed:
    """As many drafts as the drafter finds, up to K, in every step."""

    go_on = None

    def asks(self, outlook: Outlook) -> bool:
        return True

    def cut(self, proposal: Proposal) -> Proposal:
        return proposal

    def __call__(self, record: StepRecord) -> None:
        pass
