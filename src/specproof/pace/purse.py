"""What trying drafts may cost: one part in two hundred of the time, and what drafts saved before."""

SHARE = 0.005  # of all time
FIRST = 0.02  # of the steps that are foreseen, to begin with: for one row; for R rows, where drafts gain less, an R-th
START = 2.0  # steps, at most, to begin with
MOST = 5.0
ENOUGH = 0.3  # steps: once empty, it opens again with so much. Asking costs too, and would spend less at once
LOAN = 0.03  # of the steps that are foreseen: lent at most, for one row; for R rows an R-th
CREDIT = 12.0  # steps lent at most
KEPT = 0.97  # share of a loan that may stand for another step


class Purse:
    """A balance in steps without drafts. At zero it closes: no drafter is asked until the time share has filled it.

    Estimates may be wrong; this bounds what that costs: beyond what it opens with and its credit, all drafting together
    loses at most SHARE of the time (and MOST of what it won earlier). What a model must read before it can draft is
    lent, beyond what the balance has: it must come back in the steps that follow, some thirty of them.
    """

    def __init__(self) -> None:
        self.balance = self.credit = self._opening = self._lent = 0.0
        self._is_open = False

    def foresee(self, steps: float, rows: int) -> None:
        """So many steps are left, at most, to the rows: what may be risked for them."""
        opening = max(self._opening, min(START, FIRST * steps / rows))
        self.balance += opening - self._opening
        self._opening = opening
        self.credit = min(CREDIT, LOAN * steps / rows)

    def pass_time(self, steps: float) -> None:
        """Time went by that `steps` steps without drafts would have taken."""
        self.balance = min(MOST, self.balance + SHARE * steps)
        self._lent *= KEPT

    def book(self, saved: float) -> None:
        """Drafting saved this many steps, or lost them if negative."""
        self.balance = min(MOST, self.balance + saved)

    def has(self, steps: float = 0.0) -> bool:
        return self.balance + self._lent > steps

    def is_open(self) -> bool:
        """Whether to ask the drafter at all."""
        self._is_open = self.has(0.0 if self._is_open else min(ENOUGH, self._opening / 2))
        return self._is_open

    def lend(self, steps: float) -> bool:
        """Whether this much more may be spent on reading: from the balance, or owed for a while. It is booked like all
        else when it is spent."""
        if self._lent + steps > self.credit + max(0.0, self.balance):
            return False
        self._lent += steps
        return True
