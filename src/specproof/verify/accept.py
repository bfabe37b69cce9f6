"""How many drafts are right."""

from collections.abc import Sequence


def count_accepted(drafts: Sequence[int], choices: Sequence[int]) -> int:
    """Length of the longest prefix of the K drafts that equals the target's choices.

    choices: the target's K + 1 choices; `choices[accepted]` is its own next token: recovered at the first rejection,
    bonus after full acceptance (the paper's Algorithm 3, with the K+1-th logit kept).
    """
    for accepted, (draft, choice) in enumerate(zip(drafts, choices, strict=False)):
        if draft != choice:
            return accepted
    return len(drafts)


def batch_min(accepted: Sequence[int]) -> list[int]:
    """The rollback rule: every row is cut to the smallest acceptance of the batch."""
    return [min(accepted)] * len(accepted) if accepted else []


COMMITS = {"per-row": list, "batch-min": batch_min}
