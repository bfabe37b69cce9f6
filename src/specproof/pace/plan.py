"""Which drafts are worth their price: pure, and exact."""

from collections.abc import Callable, Sequence


def plan_drafts(
    reach: Sequence[Sequence[float]], seconds: Callable[[int], float], base: float, margin: float = 1.0
) -> list[int]:
    """How many drafts of each row to take, so that the step gives most tokens per second.

    reach: for each row, the chance that its drafts up to the first, the second ... are all right: it does not rise.
    seconds(n): what the step takes with n drafts in all. base: tokens that come without any. With n drafts the best are
    the n likeliest, and as chances fall along a row, these are a first part of each row: so one look at each n finds
    the optimum, whatever the shape of `seconds`. Drafts are taken only if the rate then exceeds that without any by the
    factor `margin`.
    """
    likeliest = sorted(((chance, row) for row, chances in enumerate(reach) for chance in chances), reverse=True)
    best, best_rate, gain = 0, margin * base / seconds(0), 0.0
    for n, (chance, _) in enumerate(likeliest, start=1):
        gain += chance
        rate = (base + gain) / seconds(n)
        if rate > best_rate:
            best, best_rate = n, rate
    lengths = [0] * len(reach)
    for _, row in likeliest[:best]:
        lengths[row] += 1
    return lengths
