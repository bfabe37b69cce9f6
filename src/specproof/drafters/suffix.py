"""Suffix drafts: what followed where the row's latest tokens occurred before, in the row or in other texts."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from specproof.drafters.drafter import Confidence, DraftRow, HostDrafts
from specproof.drafters.prompt_lookup import match_chances
from specproof.errors import ConfigError
from specproof.whole import is_whole

SOURCE = "suffix"
LONGEST = 32  # tokens of a match that are looked at
OCCURRENCES = 16  # latest places of each n-gram that are looked at


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

    size: tokens of an n-gram, so the shortest match. Places are numbers in arrays, each with that of the same n-gram
    before it: an object for each would have Python's garbage collector look through all it knows again and again.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._texts: dict[int, Sequence[int]] = {}  # by id, which is theirs as they are kept
        self._latest: dict[tuple[int, ...], int] = {}  # n-gram -> its latest place
        self._text, self._end, self._before = array("q"), array("q"), array("q")  # of each place; before: -1 for none

    def __len__(self) -> int:
        """Places."""
        return len(self._end)

    def add(self, text: Sequence[int], start: int = 0) -> None:
        """Note the n-grams of `text` that end behind `start`. The text is kept by reference."""
        self._texts[id(text)] = text
        for end in range(max(start + 1, self.size), len(text) + 1):
            ngram = tuple(text[end - self.size : end])
            self._before.append(self._latest.get(ngram, -1))
            self._latest[ngram] = len(self._end)
            self._text.append(id(text))
            self._end.append(end)

    def _places(self, tail: Sequence[int]) -> Iterator[tuple[Sequence[int], int]]:
        """Text and end of the OCCURRENCES latest places of the tail's last n-gram, the latest first."""
        place = self._latest.get(tuple(tail[-self.size :]), -1) if len(tail) >= self.size else -1
        for _ in range(OCCURRENCES):
            if place < 0:
                return
            yield self._texts[self._text[place]], self._end[place]
            place = self._before[place]

    def find(self, tail: Sequence[int], count: int) -> Match | None:
        """Where most of the end of `tail`, up to LONGEST tokens, occurs with something behind it; the latest of equals.

        Only the OCCURRENCES latest places of its last n-gram are looked at.
        """
        found = [(_agreement(text, end, tail), text, end) for text, end in self._places(tail) if end < len(text)]
        if not found:
            return None
        length, text, end = max(found, key=lambda place: place[0])
        drafts = list(text[end : end + count])
        voters = [(text, end) for agreed, text, end in found if 2 * agreed >= length]
        votes = []
        for j, draft in enumerate(drafts):
            if len(voters) == 1:  # the match itself
                votes += [1.0] * (len(drafts) - j)
                break
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


@dataclass(frozen=True, slots=True)
class _Row:
    """What has been seen of a row: its tokens, those that it emitted, the places in its tokens."""

    index: SuffixIndex
    text: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)


class Suffix:
    """Takes the longest match among three indexes: the row itself, outputs of all rows so far, and a corpus.

    The row itself wins over others of equal length. corpus: texts as ids, kept for good. size: shortest match. memory:
    tokens of finished outputs to remember, at least; twice as many at most. Of a row it knows what it was asked about.
    Raises ConfigError for a size below 1, a negative memory, or a corpus that is no lists of ids.
    """

    def __init__(self, corpus: Iterable[Sequence[int]] = (), size: int = 2, memory: int = 100_000) -> None:
        for name, value, least in (("size", size, 1), ("memory", memory, 0)):
            if not is_whole(value, least):
                raise ConfigError(f"{name} is {value!r}; it must be a whole number of at least {least}")
        self._size, self._memory = size, memory
        self._rows: dict[str, _Row] = {}
        self._corpus = SuffixIndex(size)
        for text in corpus:
            if isinstance(text, str) or not isinstance(text, Iterable):
                raise ConfigError(
                    f"a text of the corpus is {text!r}; each must be a list of ids, as a tokenizer gives them"
                )
            self._corpus.add(tuple(text))
        self._older, self._outputs, self._held = SuffixIndex(size), SuffixIndex(size), 0

    def propose(self, rows: list[DraftRow], max_tokens: int) -> HostDrafts:
        found = [self._match(row, min(max_tokens, row.max_tokens)) for row in rows]
        return HostDrafts([drafts for drafts, _ in found], [Confidence(SOURCE, chances) for _, chances in found])

    def commit(self, accepted: dict[str, int]) -> None:
        """The rows themselves say what was kept, when they are next drafted for."""

    def release(self, request_id: str) -> None:
        row = self._rows.pop(request_id, None)
        if row is None:
            return
        self._held += len(row.output)
        if self._held > self._memory:
            self._older, self._outputs, self._held = self._outputs, SuffixIndex(self._size), 0

    def _match(self, row: DraftRow, count: int) -> tuple[list[int], list[float]]:
        known = self._rows.setdefault(row.request_id, _Row(SuffixIndex(self._size)))
        text, output, start = known.text, known.output, len(known.text)
        text += row.token_ids[start:]
        known.index.add(text, start)
        start = len(output)
        output += row.token_ids[row.prompt_len + start :]
        self._outputs.add(output, start)
        if count <= 0:
            return [], []
        indexes = (known.index, self._outputs, self._older, self._corpus)
        matches = [match for index in indexes if (match := index.find(text, count)) is not None]
        if not matches:
            return [], []
        best = max(matches, key=lambda match: match.length)
        sure = match_chances(best.length, len(best.drafts))
        return best.drafts, [chance * vote for chance, vote in zip(sure, best.votes, strict=True)]
