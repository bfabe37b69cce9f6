"""What kind of fault a large margin is: from the row's tokens, and from what the target says of it once repaired."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from specproof.audit.diagnose import is_large
from specproof.audit.noise import ScoredRow
from specproof.audit.score import Score, score_row
from specproof.audit.structure import find_loop
from specproof.lm import LM

FOREIGN_TOKENS, LEAST_FOREIGN = 16, 6  # tokens that must follow from another row; fewer than the second prove nothing
FOREIGN_ROWS = 64  # other rows that are tried
CLOSE = 0.25  # of the row's median top-2 gap: lost synchronisation does not choose that closely every time


@dataclass(frozen=True, slots=True)
class Signature:
    """name: a key of diagnose.SIGNATURES. detail: what was seen.

    row: the other row, by its place among the rows. prefix: its prompt and the output behind it, from which the target
    goes on as the row does; so many tokens of output as the row has before its divergence.
    """

    name: str
    detail: str
    row: int | None = None
    prefix: tuple[int, ...] | None = None


def find_signature(
    lm: LM, rows: Sequence[ScoredRow], me: int, index: int, noise: float, end_ids: frozenset[int],
    symbols: dict[int, str],
) -> Signature:  # fmt: skip
    """For row `me`, whose first large margin is at output index `index`. symbols: pad, unk and bos ids, named."""
    row = rows[me]
    token, choice = row.score.tokens[index], row.score.choices[index]
    foreign = _find_foreign(lm, rows, me, index, noise)
    if foreign is not None:
        other, prefix = foreign
        return Signature("foreign", f"tokens {index} on follow from row {other}'s prompt and output", other, prefix)
    if (token in end_ids) != (choice in end_ids):
        return Signature("stop", "the row stops early" if token in end_ids else "the row does not stop")
    if token in symbols:
        return Signature("symbol", f"the {symbols[token]} id {token}")
    if _is_close(row.score, noise):
        return Signature(
            "close", f"{len(large_indices(row.score, noise))} margins, all under {CLOSE} of the median gap"
        )
    tokens = row.score.tokens
    if index == len(tokens) - 1:
        return Signature("last", "it is the row's last token")
    for name, repaired in (
        ("token-changed", (*tokens[:index], choice, *tokens[index + 1 :])),
        ("token-missing", (*tokens[:index], choice, *tokens[index:])),
        ("token-extra", (*tokens[:index], *tokens[index + 1 :])),
    ):
        score = score_row(lm, row.ids[: row.prompt_len], repaired)
        if not large_indices(score, noise, index):
            return Signature(name, f"{len(repaired) - index} tokens from {index} on agree once repaired")
    large = large_indices(row.score, noise, index)
    if len(large) == 1:
        return Signature("unchecked", f"{len(tokens) - index - 1} tokens after it agree")
    loop = find_loop(tokens)
    if loop is not None:
        return Signature("loop", f"{loop[1]} times {loop[0]} tokens at its end; {len(large)} large margins")
    decay = "from the first token" if index == 0 else f"after {index} right tokens"
    name = "many" if len(tokens) - index >= LEAST_FOREIGN else "few"
    return Signature(name, f"{len(large)} of {len(tokens) - index} tokens from {index} on; {decay}")


def large_indices(score: Score, noise: float, start: int = 0) -> tuple[int, ...]:
    """Output indices from `start` on whose margin is out of reach of rounding."""
    return tuple(i for i in score.differing if i >= start and is_large(score.margins[i], noise))


def _is_close(score: Score, noise: float) -> bool:
    """Whether all that is out of reach of rounding is so by little."""
    bound = CLOSE * median(score.gaps)
    return all(score.margins[i] <= bound for i in large_indices(score, noise))


def _find_foreign(
    lm: LM, rows: Sequence[ScoredRow], me: int, index: int, noise: float
) -> tuple[int, tuple[int, ...]] | None:
    """The row from whose prompt, with `index` tokens of its own or of row `me`, the target goes on as row `me` does.

    And that prompt with those tokens.
    """
    continuation = rows[me].score.tokens[index : index + FOREIGN_TOKENS]
    if len(continuation) < LEAST_FOREIGN:
        return None
    others = [k for k in range(len(rows)) if k != me]
    # Swapped rows are both wrong: those that are not the target's own are tried first.
    others.sort(key=lambda k: not rows[k].score.differing)
    for k in others[:FOREIGN_ROWS]:
        other = rows[k]
        prompt = other.ids[: other.prompt_len]
        if prompt == rows[me].ids[: rows[me].prompt_len]:
            continue
        # Swapped from here on, or from the start.
        starts = dict.fromkeys((other.score.tokens[:index], rows[me].score.tokens[:index]))
        for prefix in ((*prompt, *start) for start in starts if len(start) == index):
            score = score_row(lm, prefix, continuation)
            if not large_indices(score, noise):
                return k, prefix
    return None
