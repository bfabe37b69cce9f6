"""Prompt lookup: what followed the last time the row's latest tokens occurred in the row itself."""

from dataclasses import dataclass

from specproof.drafters.drafter import DraftRow


@dataclass(frozen=True, slots=True)
class PromptLookup:
    """Looks for the row's last `max_ngram` tokens earlier in the row, then for fewer, down to `min_ngram`.

    The most recent occurrence wins; its continuation is the draft. No state, no model.
    """

    max_ngram: int = 3
    min_ngram: int = 1

    def propose(self, rows: list[DraftRow], max_tokens: int) -> list[list[int]]:
        return [self._continuation(row.token_ids, min(max_tokens, row.max_tokens)) for row in rows]

    def _continuation(self, ids: tuple[int, ...], count: int) -> list[int]:
        if count <= 0:
            return []
        for size in range(min(self.max_ngram, len(ids) - 1), self.min_ngram - 1, -1):
            tail = ids[-size:]
            # Index of the tail's end, latest first; the tail itself is not an occurrence.
            for end in range(len(ids) - 1, size - 1, -1):
                if ids[end - 1] == tail[-1] and ids[end - size : end] == tail:
                    return list(ids[end : end + count])
        return []
