"""Random loads for the three schedulers: each row is waiting, running or finished, once, and none waits for ever."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from specproof import EngineConfig, Request
from specproof.prefixes import LEAST
from specproof.schedulers import SCHEDULERS, Schedule
from specproof.sequence import Sequence


def sequence(name: str, prompt_len: int, other_from: int | None = None) -> Sequence:
    """A prompt of zeros, and of tokens that no other row has from `other_from` on."""
    common = prompt_len if other_from is None else min(other_from, prompt_len)
    own = 1 + int(name.removeprefix("row")) if other_from is not None else 0
    ids = [0] * common + [own] * (prompt_len - common)
    return Sequence(name, Request(ids), ids, prompt_len, limit=10_000, end_ids=frozenset())


def apply(schedule: Schedule, emitted: dict[str, int]) -> None:
    """What the engine does with a schedule: computes prompt chunks, gives rows that decode `emitted` tokens (or 1).

    What is taken over was applied when it was checked.
    """
    for row, length in schedule.prefill:
        row.cached_len += length
    for row in schedule.decode:
        count = emitted.get(row.request_id, 1)
        row.token_ids += [0] * count
        row.cached_len += count


class SchedulerMachine(RuleBasedStateMachine):
    """Rows arrive at any time, grow by uneven amounts, and finish at any time."""

    scheduler_name: str
    seen: set[str]

    @initialize(
        batch_size=st.integers(1, 4),
        extra=st.integers(0, 4),
        prefill_chunk=st.integers(1, 40),
        sort_by_length=st.booleans(),
    )
    def start(self, batch_size, extra, prefill_chunk, sort_by_length) -> None:
        self.config = EngineConfig(
            scheduler=self.scheduler_name,
            batch_size=batch_size,
            window=batch_size + extra,
            prefill_chunk=prefill_chunk,
            sort_by_length=sort_by_length,
        )
        self.scheduler = SCHEDULERS[self.scheduler_name](self.config)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.finished: set[str] = set()
        self.waited: dict[str, int] = {}  # decoding steps since a ready row last decoded
        self.ended: list[Sequence] = []  # since the last plan
        self.count = 0

    @rule(prompts=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60)), min_size=1, max_size=6))
    def arrive(self, prompts) -> None:
        rows = [sequence(f"row{self.count + i}", length, common) for i, (length, common) in enumerate(prompts)]
        self.count += len(rows)
        self.scheduler.add(rows)
        self.waiting += rows

    @precondition(lambda self: self.waiting or self.running)
    @rule(data=st.data())
    def step(self, data) -> None:
        schedule = self._plan()
        rows = schedule.decode
        apply(schedule, {row.request_id: data.draw(st.integers(1, 4)) for row in rows})
        for row in rows:
            if data.draw(st.integers(0, 3)) == 0:
                self._finish(row)

    @precondition(lambda self: self.running)
    @rule(steps=st.integers(1, 30))
    def many_even_steps(self, steps) -> None:
        """All rows that decode grow alike, so that groups of equal length stay together and others may be left out."""
        for _ in range(steps):
            apply(self._plan(), {})

    def teardown(self) -> None:
        """Every row ends after all, each once."""
        if not hasattr(self, "scheduler"):
            return
        most = sum(row.prefill_left + 1 for row in [*self.waiting, *self.running]) * 2 + 1
        while self.scheduler.num_unfinished:
            assert (most := most - 1) >= 0, "no progress"
            schedule = self._plan()
            apply(schedule, {})
            for row in schedule.decode:
                self._finish(row)
        assert not self.waiting
        assert not self.running
        assert len(self.finished) == self.count

    def _finish(self, row: Sequence) -> None:
        assert row.request_id not in self.finished
        self.scheduler.finish(row)
        self.running.remove(row)
        self.finished.add(row.request_id)
        self.ended.append(row)
        self.waited.pop(row.request_id, None)

    def _plan(self) -> Schedule:
        """The scheduler's next step, checked."""
        busy, waiting_before = bool(self.running), list(self.waiting)
        schedule = self.scheduler.plan()

        for row in schedule.admitted:
            self.waiting.remove(row)  # raises if it was not waiting
            self.running.append(row)
        assert self.scheduler.num_unfinished == len(self.waiting) + len(self.running)
        self._check_admitted(schedule, busy, waiting_before)
        self._check_shared(schedule)
        self._check_prefill(schedule)
        self._check_decode(schedule)
        assert schedule.prefill or schedule.decode, "a step that does nothing"
        return schedule

    def _check_admitted(self, schedule: Schedule, busy: bool, waiting: list[Sequence]) -> None:
        limit = self.config.window if self.scheduler_name == "same-length" else self.config.batch_size
        assert len(self.running) <= limit, "more rows than the batch or the window holds"
        if self.config.sort_by_length:
            waiting = sorted(waiting, key=lambda row: row.seq_len)
        assert list(schedule.admitted) == waiting[: len(schedule.admitted)], "not in the order of arrival, or of length"
        assert schedule.refilled == (len(schedule.admitted) if busy else 0)
        if self.scheduler_name == "static":
            assert not (busy and schedule.admitted), "a static batch takes no new row"
        else:
            assert len(self.running) == limit or not self.waiting, "a free place was not taken"
        self.seen |= {"refilled"} if schedule.refilled else set()

    def _check_shared(self, schedule: Schedule) -> None:
        """What a row takes over is there, and is its own prompt without the pending token. Then it has it."""
        rows = {row.request_id: row for row in self.running}
        donors = rows | {row.request_id: row for row in self.ended}
        cached = {name: row.cached_len for name, row in donors.items()}
        for share in schedule.shared:
            row, donor = rows[share.request_id], donors[share.donor]
            assert row.cached_len == 0 < share.length < row.prompt_len
            assert share.length <= cached[share.donor], "the donor has not computed it"
            assert row.token_ids[: share.length] == donor.token_ids[: share.length]
            row.cached_len = share.length
            self.seen.add("taken over from a row that had ended" if donor in self.ended else "taken over")
        held_back = [row for row in self.running if row.prefill_left and row not in [r for r, _ in schedule.prefill]]
        if held_back and sum(length for _, length in schedule.prefill) < self.config.prefill_chunk:
            for row in held_back if self.scheduler_name == "continuous" else []:
                before = self.running[: self.running.index(row)]
                assert any(
                    other.prefill_left and other.token_ids[:LEAST] == row.token_ids[:LEAST] for other in before
                ), "a row waits for nobody"
                self.seen.add("waited for another row")
        self.ended = []

    def _check_prefill(self, schedule: Schedule) -> None:
        total = 0
        for row, length in schedule.prefill:
            assert row in self.running
            assert 1 <= length <= row.prefill_left
            total += length
        assert total <= max(self.config.prefill_chunk, len(schedule.prefill)), "more than the prefill budget"
        assert len(schedule.prefill) <= self.config.batch_size
        if self.scheduler_name == "continuous":
            assert total <= self.config.prefill_chunk
            self.seen |= {"prefilled beside decoding rows"} if schedule.prefill and schedule.decode else set()
        self.seen |= (
            {"a prompt in several chunks"}
            if any(length < row.prefill_left for row, length in schedule.prefill)
            else set()
        )

    def _check_decode(self, schedule: Schedule) -> None:
        rows = schedule.decode
        assert len(rows) <= self.config.batch_size
        assert len({row.request_id for row in rows}) == len(rows)
        assert all(row in self.running and row.prefill_left == 0 for row in rows), (
            "a row decodes before its prompt is computed"
        )
        ready = [row for row in self.running if not row.prefill_left]
        equal = len({row.seq_len for row in rows}) == 1 and len(rows) > 1
        assert schedule.grouped == (equal and self.scheduler_name == "same-length")
        if self.scheduler_name == "continuous":
            assert list(rows) == ready, "a ready row was left out"
        if self.scheduler_name == "static" and not schedule.prefill:
            assert list(rows) == ready
        if rows:
            self._check_patience(rows, ready)
            self.seen |= {"grouped"} if schedule.grouped else {"not grouped"} if len(rows) > 1 else set()

    def _check_patience(self, rows: tuple[Sequence, ...], ready: list[Sequence]) -> None:
        bound = getattr(self.scheduler, "patience", 0) + self.config.window
        for row in ready:
            self.waited[row.request_id] = 0 if row in rows else self.waited.get(row.request_id, 0) + 1
            assert self.waited[row.request_id] <= bound, f"{row.request_id} has waited for {bound} steps"
            if self.waited[row.request_id] >= getattr(self.scheduler, "patience", bound):
                self.seen.add("patience ran out")


