"""Rows in cells: who lies where, and how much memory that takes."""

import pytest
import torch

from specproof.kv.slots import Slots


def write(slots: Slots, row: str, values: list[float]) -> None:
    index = slots.slot(row) * slots.cells.capacity + torch.arange(len(values))
    states = torch.tensor(values)[None, :, None]  # (H, N, D)
    slots.cells.write(0, index, states, -states)


def read(slots: Slots, row: str, length: int) -> list[float]:
    keys, values = slots.cells.view(0)
    assert torch.equal(keys, -values)
    return keys[slots.slot(row), 0, :length, 0].tolist()


def test_content_survives_growing_shrinking_and_moving_to_another_slot():
    slots = Slots()
    for row in ("a", "b", "c"):
        slots.admit(row, 2)
    slots.reserve({"a": 2, "b": 2, "c": 2})
    for i, row in enumerate(("a", "b", "c")):
        write(slots, row, [10.0 * i, 10.0 * i + 1])
    slots.reserve({"c": 40})
    assert slots.cells.capacity >= 40
    assert [read(slots, row, 2) for row in ("a", "b", "c")] == [[0, 1], [10, 11], [20, 21]]
    slots.release("c")
    slots.release("a")
    slots.reserve({"b": 3})
    assert (slots.cells.rows, slots.slot("b")) == (1, 0)
    assert slots.cells.capacity == 3
    assert read(slots, "b", 2) == [10, 11]


def test_memory_follows_the_longest_live_row_by_a_quarter_at_most():
    slots = Slots()
    slots.admit("long", 3)
    slots.admit("short", 3)
    for need in [*range(1, 300), 1000]:
        slots.reserve({"long": need, "short": 1})
        assert max(3, need) <= slots.cells.capacity <= 1.25 * max(3, need)
    slots.release("long")
    slots.reserve({"short": 8})
    assert 8 <= slots.cells.capacity <= 10
    assert slots.cells.rows == 1
    slots.clear()
    assert (slots.cells.nbytes, slots.cells.rows, slots.cells.capacity) == (0, 0, 0)


def test_a_row_takes_over_what_another_has_or_had_until_the_next_reserve():
    """All copies see what was there before: slot 0 is copied from and written to."""
    slots = Slots()
    for row in ("a", "b"):
        slots.admit(row, 4)
    slots.reserve({"a": 4, "b": 4})
    write(slots, "a", [1, 2, 3, 4])
    write(slots, "b", [5, 6, 7, 8])
    slots.release("a")
    slots.release("b")
    for row, donor, length in (("c", "b", 2), ("d", "a", 3)):
        slots.admit(row, 4)
        slots.share(row, donor, length)
    slots.reserve({"c": 4, "d": 4})
    assert (slots.slot("c"), slots.slot("d")) == (0, 1)
    assert (read(slots, "c", 2), read(slots, "d", 3)) == ([5, 6], [1, 2, 3])
    slots.admit("e", 4)
    slots.share("e", "d", 3)
    slots.release("d")
    slots.reserve({"e": 40})
    assert (read(slots, "c", 2), read(slots, "e", 3)) == ([5, 6], [1, 2, 3]), "moved to memory of another size"
    with pytest.raises(KeyError):
        slots.share("c", "d", 1)


def test_a_row_in_the_slot_of_its_donor_takes_over_without_a_copy(monkeypatch):
    slots = Slots()
    slots.admit("a", 4)
    slots.reserve({"a": 4})
    write(slots, "a", [1, 2, 3])
    slots.release("a")
    slots.admit("b", 4)
    slots.share("b", "a", 2)
    monkeypatch.setattr(slots.cells, "copy_from", None)
    slots.reserve({"b": 4})
    assert read(slots, "b", 2) == [1, 2]


def test_memory_grows_rarely():
    slots = Slots()
    slots.admit("row", 1)
    shapes = []
    for need in range(1, 1001):
        slots.reserve({"row": need})
        shapes.append(slots.cells.capacity)
    assert len(set(shapes)) < 50, "moved too often"


def test_a_freed_slot_is_taken_by_the_next_row_without_moving_anything():
    slots = Slots()
    for row in ("a", "b"):
        slots.admit(row, 4)
    slots.reserve({"a": 4, "b": 4})
    write(slots, "a", [1.0])
    write(slots, "b", [2.0])
    before = slots.cells.keys[0].data_ptr()
    slots.release("a")
    slots.admit("c", 4)
    slots.reserve({"b": 4, "c": 4})
    assert slots.slot("c") == 0
    assert slots.cells.keys[0].data_ptr() == before
    assert read(slots, "b", 1) == [2]


def test_a_row_without_a_slot_gets_one_that_was_freed_later():
    """Once forgotten: as many rows as slots, but one of them admitted before there was a free one."""
    slots = Slots()
    for row in ("a", "b"):
        slots.admit(row, 4)
    slots.reserve({"a": 4, "b": 4})
    write(slots, "a", [1.0])
    write(slots, "b", [2.0])
    slots.admit("late", 4)
    slots.release("a")
    slots.reserve({"b": 4})
    assert {slots.slot("b"), slots.slot("late")} == {0, 1}
    assert read(slots, "b", 1) == [2]
