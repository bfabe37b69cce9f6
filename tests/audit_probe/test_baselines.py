"""Which defect alone corrupts what, at batch 1 and batch 4, on rotary and on mask-derived positions."""

import dataclasses
from pathlib import Path

import pytest
import torch
from families import VOCAB, tiny_lm
from probe_subjects import BATCHES, LIMIT, LOOPS, PROMPTS, references, run
from table import tiny

from specproof.baselines.rounds import Drafting

CLEAN = "exact in every row, and no alarm"
FAMILIES = ("llama", "opt")
# The first violated invariant: Llama at batch 1 and 4, OPT at batch 1 and 4. CLEAN: exact, and nothing to name.
EXPECTED: dict[str, tuple[str, str, str, str]] = {
    "masked holes": (CLEAN,) * 4,
    "BSP, no defect": (CLEAN,) * 4,
    "BSP, no position ids": ("positions-contiguous", "positions-contiguous", CLEAN, CLEAN),
    "BSP, rejected KV visible": ("mask-exact",) * 4,
    "BSP, no mask": ("mask-exact",) * 4,
    "BSP, bonus from the draft": ("commitment",) * 4,
    "BSP as in the paper": ("positions-contiguous", "positions-contiguous", CLEAN, CLEAN),
    "DSD, no defect": (CLEAN,) * 4,
    "DSD, no KV kept": (CLEAN,) * 4,
    "DSD, bonus from the draft": ("commitment",) * 4,
    "DSD, no position ids": (CLEAN, "positions-contiguous", CLEAN, CLEAN),
    "DSD, no KV kept, no position ids": (CLEAN,) * 4,
    "DSD, no mask": (CLEAN, "mask-exact", CLEAN, "mask-exact"),
    "DSD, KV not realigned": (CLEAN, "kv-matches", CLEAN, "kv-matches"),
    "DSD, repad without unpad": (CLEAN,) * 4,
    "DSD, 0 is padding by value": ("mask-exact",) * 4,
    "DSD, ends with the fastest row": (CLEAN, "termination", CLEAN, "termination"),
    "DSD as in the paper": ("commitment", "mask-exact", "commitment", "mask-exact"),
}
CASES = [
    pytest.param(name, family, batch, EXPECTED[name][2 * f + b], id=f"{name}-{family}-{batch}")
    for name in LOOPS
    for f, family in enumerate(FAMILIES)
    for b, batch in enumerate(BATCHES)
]
BROKEN = [case for case in CASES if case.values[3] != CLEAN]


def test_every_loop_and_every_single_switch_is_in_the_table():
    assert set(EXPECTED) == set(LOOPS)
    for kind in ("Bsp", "Dsd"):
        loops = [loop for loop in LOOPS.values() if type(loop).__name__ == kind]
        switches = {field.name for field in dataclasses.fields(loops[0]) if isinstance(field.default, bool)}
        alone = {frozenset(s for s in switches if getattr(loop, s)) for loop in loops}
        missing = {s for s in switches if frozenset([s]) not in alone} - {"no_stop"}  # harmless without an end token
        assert not missing, f"{kind}: no loop has only {missing}"


@pytest.mark.parametrize(("name", "family", "batch", "expected"), CASES)
def test_exactly_the_loops_with_a_defect_that_bites_are_inexact_and_alarmed(name, family, batch, expected):
    found = run(name, family, batch)
    assert (found.exact == len(PROMPTS)) == (expected == CLEAN), found.diverged
    assert any(found.named) == (expected != CLEAN), found.first
    assert all(report.unknown == 0 for report in found.reports)


@pytest.mark.parametrize(("name", "family", "batch", "expected"), BROKEN)
def test_the_first_violation_is_named_after_the_defect(name, family, batch, expected):
    found = run(name, family, batch)
    assert {named for named in found.named if named} == {expected}, [str(report) for report in found.reports]


@pytest.mark.parametrize(("name", "family", "batch", "expected"), CASES)
def test_a_batch_with_a_wrong_row_is_never_without_an_alarm(name, family, batch, expected):
    found = run(name, family, batch)
    for start, named in zip(range(0, len(PROMPTS), batch), found.named, strict=True):
        wrong = [at for at in found.diverged[start : start + batch] if at is not None]
        assert not wrong or named, f"rows from {start} diverge at {wrong}, unseen"


def test_a_bonus_from_the_draft_fails_at_once_but_column_positions_only_after_the_first_rejection():
    for family in FAMILIES:
        bonus = [at for at in run("DSD, bonus from the draft", family, 1).diverged if at is not None]
        assert min(bonus) == 0
        assert sorted(bonus)[len(bonus) // 2] <= LIMIT // 8
    columns = run("BSP, no position ids", "llama", 1).diverged
    assert all(at is not None and at >= 1 for at in columns)


def test_implicit_positions_break_prompts_of_unequal_length_at_the_first_token_at_batch_4_only():
    assert 0 in run("BSP, no position ids", "llama", 4).diverged
    assert 0 not in run("BSP, no position ids", "llama", 1).diverged


def test_column_positions_survive_padding_but_not_moving_kv_between_columns():
    """A constant offset is harmless for rotary positions; a row whose KV moves gets a gap."""
    assert run("DSD, no KV kept, no position ids", "llama", 4).exact == len(PROMPTS)
    moved = run("DSD, no position ids", "llama", 4)
    assert moved.first is not None
    assert moved.first.step >= 2, "prefill and the first step come before anything has moved"


def test_an_early_stop_leaves_rows_right_but_short():
    for family in FAMILIES:
        found = run("DSD, ends with the fastest row", family, 4)
        assert found.first is not None
        assert found.first.found < found.first.expected == LIMIT


def test_the_references_vary():
    for family in FAMILIES:
        assert len({token for reference in references(family) for token in reference.token_ids}) >= 12


def test_the_table_of_the_docs_is_the_measured_one():
    text = (Path(__file__).parents[2] / "docs" / "baselines.md").read_text()
    for line in tiny():
        assert line in text, f"docs/baselines.md lacks: {line}"


def test_the_loops_drafter_gives_the_drafts_own_continuation_of_rows_that_grow_unevenly():
    draft = tiny_lm("llama", seed=2).model
    rows = [list(prompt) for prompt in PROMPTS[:4]]
    drafting = Drafting(draft, len(rows), pad_id=0)
    seen = set()
    for kept in ((3, 1, 2, 1), (1, 4, 1, 2), (2, 2, 4, 1), (1, 1, 1, 1)):
        proposed = drafting.propose(rows, 4).tolist()
        for i, row in enumerate(rows):
            assert proposed[i] == greedy(draft, row, 4)
            row += [*proposed[i][: kept[i] - 1], (sum(row) + i) % VOCAB]  # the last one may be another's choice
        seen |= {tuple(drafts) for drafts in proposed}
    assert len(seen) > 8


def greedy(model, row: list[int], count: int) -> list[int]:
    """By whole forwards, without a cache."""
    ids = list(row)
    for _ in range(count):
        with torch.inference_mode():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(row) :]
