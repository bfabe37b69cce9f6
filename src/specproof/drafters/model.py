"""A smaller model that drafts, with KV of its own kept over the steps."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specproof.choice import Ban, choose
from specproof.drafters.drafter import Confidence, DeviceDrafts, DraftRow, GoOn, NextDraft
from specproof.kv.layout import Feed, Layout, Sharing
from specproof.lm import LM
from specproof.prefixes import Holder, share_prefixes

SOURCE = "model"


class ModelDrafter:
    """Drafts greedily with `lm`; its KV holds committed tokens only between steps.

    After full acceptance a row lacks the KV of its last draft, so it feeds two tokens in the next step, not one. Drafts
    stay on the device. Rows too long for the draft's context, or with an id that it does not have, get no drafts.

    A row that was not drafted for in some steps reads what it missed when it drafts again. A new row takes over what it
    has in common with the others of the step, if `share_prefixes` says so and the layout can.

    layout: KV memory for `lm`, whose head may be cut (to rising ids). vocab_size: the target's; no id beyond it is
    proposed. prefill_chunk: most tokens of one catching-up forward. quick: None, or the same memory with a quicker LM,
    which then computes all rounds; `lm` reads what comes before them. go_on: asked before each round which rows draft
    on; None: all. If it is asked, drafts on a CPU come with their probability; on CUDA the host would wait for it.
    """

    go_on: GoOn | None = None

    def __init__(
        self,
        lm: LM,
        layout: Layout,
        vocab_size: int,
        prefill_chunk: int = 256,
        share_prefixes: bool = False,
        quick: Layout | None = None,
    ) -> None:
        self.lm = lm
        self.layout = layout
        self.quick = layout if quick is None else quick
        self._vocab_size = min(vocab_size, lm.vocab_size)
        columns = range(lm.vocab_size) if lm.head_ids is None else lm.head_ids
        self._columns = {token: column for column, token in enumerate(columns) if token < self._vocab_size}
        self._head = None if lm.head_ids is None else torch.tensor(lm.head_ids, device=lm.device)
        self._prefill_chunk = prefill_chunk
        self._sharing = layout if share_prefixes and isinstance(layout, Sharing) else None
        self._cached: dict[str, int] = {}  # request_id -> cached_len
        self._fed: dict[str, int] = {}  # request_id -> drafts of this step whose KV was computed

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """All layouts that compute for it, on one memory."""
        return tuple(dict.fromkeys((self.layout, self.quick)))

    def propose(self, rows: list[DraftRow], max_tokens: int) -> DeviceDrafts:
        counts = [self._count(row, max_tokens) for row in rows]
        limits, counts = counts, [0] * len(rows)
        chances: list[list[float]] = [[] for _ in rows]
        ids = torch.zeros(len(rows), max(limits, default=0), dtype=torch.long, device=self.lm.device)
        active, token = list(range(len(rows))), None
        for j in range(ids.shape[1]):
            able = [i for i in active if limits[i] > j]
            going = self._going(able, rows, chances, j)
            if not going:
                break
            if token is None:
                self._catch_up([rows[i] for i in going])
                feeds = [self._pending(rows[i]) for i in going]
            else:
                if going != active:
                    token = token[[active.index(i) for i in going]]
                feeds = [Feed(rows[i].request_id, len(rows[i].token_ids) + j - 1, (), 1, 1) for i in going]
            logits = self.quick.forward(feeds, token)[:, : len(self._columns)]
            column = choose(logits, self._bans([rows[i] for i in going], j)).clamp(min=0)  # NaN: any id will do
            if self.go_on is not None and column.device.type == "cpu":
                for i, chance in zip(going, _probability(logits, column).tolist(), strict=True):
                    chances[i].append(chance)
            token = column if self._head is None else self._head[column]
            ids[going, j] = token
            for i in going:
                counts[i] += 1
            active = going
        self._fed = {row.request_id: count - 1 for row, count in zip(rows, counts, strict=True) if count}
        for row in rows:
            if row.request_id in self._fed:
                self._cached[row.request_id] = len(row.token_ids)
        confidence = [Confidence(SOURCE, chances[i]) for i in range(len(rows))]
        return DeviceDrafts(ids[:, : max(counts, default=0)], counts, confidence)

    def _going(self, able: list[int], rows: list[DraftRow], chances: list[list[float]], num_drafts: int) -> list[int]:
        """Which rows draft on."""
        if self.go_on is None or not able:
            return able
        nexts = [
            NextDraft(
                rows[i],
                num_drafts,
                1 if num_drafts else len(rows[i].token_ids) - self._cached.get(rows[i].request_id, 0),
                Confidence(SOURCE, chances[i]),
            )
            for i in able
        ]
        return [i for i, goes in zip(able, self.go_on(nexts), strict=True) if goes]

    def commit(self, accepted: dict[str, int]) -> None:
        for request_id, fed in self._fed.items():
            self._cached[request_id] += min(accepted.get(request_id, 0), fed)
        self._fed = {}

    def release(self, request_id: str) -> None:
        if request_id in self._cached:
            self.layout.release(request_id)
            for table in (self._cached, self._fed):
                table.pop(request_id, None)
            if not self._cached:
                self.layout.clear()

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

    def _bans(self, rows: Sequence[DraftRow], ahead: int) -> list[Ban]:
        """The target's own bans, or a draft of a banned id would be a certain rejection."""
        return [
            Ban(i, [self._columns[token] for token in row.banned_ids if token in self._columns])
            for i, row in enumerate(rows)
            if len(row.token_ids) + ahead < row.banned_until
        ]

    def _catch_up(self, rows: Sequence[DraftRow]) -> None:
        """Compute all but the last known token of rows that lack more than two, in chunks."""
        for row in rows:
            if row.request_id not in self._cached:
                self.layout.admit(row.request_id, len(row.token_ids))
                self._cached[row.request_id] = 0
        while behind := self._behind(rows):
            share = max(1, self._prefill_chunk // len(behind))
            feeds = []
            for row in behind:
                start = self._cached[row.request_id]
                end = min(start + share, len(row.token_ids) - 1)
                feeds.append(Feed(row.request_id, start, row.token_ids[start:end]))
                self._cached[row.request_id] = end
            self.layout.forward(feeds)

    def _behind(self, rows: Sequence[DraftRow]) -> list[DraftRow]:
        """Rows that lack more than two tokens, but for those that wait to take them over from another."""
        cached, waiting = self._cached, set()
        if self._sharing is not None:
            shares, waiting = share_prefixes(
                [Holder(row.request_id, row.token_ids, cached[row.request_id], len(row.token_ids) - 1) for row in rows]
            )
            for prefix in shares:
                self._sharing.share(prefix.request_id, prefix.donor, prefix.length)
                cached[prefix.request_id] = prefix.length
        behind = [row for row in rows if len(row.token_ids) - cached[row.request_id] > 2]
        return [row for row in behind if row.request_id not in waiting]


def _probability(logits: Tensor, tokens: Tensor) -> Tensor:
    """Of each row's token, 0 if there is none. logits (n, V), tokens (n,) -> (n,)."""
    logits = logits.float()
    return (logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(1)).exp().nan_to_num(0.0).clamp(max=1.0)
