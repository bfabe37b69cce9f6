"""One layout under watch: what each forward of its model is given, against what the rows must be."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from specproof.audit.truth import TrueRow
from specproof.kv.attention import AttentionPlan
from specproof.kv.layout import Feed, Layout
from specproof.kv.ledger import Ledger
from specproof.kv.left_padded import LeftPadded
from specproof.kv.transformers_cache import StepCache
from specproof.lm import LM, layer_windows

Report = Callable[[str, str, object, object, str], None]  # invariant, row, expected, found, message


class ForwardAudit:
    """Checks aligned, positions-contiguous, mask-exact and kv-matches (for a draft: draft-in-sync) at every forward.

    name: "target" or "draft". Only integers are compared: ids, positions, cells, the masks that attention used, and the
    ledger, which this class stamps with what the engine asked to be written.
    """

    def __init__(self, name: str, lm: LM, layout: Layout, rows: dict[str, TrueRow], report: Report) -> None:
        self.name, self.lm, self.layout = name, lm, layout
        self._rows, self._report = rows, report
        self._windows = layer_windows(lm.model)
        self._feeds: Sequence[Feed] = ()
        self._taken: list[tuple[str, str, int]] = []  # (row, donor, length), to be copied before the next forward
        for cells in layout.memories:
            cells.ledger = Ledger(cells.rows * cells.capacity)

    def share(self, row: str, donor: str, length: int) -> None:
        """The layout is asked to begin a row with `[0, length)` of its donor."""
        self._taken.append((row, donor, length))
        self._rows[row].cached[self.name] = length

    def begin(self, feeds: Sequence[Feed], layout: Layout) -> None:
        """The layout, or another one on the same memory, is asked to compute these feeds."""
        self._feeds, self.layout = feeds, layout
        for feed in feeds:
            self._check_start(self._rows[feed.row], feed)

    def check(self, ids: Tensor, position_ids: Tensor, kv: StepCache, plan: AttentionPlan) -> None:
        """The model was given this. ids, position_ids: (b, n)."""
        given, positions, cells = (t.flatten().cpu().numpy() for t in (ids, position_ids, kv.index))
        given, positions = given[: len(cells)], positions[: len(cells)]  # those behind are kept and seen by nobody
        capacity = kv.cells.capacity
        feeds, places = self._partition(ids.shape)
        size = ids.shape[0] * max(map(len, places)) if isinstance(self.layout, LeftPadded) else sum(map(len, places))
        if size != len(given):
            self._report("aligned", "all", size, len(given), "number of tokens of the forward")
            return
        assert kv.cells.ledger is not None
        self._pass_on(kv.cells.ledger)
        kv.cells.ledger.stamp(kv.index.cpu(), torch.full((len(given), 3), -1))  # fillers belong to nobody
        starts, slots = [], []
        for feed, at in zip(feeds, places, strict=True):
            row = self._rows[feed.row]
            expected = np.arange(feed.start, feed.end)
            if not np.array_equal(positions[at], expected):
                self._report(
                    "positions-contiguous", feed.row, expected.tolist(), positions[at].tolist(), "position ids"
                )
            if not np.array_equal(given[at][: len(feed.tokens)], np.array(feed.tokens, dtype=int)):
                self._report(
                    "aligned", feed.row, list(feed.tokens), given[at].tolist(), "the row was given other tokens"
                )
            behind = max(0, feed.end - len(row.committed))
            known = row.ahead.setdefault(self.name, [])
            del known[max(0, feed.start - len(row.committed)) :]
            known += given[at][len(at) - behind :].tolist() if behind else []
            slot, place = cells[at] // capacity, cells[at] % capacity
            first = int(place[0]) - feed.start
            if len(set(slot)) > 1 or not np.array_equal(place - first, expected):
                self._report(
                    "aligned",
                    feed.row,
                    expected.tolist(),
                    (place - first).tolist(),
                    "cells are not in the order of positions",
                )
            located = self.layout.locate(feed.row, feed.end)
            if located is None or not np.array_equal(located[1].numpy()[feed.start :], cells[at]):
                self._report("aligned", feed.row, "the row's own cells", (slot, place), "KV is written elsewhere")
            if not isinstance(self.layout, LeftPadded) and first:
                self._report("aligned", feed.row, 0, first, "the cell's place is not the position")
            starts.append(first + feed.start)
            slots.append(int(slot[0]))
            entries = np.stack([np.full(len(at), row.number), expected, given[at]], axis=1)
            kv.cells.ledger.stamp(torch.from_numpy(cells[at]), torch.from_numpy(entries))
        if isinstance(self.layout, LeftPadded) and len(set(starts)) > 1:
            self._report("aligned", "all", starts[:1] * len(starts), starts, "rows do not end at one column")
        if len(set(slots)) < len(slots):
            self._report("aligned", "all", "one slot a row", slots, "rows share a slot")
        for layer, (ours, used) in enumerate(zip(self._windows, plan.windows, strict=True)):
            if ours != used:
                self._report("mask-exact", "all", ours, used, f"window of layer {layer}")
        self._check_visible(feeds, places, cells, kv, plan)

    def _pass_on(self, ledger: Ledger) -> None:
        """Cells that were the donor's and have been copied are the row's now; any others stay whose they were."""
        for name, donor, length in self._taken:
            located = self.layout.locate(name, length)
            assert located is not None
            requests = ledger.entries[located[1], 0]
            ledger.entries[located[1], 0] = requests.where(
                requests != self._rows[donor].number, self._rows[name].number
            )
        self._taken = []

    def end(self) -> None:
        """A step is over: what was fed behind the committed tokens counts no more."""
        for row in self._rows.values():
            if self.name in row.ahead:
                row.cached[self.name] = min(row.cached.get(self.name, 0), len(row.committed))
                row.ahead[self.name] = []

    def _partition(self, shape: torch.Size) -> tuple[list[Feed], list[np.ndarray]]:
        """The feeds of this forward, and where each one's tokens lie among the forward's."""
        order = self.layout.rows
        if not isinstance(self.layout, LeftPadded):
            feeds = sorted(self._feeds, key=lambda feed: order.index(feed.row))
            lengths = [feed.length for feed in feeds]
            ends = np.cumsum(lengths)
            return feeds, [np.arange(end - n, end) for end, n in zip(ends, lengths, strict=True)]
        # Chunks of prompts and emitting rows go in rectangles of their own.
        feeds = [feed for feed in self._feeds if feed.row in order]
        return feeds, [order.index(feed.row) * shape[1] + np.arange(feed.length) for feed in feeds]

    def _check_start(self, row: TrueRow, feed: Feed) -> None:
        """No gap before the feed, and its known tokens are the committed ones at these positions."""
        held = row.cached.get(self.name, 0)
        if feed.start > held:
            name = "positions-contiguous" if self.name == "target" else "draft-in-sync"
            self._report(name, feed.row, f"at most {held}", feed.start, "the row starts behind what is computed")
        if self.name == "target" and feed.num_logits and feed.start != len(row.committed) - 1:
            self._report(
                "positions-contiguous", feed.row, len(row.committed) - 1, feed.start, "position of the pending token"
            )
        row.cached[self.name] = feed.end
        known = row.committed[feed.start : feed.end]
        if list(feed.tokens[: len(known)]) != known[: len(feed.tokens)]:
            name = "commitment" if self.name == "target" else "draft-in-sync"
            self._report(
                name, feed.row, known, list(feed.tokens), "fed tokens are not the committed ones at their positions"
            )

    def _check_visible(
        self, feeds: Sequence[Feed], places: Sequence[np.ndarray], cells: np.ndarray, kv: StepCache, plan: AttentionPlan
    ) -> None:
        """Each query sees exactly the cells it should, and they hold what they should."""
        capacity = kv.cells.capacity
        assert kv.cells.ledger is not None
        ledger = kv.cells.ledger.entries.numpy().reshape(-1, capacity, 3)
        results = np.arange(sum(block.columns.numel() for block in plan.blocks))
        order = results[plan.order if isinstance(plan.order, slice) else plan.order.cpu().numpy()]
        base = 0
        for number, block in enumerate(plan.blocks):
            count, m = block.columns.shape
            everything = np.arange(kv.cells.rows)
            slots = everything[block.rows] if isinstance(block.rows, slice) else block.rows.cpu().numpy()
            queries: dict[
                int, tuple[Feed, np.ndarray, np.ndarray]
            ] = {}  # row of the block -> feed, its queries, positions
            for feed, at in zip(feeds, places, strict=True):
                result = order[at] - base
                inside = (result >= 0) & (result < count * m)  # a long chunk is cut over several blocks
                if not inside.any():
                    continue
                at, result = at[inside], result[inside]
                r = int(result[0]) // m
                if slots[r] != cells[at[0]] // capacity:
                    self._report(
                        "mask-exact",
                        feed.row,
                        int(cells[at[0]] // capacity),
                        int(slots[r]),
                        "queries see another row's cells",
                    )
                    continue
                queries[r] = feed, result % m, np.arange(feed.start, feed.end)[inside]
                first = int(cells[places[feeds.index(feed)][0]] % capacity) - feed.start
                self._check_ledger(feed, ledger[slots[r], first : first + feed.end])
                if kv.gathered is not None:
                    self._check_gathered(feed, kv.gathered[r])
            masks = {
                window: mask[:, :, : groups * m]  # rows behind these are thrown away
                for (of, window, groups, *_), mask in plan.masks.items()
                if of == number
            }
            if masks.keys() != set(self._windows):
                self._report(
                    "mask-exact",
                    "all",
                    sorted(set(self._windows), key=str),
                    sorted(masks, key=str),
                    "windows of the masks",
                )
            for window, mask in masks.items():
                visible = (mask == 0).cpu().numpy()[:, 0].reshape(count, -1, m, mask.shape[-1])  # (R, G, m, L)
                for r, (feed, j, position) in queries.items():
                    first = int(cells[places[feeds.index(feed)][0]] % capacity) - feed.start
                    if kv.gathered is not None:
                        first = 0  # the mask is over positions
                    place = np.arange(mask.shape[-1]) - first
                    should = (place >= 0) & (place <= position[:, None])
                    if window is not None:
                        should &= place > position[:, None] - window
                    seen = visible[r][:, j]
                    if (seen != should).any():
                        _, query, where = np.argwhere(seen != should)[0]
                        self._report(
                            "mask-exact",
                            feed.row,
                            f"position {place[where]} {'visible' if should[query, where] else 'hidden'}",
                            "the opposite",
                            f"query at position {position[query]}, window {window}",
                        )
                    needed = first + int(position[-1]) + 1
                    if needed > mask.shape[-1]:
                        self._report("mask-exact", feed.row, needed, mask.shape[-1], "visible length is too short")
            base += count * m

    def _check_gathered(self, feed: Feed, cells: Tensor) -> None:
        """The cells that the row's attention gets in place of the rectangle are its own, by position."""
        located = self.layout.locate(feed.row, feed.end)
        if located is None or not torch.equal(located[1], cells[: feed.end].cpu()):
            self._report("mask-exact", feed.row, "the row's own cells", cells[: feed.end].tolist(), "gathered cells")

    def _check_ledger(self, feed: Feed, entries: np.ndarray) -> None:
        row = self._rows[feed.row]
        known = row.known(self.name)[: feed.end]
        expected = np.stack([np.full(len(known), row.number), np.arange(len(known)), np.array(known)], axis=1)
        if len(entries) == len(expected) and np.array_equal(entries, expected):
            return
        at = next((i for i, (a, b) in enumerate(zip(entries, expected, strict=False)) if (a != b).any()), len(entries))
        name = "kv-matches" if self.name == "target" else "draft-in-sync"
        found = entries[at].tolist() if at < len(entries) else None
        self._report(
            name,
            feed.row,
            expected[at].tolist() if at < len(expected) else None,
            found,
            f"(request, position, token) at position {at}",
        )
