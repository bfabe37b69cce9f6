"""How likely a draft is right, given that those before it are: learnt from what became of earlier ones."""

from collections.abc import Hashable
from dataclasses import dataclass

HALF_LIFE = 100  # steps after which evidence counts half: what was given up is tried again some day
PRIOR = 2.0  # drafts that a first guess weighs as much as
ROW_PRIOR = 3.0
ALL_PRIOR = 10.0
ROW_MEMORY = 0.97  # share of the evidence on rows that outlives a step
ROW_FACTORS = (0.5, 1.3)
MOST = 0.98


@dataclass(slots=True)
class _Evidence:
    right: float = 0.0
    judged: float = 0.0
    step: int = 0


@dataclass(slots=True)
class _RowEvidence:
    right: float = 0.0
    expected: float = 0.0


class Acceptance:
    """Chances by key: who drafted, and how sure it was or at which place. Each row has a factor of its own on top.

    It begins with that of all rows together, which is below 1 where drafts are chosen for chances that flatter them.
    """

    def __init__(self) -> None:
        self._keys: dict[Hashable, _Evidence] = {}
        self._rows: dict[str, _RowEvidence] = {}
        self._all = _RowEvidence()
        self._step = 0

    def chance(self, key: Hashable, guess: float) -> float:
        """In any row. guess: what to believe before there is evidence."""
        found = self._now(key)
        return (found.right + PRIOR * guess) / (found.judged + PRIOR)

    def in_row(self, row: str, chance: float) -> float:
        """What a chance comes to in this row."""
        factor = _factor(self._all, ALL_PRIOR, 1.0)
        own = self._rows.get(row)
        return min(MOST, chance * (factor if own is None else _factor(own, ROW_PRIOR, factor)))

    def evidence(self, key: Hashable) -> float:
        """Drafts judged under this key, older ones for less."""
        return self._now(key).judged

    def learn(self, key: Hashable, right: bool) -> None:
        found = self._now(key)
        self._keys[key] = _Evidence(found.right + right, found.judged + 1, self._step)

    def learn_row(self, row: str, right: bool, chance: float) -> None:
        """One draft of this row was judged, which had this chance in any row."""
        for evidence in (self._rows.setdefault(row, _RowEvidence()), self._all):
            evidence.right += right
            evidence.expected += chance

    def end_step(self) -> None:
        self._step += 1
        for evidence in (*self._rows.values(), self._all):
            evidence.right *= ROW_MEMORY
            evidence.expected *= ROW_MEMORY

    def forget_row(self, row: str) -> None:
        self._rows.pop(row, None)

    def _now(self, key: Hashable) -> _Evidence:
        found = self._keys.get(key)
        if found is None:
            return _Evidence(step=self._step)
        keep = 0.5 ** ((self._step - found.step) / HALF_LIFE)
        return _Evidence(found.right * keep, found.judged * keep, self._step)


def _factor(evidence: _RowEvidence, weight: float, before: float) -> float:
    low, high = ROW_FACTORS
    return min(high, max(low, (evidence.right + weight * before) / (evidence.expected + weight)))
