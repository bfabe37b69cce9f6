"""A candidate beside a reference: exact match, partial match, ROUGE-L, and intervals for rates."""

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

from specproof.audit.finding import Against

Z95 = 1.959963984540054


def wilson(hits: int, trials: int) -> tuple[float, float] | None:
    """The 95 % Wilson interval of a rate; None without trials. Trials are taken as independent."""
    if not trials:
        return None
    rate, z2 = hits / trials, Z95 * Z95
    center = (rate + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z95 * sqrt(rate * (1 - rate) / trials + z2 / (4 * trials * trials)) / (1 + z2 / trials)
    return max(0.0, center - half), min(1.0, center + half)


def rate(hits: int, trials: int) -> dict[str, Any]:
    """A rate with its denominator and interval."""
    interval = wilson(hits, trials)
    value = hits / trials if trials else None
    return {"hits": hits, "n": trials, "rate": value, "wilson95": list(interval) if interval else None}


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first difference, the shorter's length if one ends early, None if equal."""
    if tuple(a) == tuple(b):
        return None
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def compare(
    ours: Sequence[int], theirs: Sequence[int], choices: Sequence[int], same_end: bool,
    decode: Callable[[Sequence[int]], str] | None,
) -> Against:  # fmt: skip
    """ours: the candidate. theirs: the reference. choices: the target's on the candidate's prefixes."""
    first = first_difference(ours, theirs)
    takes = None
    if first is not None and first < min(len(ours), len(theirs)):
        sides = {ours[first]: "candidate", theirs[first]: "reference"}
        takes = sides.get(choices[first], "neither")
    matched = len(theirs) if first is None else first
    return Against(first is None, first, matched, len(theirs), takes, rouge_l(ours, theirs, decode), same_end)


def rouge_l(ours: Sequence[int], theirs: Sequence[int], decode: Callable[[Sequence[int]], str] | None) -> float:
    """F-measure of ROUGE-L; words are ids where there is no text. Two empty outputs score 1."""
    from rouge_score import rouge_scorer  # here, because it takes a second to import

    a, b = (decode(ids) if decode else " ".join(map(str, ids)) for ids in (ours, theirs))
    if a == b:
        return 1.0
    return float(rouge_scorer.RougeScorer(["rougeL"]).score(b, a)["rougeL"].fmeasure)


def summarise(rows: Sequence[Against]) -> dict[str, Any]:
    """Over all rows that have a reference. partial: of tokens; mean_partial: the paper's, over rows."""
    count = len(rows)
    return {
        "exact_match": rate(sum(row.exact for row in rows), count),
        "partial_match": rate(sum(row.matched for row in rows), sum(row.length for row in rows)),
        "mean_partial": sum(row.matched / row.length if row.length else 1.0 for row in rows) / count if count else None,
        "rouge_l": sum(row.rouge_l for row in rows) / count if count else None,
        "same_end": rate(sum(row.same_end for row in rows), count),
        "target_takes": {
            side: sum(row.target_takes == side for row in rows) for side in ("candidate", "reference", "neither")
        },
    }