EXPECTED = {
    "static": {"not grouped", "a prompt in several chunks"},
    "continuous": {
        "not grouped",
        "a prompt in several chunks",
        "refilled",
        "prefilled beside decoding rows",
        "taken over",
        "taken over from a row that had ended",
        "waited for another row",
    },
    "same-length": {"not grouped", "a prompt in several chunks", "refilled", "grouped", "patience ran out"},
}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_each_row_is_waiting_running_or_finished_once_and_is_served_in_time(scheduler):
    seen: set[str] = set()
    machine = type("Machine", (SchedulerMachine,), {"scheduler_name": scheduler, "seen": seen})
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=150, stateful_step_count=25, deadline=None, derandomize=True, database=None),
    )
    assert seen == EXPECTED[scheduler]


def test_a_row_of_odd_length_is_served_though_a_group_of_equal_length_is_always_larger():
    config = EngineConfig(scheduler="same-length", batch_size=2, window=5)
    scheduler = SCHEDULERS["same-length"](config)
    odd, *others = [sequence("odd", 1000), *(sequence(f"row{i}", 10) for i in range(4))]
    for row in (odd, *others):
        row.cached_len = row.prompt_len - 1
    scheduler.add([odd, *others])

    gaps, gap = [], 0
    for _ in range(200):
        schedule = scheduler.plan()
        apply(schedule, {})
        gaps, gap = ([*gaps, gap], 0) if odd in schedule.decode else (gaps, gap + 1)

    assert len(gaps) > 5, "the odd row starves"
    assert min(gaps) >= scheduler.patience, "the odd row was never left out: this test tests nothing"
    assert max(gaps) <= scheduler.patience + config.window
