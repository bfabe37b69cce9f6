"""One fault in a loop that is right otherwise: its invariant is named, at its step and in its row."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from probe_subjects import target
from torch import Tensor

from specproof.audit.probe import Probe, ProbeReport
from specproof.baselines import rounds

FAULT_STEP = 3  # forwards are counted from 0, which is the prefill
PROMPTS = [[5, 17, 40], [9, 8, 7, 6, 5, 4, 3], [33, 2, 19]]
WRONG = 2  # drafts of each round, all thrown away


@dataclass
class Now:
    """What the next forward will be given. A fault changes it."""

    step: int
    ids: Tensor  # (B, 1 + WRONG)
    mask: Tensor  # (B, cached + 1 + WRONG); a fault may put a 4-D one here
    positions: Tensor  # (B, 1 + WRONG)
    cache: Any
    padding: list[int]

    def cut(self, columns: Tensor) -> None:
        """Only these columns of the cache stay."""
        for layer in self.cache.layers:
            layer.keys, layer.values = layer.keys[:, :, columns], layer.values[:, :, columns]


@torch.inference_mode()
def decode(model, prompts, fault: Callable[[Now], None], known: bool = True) -> ProbeReport:
    """Left-padded, greedy; two drafts behind each pending token are computed and dropped again."""
    with Probe(model, prompts if known else None) as probe:
        ids, mask = rounds.pad_left(prompts, 0, model.device)
        padding = (~mask).sum(1).tolist()
        now = Now(0, ids, mask, rounds.positions(mask, ids.shape[1]), None, padding)
        fault(now)
        logits, cache = rounds.forward(model, now.ids, now.mask, now.positions, None)
        for step in range(1, 7):
            pending = logits.argmax(-1)[:, -1 if step == 1 else 0]  # (B,)
            if step > 1:
                cache.crop(-WRONG)
            ids = torch.stack([pending, (pending + 1) % 61, (pending + 2) % 61], 1)
            mask = torch.cat([mask, mask.new_ones(len(prompts), 1)], 1)
            wide = torch.cat([mask, mask.new_ones(len(prompts), WRONG)], 1)
            now = Now(step, ids, wide.clone(), rounds.positions(wide, WRONG + 1), cache, padding)
            fault(now)
            logits, cache = rounds.forward(model, now.ids, now.mask, now.positions, now.cache)
            if now.step < 0:
                break
    return probe.report()


def at_fault_step(change: Callable[[Now], None]) -> Callable[[Now], None]:
    def fault(now: Now) -> None:
        if now.step == FAULT_STEP:
            change(now)
            now.step = -1  # the loop ends after it

    return fault


def hide_oldest(now: Now) -> None:
    for row, count in enumerate(now.padding):
        now.mask[row, count] = False


def hide_pending(now: Now) -> None:
    now.mask[:, -1 - WRONG] = False


def hide_middle(now: Now) -> None:
    now.mask[:, -4 - WRONG] = False


def show_padding(now: Now) -> None:
    now.mask[0, now.padding[0] - 1] = True


def no_mask_at_all(now: Now) -> None:
    now.mask = torch.ones_like(now.mask)


def see_the_future(now: Now) -> None:
    """A 4-D mask without the triangle: the pending token sees the drafts behind it."""
    n = now.ids.shape[1]
    now.mask = now.mask[:, None, None, :].expand(-1, 1, n, -1).clone()


def four_dimensions(now: Now) -> None:
    """Not a fault: the same mask, given in full."""
    n, total = now.ids.shape[1], now.mask.shape[1]
    causal = torch.ones(n, total, dtype=torch.bool).tril(total - n)
    now.mask = now.mask[:, None, None, :] & causal


def offset(now: Now) -> None:
    now.positions += 1


def behind(now: Now) -> None:
    now.positions -= 1


def shared(now: Now) -> None:
    now.positions[:] = now.positions[:1].clone()


def gap_among_drafts(now: Now) -> None:
    now.positions[:, 1:] += 1


def column_positions(now: Now) -> None:
    now.positions = torch.arange(now.mask.shape[1])[None, -WRONG - 1 :].repeat(len(now.ids), 1)


def crop_one_too_many(now: Now) -> None:
    now.cut(torch.arange(now.mask.shape[1] - WRONG - 2))
    now.mask = torch.cat([now.mask[:, : -WRONG - 2], now.mask[:, -WRONG - 1 :]], 1)


def rows_swapped(now: Now) -> None:
    order = torch.tensor([2, 1, 0])
    for layer in now.cache.layers:
        layer.keys, layer.values = layer.keys[order], layer.values[order]


def neighbours_column(now: Now) -> None:
    for layer in now.cache.layers:
        layer.keys[0, :, -2], layer.values[0, :, -2] = layer.keys[1, :, -2], layer.values[1, :, -2]


def zeroed_column(now: Now) -> None:
    for layer in now.cache.layers:
        layer.keys[1, :, 2] = layer.values[1, :, 2] = 0


def columns_doubled(now: Now) -> None:
    columns = torch.arange(now.mask.shape[1] - WRONG - 1)
    columns[-1] = columns[-2]
    now.cut(columns)


def another_token(now: Now) -> None:
    now.ids[1, 0] = (now.ids[1, 0] + 1) % 61


FAULTS: dict[Callable[[Now], None], str] = {
    hide_oldest: "mask-exact",
    hide_pending: "mask-exact",
    hide_middle: "mask-exact",
    show_padding: "mask-exact",
    no_mask_at_all: "mask-exact",
    see_the_future: "mask-exact",
    offset: "positions-contiguous",
    behind: "positions-contiguous",
    shared: "positions-contiguous",
    gap_among_drafts: "positions-contiguous",
    column_positions: "positions-contiguous",
    crop_one_too_many: "positions-contiguous",
    rows_swapped: "kv-matches",
    neighbours_column: "kv-matches",
    zeroed_column: "kv-matches",
    columns_doubled: "kv-matches",
    another_token: "commitment",
}


@pytest.mark.parametrize("known", [True, False], ids=["prompts known", "prompts unknown"])
@pytest.mark.parametrize("family", ["llama", "opt"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_caught_by_its_name_at_its_step(fault, family, known):
    report = decode(target(family).model, PROMPTS, at_fault_step(fault), known)
    assert report.first is not None
    assert (report.first.invariant, report.first.step) == (FAULTS[fault], FAULT_STEP), str(report)
    if fault in (show_padding, no_mask_at_all, column_positions, neighbours_column):
        assert report.first.row == "0"
    if fault in (shared, zeroed_column, another_token):
        assert report.first.row == "1"


@pytest.mark.parametrize("harmless", [lambda now: None, four_dimensions], ids=["2-D masks", "4-D masks"])
@pytest.mark.parametrize("family", ["llama", "opt"])
def test_the_loop_without_a_fault_gives_no_alarm(family, harmless):
    report = decode(target(family).model, PROMPTS, harmless)
    assert (report.first, report.forwards, report.unknown) == (None, 7, 0), str(report)


@pytest.mark.parametrize("family", ["llama", "opt"])
def test_a_rejected_token_left_in_the_cache_is_a_mask_that_shows_too_much(family):
    """Crop one too few: with the right positions it is a double, with column positions it takes another's place."""
    model = target(family).model
    for true_positions in (True, False):
        with Probe(model, [PROMPTS[1]]) as probe:
            logits, cache = rounds.forward(model, torch.tensor([PROMPTS[1]]), None, None, None)
            first = int(logits[0, -1].argmax())
            logits, cache = rounds.forward(model, torch.tensor([[first, (first + 1) % 61]]), None, None, cache)
            second = int(logits[0, 0].argmax())
            assert second != (first + 1) % 61, "the draft has to be wrong here"
            at = torch.tensor([[len(PROMPTS[1]) + 1]]) if true_positions else None
            rounds.forward(model, torch.tensor([[second]]), None, at, cache)
        first_found = probe.report().first
        assert first_found is not None
        assert (first_found.invariant, first_found.step) == ("mask-exact", 2)


