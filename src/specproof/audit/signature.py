"""What kind of fault a large margin is: from the row's tokens, and from what the target says of it once repaired."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median

from specproof.audit.diagnose import is_large
from specproof.audit.noise import ScoredRow
from specproof.audit.score import Score, score_row
from specproof.audit.structure import find_loop
from specproof.lm import LM

FOREIGN_TOKENS, LEAST_FOREIGN = 16, 6  # tokens that must follow from another row; fewer than the second prove nothing
FOREIGN_TRIES = 6  # prefixes of other rows that are tried, at most
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

    And that prompt with those tokens. None also where the own output explains the rest without any prompt.
    """
    own = rows[me].score.tokens[:index]
    continuation = rows[me].score.tokens[index : index + FOREIGN_TOKENS]
    if len(continuation) < LEAST_FOREIGN:
        return None
    for k, prefix in islice(_other_prefixes(rows, me, index, noise), FOREIGN_TRIES):
        if not large_indices(score_row(lm, prefix, continuation), noise):
            needs_none = own and not large_indices(score_row(lm, own, continuation), noise)
            return None if needs_none else (k, prefix)
    return None


def _other_prefixes(
    rows: Sequence[ScoredRow], me: int, index: int, noise: float
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Other rows' prompts with `index` tokens of output, from which row `me` may go on: the likelier ones first.

    First with the other row's own tokens: the target's choice behind them is known. Then with those of row `me`. Rows
    that have most of the tokens that are to be explained come first.
    """
    mine, prompt = rows[me].score.tokens, rows[me].ids[: rows[me].prompt_len]
    others = [k for k, row in enumerate(rows) if k != me and row.ids[: row.prompt_len] != prompt]
    told = set(mine[index : index + FOREIGN_TOKENS])
    others.sort(key=lambda k: -len(told.intersection(rows[k].ids)))
    for k in others:
        if len(rows[k].score.tokens) >= index and _may_follow(mine[index], rows[k].score, index, noise):
            yield k, rows[k].ids[: rows[k].prompt_len + index]
    for k in others:
        if rows[k].score.tokens[:index] != mine[:index]:
            yield k, (*rows[k].ids[: rows[k].prompt_len], *mine[:index])


def _may_follow(token: int, judged: Score, index: int, noise: float) -> bool:
    """Whether the target may take `token` at this index of a judged row."""
    near = not is_large(judged.gaps[index], noise)
    return token == judged.choices[index] or (near and token == judged.others[index])
