"""Which drafts are worth their price: pure, and exact."""

from collections.abc import Callable, Sequence


def plan_drafts(
    gains: Sequence[Sequence[float]], seconds: Callable[[int], float], base: float, margin: float = 1.0
) -> list[int]:
    """How many drafts of each row to take, so that the step brings most per second.

    gains: for each row, what its first, its second ... draft should bring: the chance that it and all before it are
    right, times what a token of the row is worth. It does not rise along a row. seconds(n): what the step takes with n
    drafts in all. base: what the step brings without any. With n drafts the best are the n that bring most, and these
    are a first part of each row: so one look at each n finds the optimum, whatever the shape of `seconds`. Drafts are
    taken only if the rate then exceeds that without any by the factor `margin`.
    """
    dearest = sorted(((gain, row) for row, of_row in enumerate(gains) for gain in of_row), reverse=True)
    best, best_rate, gained = 0, margin * base / seconds(0), 0.0
    for n, (gain, _) in enumerate(dearest, start=1):
        gained += gain
        rate = (base + gained) / seconds(n)
        if rate > best_rate:
            best, best_rate = n, rate
    lengths = [0] * len(gains)
    for _, row in dearest[:best]:
        lengths[row] += 1
    return lengths
