"""Random lives of rows in both KV layouts: whatever came before, a forward sees each row's own tokens only."""

from dataclasses import dataclass, field

import pytest
import torch
from families import VOCAB, tiny_lm
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from specproof.kv import LAYOUTS
from specproof.kv.layout import Feed

MOST_FED = 6
NAMES = [f"row{i}" for i in range(5)]
MODELS = {family: tiny_lm(family, seed=1) for family in ("llama", "mistral")}
assert MODELS["llama"].windows == (None, None)
assert MODELS["mistral"].windows == (7, 7)


class Watched:
    """A model that notes what its forwards were given."""

    def __init__(self, lm) -> None:
        self.lm = lm
        self.calls: list[tuple] = []  # (ids, position ids, KV of the step)

    def forward(self, ids, position_ids, kv, columns):
        self.calls.append((ids, position_ids, kv))
        return self.lm.forward(ids, position_ids, kv, columns)

    def __getattr__(self, name):
        return getattr(self.lm, name)


@dataclass
class Row:
    """The model of one row: the tokens that its KV must stand for, and the most positions it has asked for."""

    ask: int
    tokens: list[int] = field(default_factory=list)


class LayoutMachine(RuleBasedStateMachine):
    """Rows enter, take over from others, are fed in chunks or for logits, are rolled back, sit out, and leave."""

    layout_name: str
    family: str
    seen: set[str]  # what happened in any run, so that the test can tell that it looked at it

    @initialize()
    def start(self) -> None:
        self.lm = Watched(MODELS[self.family])
        self.layout = LAYOUTS[self.layout_name](self.lm, "sdpa")
        self.rows: dict[str, Row] = {}
        self.donors: dict[str, list[int]] = {}  # tokens of rows, finished ones too, that were there in the last forward

    @precondition(lambda self: len(self.rows) < len(NAMES))
    @rule(data=st.data(), length=st.integers(1, 20))
    def admit(self, data, length) -> None:
        self.admit_as(data.draw(st.sampled_from([name for name in NAMES if name not in self.rows])), length)

    def admit_as(self, name, length) -> None:
        self.layout.admit(name, length)
        self.rows[name] = Row(length if self.layout_name == "slotted" else 0)
        self.donors.pop(name, None)

    @precondition(lambda self: self.layout_name == "slotted" and self.donors and len(self.rows) < len(NAMES))
    @rule(data=st.data())
    def share(self, data) -> None:
        free = [name for name in NAMES if name not in self.rows]
        donor = data.draw(st.sampled_from(sorted(self.donors)))
        name = data.draw(st.sampled_from([name for name in free if name != donor] or [None]))
        if name is None:
            return
        length = data.draw(st.integers(1, len(self.donors[donor])))
        self.admit_as(name, length)
        self.layout.share(name, donor, length)
        self.rows[name].tokens += self.donors[donor][:length]
        self.seen.add("taken over" if donor in self.rows else "taken over from a row that has left")

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def release(self, data) -> None:
        name = data.draw(st.sampled_from(sorted(self.rows)))
        self.layout.release(name)
        del self.rows[name]
        self.seen.add("released")
        if not self.rows and data.draw(st.booleans()):
            self.layout.clear()
            self.donors = {}
            assert self.layout.nbytes == 0

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), everyone=st.booleans())
    def feed(self, data, everyone) -> None:
        """A step: some or all rows, each with its own start, length and wanted logits; some ids only on the device."""
        order = data.draw(st.permutations(sorted(self.rows)))
        feeds, device_ids = [], []
        for name in order if everyone else order[: data.draw(st.integers(1, len(order)))]:
            row = self.rows[name]
            back = data.draw(st.integers(0, min(4, len(row.tokens))))
            del row.tokens[len(row.tokens) - back :]
            new = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=MOST_FED))
            num_logits = data.draw(st.integers(0, len(new)))
            num_device = data.draw(st.integers(0, len(new) - 1)) if num_logits else 0
            known = len(new) - num_device
            feeds.append(Feed(name, len(row.tokens), new[:known], num_device, num_logits))
            device_ids += new[known:]
            row.tokens += new
            row.ask = max(row.ask, len(row.tokens))
            self.seen |= {"rolled back"} if back else set()
            self.seen |= {"device ids"} if num_device else set()
        self._note(feeds)
        self.lm.calls.clear()

        logits = self.layout.forward(feeds, torch.tensor(device_ids) if device_ids else None)

        assert logits.shape[0] == sum(feed.num_logits for feed in feeds)
        self._compare(logits, feeds)
        self._check_aligned(feeds)
        self._check_memory(feeds)
        self.seen |= {"realigned"} if self.layout.realigned else set()
        self.donors = {name: list(row.tokens) for name, row in self.rows.items() if row.tokens}

    @invariant()
    def no_row_means_no_memory(self) -> None:
        """But for what finished rows have left in slots, until the next forward or until it is cleared."""
        if not self.rows and self.layout_name == "left-padded":
            assert self.layout.nbytes == 0
        elif any(row.tokens for row in self.rows.values()):
            assert self.layout.nbytes > 0

    def _note(self, feeds) -> None:
        emitting = sum(feed.num_logits > 0 for feed in feeds)
        if 0 < emitting < len(feeds):
            self.seen.add("chunks and emitting rows in one step")
        if len(feeds) < len(self.rows):
            self.seen.add("a row sits out")
        if len({feed.length for feed in feeds}) > 1:
            self.seen.add("ragged")
        if max(len(self.rows[feed.row].tokens) for feed in feeds) > 2 * 7:
            self.seen.add("past the window")

    def _compare(self, logits, feeds) -> None:
        """With the model's own forward of the row's whole token list."""
        at = 0
        for feed in feeds:
            if not feed.num_logits:
                continue
            ours, at = logits[at : at + feed.num_logits], at + feed.num_logits
            tokens = self.rows[feed.row].tokens
            plain = MODELS[self.family].plain_forward(torch.tensor([tokens]))[0][0, -feed.num_logits :]
            worst = float((ours - plain).abs().max())
            best = plain.topk(2).values
            margin = float((best[:, 0] - best[:, 1]).min())
            assert worst < 1e-9, (
                f"{self.layout_name}, {self.family}: {feed.row} fed {tokens[feed.start :]} at {feed.start} has logits "
                f"off by {worst:.3g} (smallest margin {margin:.3g})"
            )

    def _check_aligned(self, feeds) -> None:
        """Invariants I1 and I2, from what the model was given."""
        if self.layout_name == "slotted":
            [(ids, positions, kv)] = self.lm.calls
            by_row = {feed.row: feed for feed in feeds}
            assert len(self.layout.rows) == len(feeds)
            feeds = [by_row[row] for row in self.layout.rows]
            expected = [position for feed in feeds for position in range(feed.start, feed.end)]
            tokens = [token for feed in feeds for token in self.rows[feed.row].tokens[feed.start :]]
            slots = [self.layout.slots.slot(feed.row) for feed in feeds for _ in range(feed.length)]
            assert ids[0].tolist() == tokens
            assert positions[0].tolist() == expected
            assert (kv.index % kv.cells.capacity).tolist() == expected, "cell index is not the position"
            assert (kv.index // kv.cells.capacity).tolist() == slots, "a token lies in another row's slot"
            assert len({self.layout.slots.slot(name) for feed in feeds for name in [feed.row]}) == len(feeds)
            return
        groups = [
            group for group in ([f for f in feeds if not f.num_logits], [f for f in feeds if f.num_logits]) if group
        ]
        for group, (ids, positions, kv) in zip(groups, self.lm.calls, strict=True):
            [block] = kv.plan.blocks
            assert len(set(block.columns[:, 0].tolist())) == 1, "rows do not begin at one column"
            given = []
            for i in range(len(group)):
                first, column = int(block.first[i]), int(block.columns[i, 0])
                length = int(positions[i].max() - positions[i, 0]) + 1
                assert first + positions[i, 0] == column, "padding + content differs from row to row"
                assert positions[i, :length].tolist() == list(range(positions[i, 0], positions[i, 0] + length))
                given.append((int(positions[i, 0]), ids[i, :length].tolist()))
            fed = [(feed.start, self.rows[feed.row].tokens[feed.start :]) for feed in group]
            assert sorted(given) == sorted(fed)

    def _check_memory(self, feeds) -> None:
        """Slots: 1.25 times the longest ask, for each live row. Rectangle: of the longest ask and a step's width."""
        longest = max(row.ask for row in self.rows.values())
        if self.layout_name == "slotted":
            cells = self.layout.slots.cells
            assert longest <= cells.capacity, (cells.capacity, longest)
            assert len(self.rows) <= cells.rows
            assert cells.rows * cells.capacity <= 1.25 * longest * len(self.rows)
            return
        assert self.layout._pool.cells.capacity <= 1.25 * longest
        assert self.layout._pool.cells.rows <= len(self.rows)
        assert self.layout._cells.capacity <= 1.25 * (longest + MOST_FED)
        last = [feed for feed in feeds if feed.num_logits] or feeds
        assert self.layout._cells.rows == len(last)


@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_are_those_of_a_rows_own_tokens_whatever_happened_before(layout, family):
    seen: set[str] = set()
    machine = type("Machine", (LayoutMachine,), {"layout_name": layout, "family": family, "seen": seen})
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=80, stateful_step_count=20, deadline=None, derandomize=True, database=None),
    )
    expected = {"rolled back", "released", "device ids", "a row sits out", "ragged", "past the window"}
    expected |= {"chunks and emitting rows in one step"}
    expected |= {"realigned"} if layout == "left-padded" else {"taken over", "taken over from a row that has left"}
    assert seen == expected
