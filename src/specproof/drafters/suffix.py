"""Suffix drafts: what followed where the row's latest tokens occurred before, in the row or in other texts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specproof.drafters.drafter import Confidence, DraftRow, HostDrafts
from specproof.drafters.prompt_lookup import match_chances

SOURCE = "suffix"
LONGEST = 32  # tokens of a match that are looked at
OCCURRENCES = 16  # latest places of each n-gram that are kept


@dataclass(frozen=True, slots=True)
class Match:
    """length: tokens that agree. drafts: what followed.

    votes: for each draft, the share that goes on with it of the matches at least half as long that went on like the
    drafts before it.
    """

    length: int
    drafts: list[int]
    votes: list[float]


class SuffixIndex:
    """The places of every n-gram of some texts that only grow. A new token costs one entry in a dict.

    size: tokens of an n-gram, so the shortest match.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._ends: dict[tuple[int, ...], list[tuple[Sequence[int], int]]] = {}  # n-gram -> (text, end), latest last

    def add(self, text: Sequence[int], start: int = 0) -> None:
        """Note the n-grams of `text` that end behind `start`. The text is kept by reference."""
        for end in range(max(start + 1, self.size), len(text) + 1):
            places = self._ends.setdefault(tuple(text[end - self.size : end]), [])
            places.append((text, end))
            if len(places) > OCCURRENCES:
                del places[0]

    def find(self, tail: Sequence[int], count: int) -> Match | None:
        """Where most of the end of `tail`, up to LONGEST tokens, occurs with something behind it; the latest of equals.

        Only the OCCURRENCES latest places of its last n-gram are looked at.
        """
        places = self._ends.get(tuple(tail[-self.size :]), ()) if len(tail) >= self.size else ()
        found = [(_agreement(text, end, tail), text, end) for text, end in reversed(places) if end < len(text)]
        if not found:
            return None
        length, text, end = max(found, key=lambda place: place[0])
        drafts = list(text[end : end + count])
        voters = [(text, end) for agreed, text, end in found if 2 * agreed >= length]
        votes = []
        for j, draft in enumerate(drafts):
            going = [(text, end) for text, end in voters if end + j < len(text)]
            voters = [(text, end) for text, end in going if text[end + j] == draft]
            votes.append(len(voters) / len(going))
        return Match(length, drafts, votes)


def _agreement(text: Sequence[int], end: int, tail: Sequence[int]) -> int:
    """How many tokens before `end` equal the last ones of `tail`, at most LONGEST."""
    length = 0
    for length in range(min(end, len(tail), LONGEST)):
        if text[end - 1 - length] != tail[-1 - length]:
            return length
    return min(end, len(tail), LONGEST)


class Suffix:
    """Takes the longest match among three indexes: the row itself, outputs of finished rows, and a corpus.

    The row itself wins over others of equal length. corpus: texts as ids, kept for good. size: shortest match. memory:
    tokens of finished outputs to remember, at least; twice as many at most.
    """

    def __init__(self, corpus: Iterable[Sequence[int]] = (), size: int = 2, memory: int = 100_000) -> None:
        self._size, self._memory = size, memory
        self._rows: dict[str, tuple[list[int], SuffixIndex]] = {}
        self._prompt_lens: dict[str, int] = {}
        self._corpus = SuffixIndex(size)
        for text in corpus:
            self._corpus.add(tuple(text))
        self._older, self._outputs, self._held = SuffixIndex(size), SuffixIndex(size), 0

    def propose(self, rows: list[DraftRow], max_tokens: int) -> HostDrafts:
        found = [self._match(row, min(max_tokens, row.max_tokens)) for row in rows]
        return HostDrafts([drafts for drafts, _ in found], [Confidence(SOURCE, chances) for _, chances in found])

    def commit(self, accepted: dict[str, int]) -> None:
        """The rows themselves say what was kept, when they are next drafted for."""

    def release(self, request_id: str) -> None:
        if request_id not in self._rows:
            return
        text, _ = self._rows.pop(request_id)
        output = tuple(text[self._prompt_lens.pop(request_id) :])
        if self._held > self._memory:
            self._older, self._outputs, self._held = self._outputs, SuffixIndex(self._size), 0
        self._outputs.add(output)
        self._held += len(output)

    def _match(self, row: DraftRow, count: int) -> tuple[list[int], list[float]]:
        text, own = self._rows.setdefault(row.request_id, ([], SuffixIndex(self._size)))
        self._prompt_lens[row.request_id] = row.prompt_len
        known = len(text)
        text += row.token_ids[known:]
        own.add(text, known)
        if count <= 0:
            return [], []
        indexes = (own, self._outputs, self._older, self._corpus)
        matches = [match for index in indexes if (match := index.find(text, count)) is not None]
        if not matches:
            return [], []
        best = max(matches, key=lambda match: match.length)
        sure = match_chances(best.length, len(best.drafts))
        return best.drafts, [chance * vote for chance, vote in zip(sure, best.votes, strict=True)]