@pytest.mark.parametrize(("family", "expected"), [("llama", ""), ("gpt_neox", ""), ("opt", "yes"), ("gpt2", "yes")])
def test_a_constant_offset_of_positions_is_harmless_for_rotary_positions_only(family, expected):
    report = decode(target(family).model, PROMPTS, lambda now: now.positions.add_(3))
    assert bool(report.first) == bool(expected), str(report)
    if report.first:
        assert (report.first.invariant, report.first.step) == ("positions-contiguous", 0)


def test_rows_fed_in_another_order_than_the_prompts_are_not_aligned():
    model = target("llama").model
    with Probe(model, [[1, 2, 3], [4, 5, 6]]) as probe:
        rounds.forward(model, torch.tensor([[4, 5, 6], [1, 2, 3]]), None, None, None)
    report = probe.report()
    assert report.first is not None
    assert report.first.invariant == "aligned"


def test_outputs_that_are_not_what_the_target_chose_or_do_not_end_right_are_named():
    model = target("llama").model
    prompt = PROMPTS[1]
    with Probe(model, [prompt], max_new_tokens=6) as probe:
        out = model.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False, pad_token_id=0)
    right = out[0, len(prompt) :].tolist()
    assert probe.report([right]).first is None
    for outputs, name in (
        ([*right[:2], (right[2] + 1) % 61, *right[3:]], "commitment"),
        (right[:4], "termination"),
    ):
        first = probe.report([outputs]).first
        assert first is not None
        assert first.invariant == name
