"""Prompt lookup: what followed the last time the row's latest tokens occurred in the row itself."""

from array import array
from dataclasses import dataclass

from specproof.drafters.drafter import Confidence, DraftRow, HostDrafts

SOURCE = "lookup"


@dataclass(frozen=True, slots=True)
class PromptLookup:
    """Looks for the row's last `max_ngram` tokens earlier in the row, then for fewer, down to `min_ngram`.

    The most recent occurrence wins; its continuation is the draft. No state, no model. The more tokens match, the surer
    it is; a draft that is right makes the match behind it longer.
    """

    max_ngram: int = 3
    min_ngram: int = 1

    def propose(self, rows: list[DraftRow], max_tokens: int) -> HostDrafts:
        found = [self._continuation(row.token_ids, min(max_tokens, row.max_tokens)) for row in rows]
        confidence = [Confidence(SOURCE, match_chances(size, len(drafts))) for drafts, size in found]
        return HostDrafts([drafts for drafts, _ in found], confidence)

    def _continuation(self, ids: tuple[int, ...], count: int) -> tuple[list[int], int]:
        """The draft, and how many tokens matched."""
        if count > 0:
            text = array("q", ids).tobytes()
            for size in range(min(self.max_ngram, len(ids) - 1), self.min_ngram - 1, -1):
                tail = text[-8 * size :]
                at = text.rfind(tail, 0, -8)
                while at % 8 and at >= 0:  # bytes that straddle ids
                    at = text.rfind(tail, 0, at + len(tail) - 1)
                if at >= 0:
                    end = at // 8 + size
                    return list(ids[end : end + count]), size
        return [], 0


def match_chances(size: int, count: int) -> list[float]:
    """Guesses for `count` drafts behind a match of `size` tokens: 1/4, 2/5, 3/6 ... with the tokens that match."""
    return [1 - 3 / (3 + size + j) for j in range(count)]
