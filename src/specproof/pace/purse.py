"""What trying drafts may cost: one part in two hundred of the time, and what drafts saved before."""

SHARE = 0.005  # of all time
START = 3.0  # steps
MOST = 5.0


class Purse:
    """A balance in steps without drafts. At zero nothing is drafted until the time share has filled it again.

    Estimates may be wrong; this bounds what that costs: beyond START, all drafting together loses at most SHARE of the
    time (and MOST of what it won earlier).
    """

    def __init__(self) -> None:
        self.balance = START

    def pass_time(self, steps: float) -> None:
        """Time went by that `steps` steps without drafts would have taken."""
        self.balance = min(MOST, self.balance + SHARE * steps)

    def book(self, saved: float) -> None:
        """Drafting saved this many steps, or lost them if negative."""
        self.balance = min(MOST, self.balance + saved)

    def has(self, steps: float = 0.0) -> bool:
        return self.balance > steps
