"""From a drafter's confidence to the chance that its drafts are right, by what became of earlier ones."""

from collections.abc import Iterator, Sequence

from specproof.drafters.drafter import Confidence, NextDraft
from specproof.pace.acceptance import Acceptance
from specproof.step import RowStep

BINS = 10  # of confidence
FIRST = 2  # drafts of a row that are told apart by their place
GUESS = 0.7  # of a draft that nothing is known of


class Chances:
    """Each draft is judged under its source and its place among the drafts, and, if the drafter says how sure it is,
    under its confidence, which then counts: apart for the first drafts of a row, as those behind right ones say more of
    the row than of themselves."""

    def __init__(self) -> None:
        self._acceptance = Acceptance()

    def reach(self, row: str, confidence: Confidence, count: int) -> Iterator[float]:
        """For each of `count` drafts, the chance that it and all before it are right."""
        product = 1.0
        for j in range(count):
            product *= self._acceptance.in_row(row, self._chance(confidence, j))
            yield product

    def next(self, row: str, ahead: NextDraft) -> float:
        """Of the draft that is not made yet, if those before it are right."""
        chance = self._acceptance.chance((ahead.confidence.source, "at", ahead.num_drafts), GUESS)
        return self._acceptance.in_row(row, chance)

    def evidence(self, source: str, at: int) -> float:
        """Drafts judged at this place, older ones for less."""
        return self._acceptance.evidence((source, "at", at))

    def learn(self, step: RowStep, confidence: Confidence) -> None:
        """Drafts up to the first wrong one were judged; those behind it tell nothing."""
        for j in range(min(step.num_right + 1, len(step.drafted))):
            right = j < step.num_right
            chance = self._chance(confidence, j)
            self._acceptance.learn((confidence.source, "at", j), right)
            if j < len(confidence.chances):
                self._acceptance.learn((confidence.source, *_bin(confidence.chances[j], j)), right)
            self._acceptance.learn_row(step.request_id, right, chance)

    def end_step(self, finished: Sequence[str]) -> None:
        self._acceptance.end_step()
        for row in finished:
            self._acceptance.forget_row(row)

    def _chance(self, confidence: Confidence, j: int) -> float:
        if j < len(confidence.chances):
            guess = confidence.chances[j]
            return self._acceptance.chance((confidence.source, *_bin(guess, j)), guess)
        return self._acceptance.chance((confidence.source, "at", j), GUESS)


def _bin(chance: float, at: int) -> tuple[int, int]:
    return min(BINS - 1, int(BINS * chance)), min(at, FIRST)
