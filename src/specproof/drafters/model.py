"""A smaller model that drafts, with KV of its own kept over the steps."""

from collections.abc import Sequence

import torch

from specproof.choice import Ban, choose
from specproof.drafters.drafter import DeviceDrafts, DraftRow
from specproof.kv.layout import Feed, Layout
from specproof.lm import LM


class ModelDrafter:
    """Drafts greedily with `lm`; its KV holds committed tokens only between steps.

    After full acceptance a row lacks the KV of its last draft, so it feeds two tokens in the next step, not one. Drafts
    stay on the device. Rows too long for the draft's context, or with an id that it does not have, get no drafts.

    layout: KV memory for `lm`. vocab_size: the target's; no id beyond it is proposed. prefill_chunk: most tokens of one
    catching-up forward.
    """

    def __init__(self, lm: LM, layout: Layout, vocab_size: int, prefill_chunk: int = 256) -> None:
        self.lm = lm
        self.layout = layout
        self._vocab_size = min(vocab_size, lm.vocab_size)
        self._prefill_chunk = prefill_chunk
        self._cached: dict[str, int] = {}  # request_id -> cached_len
        self._base: dict[str, int] = {}  # request_id -> seq_len when it was last drafted for
        self._fed: dict[str, int] = {}  # request_id -> drafts whose KV was computed then

    def propose(self, rows: list[DraftRow], max_tokens: int) -> DeviceDrafts:
        counts = [self._count(row, max_tokens) for row in rows]
        drafting = [i for i, count in enumerate(counts) if count]
        ids = torch.zeros(len(rows), max(counts, default=0), dtype=torch.long, device=self.lm.device)
        self._catch_up([rows[i] for i in drafting])
        active, token = drafting, None
        for j in range(ids.shape[1]):
            if token is None:
                feeds = [self._pending(rows[i]) for i in active]
            else:
                still = [n for n, i in enumerate(active) if counts[i] > j]
                if len(still) < len(active):
                    active, token = [active[n] for n in still], token[still]
                feeds = [Feed(rows[i].request_id, len(rows[i].token_ids) + j - 1, (), 1, 1) for i in active]
            logits = self.layout.forward(feeds, token)
            token = choose(logits[:, : self._vocab_size], _bans([rows[i] for i in active], j, self._vocab_size))
            ids[active, j] = token
        for i in drafting:
            self._base[rows[i].request_id] = self._cached[rows[i].request_id] = len(rows[i].token_ids)
            self._fed[rows[i].request_id] = counts[i] - 1
        return DeviceDrafts(ids, counts)

    def commit(self, accepted: dict[str, int]) -> None:
        for request_id, count in accepted.items():
            if request_id in self._base:
                self._cached[request_id] = self._base[request_id] + min(count, self._fed[request_id])

    def release(self, request_id: str) -> None:
        if request_id in self._cached:
            self.layout.release(request_id)
            for table in (self._cached, self._base, self._fed):
                table.pop(request_id, None)

    def _count(self, row: DraftRow, max_tokens: int) -> int:
        if self.lm.vocab_size < self._vocab_size and max(row.token_ids) >= self.lm.vocab_size:
            return 0
        room = max_tokens if self.lm.context is None else self.lm.context - len(row.token_ids) + 1
        unread = row.token_ids[self._cached.get(row.request_id, 0) :]
        if max(unread, default=0) >= self.lm.vocab_size:
            return 0
        return max(0, min(max_tokens, row.max_tokens, room))

    def _pending(self, row: DraftRow) -> Feed:
        start = self._cached[row.request_id]
        return Feed(row.request_id, start, row.token_ids[start:], 0, 1)

    def _catch_up(self, rows: Sequence[DraftRow]) -> None:
        """Compute all but the last known token of rows that lack more than two, in chunks."""
        for row in rows:
            if row.request_id not in self._cached:
                self.layout.admit(row.request_id, len(row.token_ids))
                self._cached[row.request_id] = 0
        while behind := [row for row in rows if len(row.token_ids) - self._cached[row.request_id] > 2]:
            share = max(1, self._prefill_chunk // len(behind))
            feeds = []
            for row in behind:
                start = self._cached[row.request_id]
                end = min(start + share, len(row.token_ids) - 1)
                feeds.append(Feed(row.request_id, start, row.token_ids[start:end]))
                self._cached[row.request_id] = end
            self.layout.forward(feeds)


def _bans(rows: Sequence[DraftRow], ahead: int, vocab_size: int) -> list[Ban]:
    """The target's own bans, or a draft of a banned id would be a certain rejection."""
    return [
        Ban(i, [token for token in row.banned_ids if token < vocab_size])
        for i, row in enumerate(rows)
        if len(row.token_ids) + ahead < row.banned_until
    ]
