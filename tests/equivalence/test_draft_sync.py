"""The draft model's cache holds committed tokens only, and all of them, whatever was accepted before."""

import pytest
import torch
from families import tiny_lm
from helpers import assert_equal, decode, noisy_copy, target, vary
from probes import PER_ROW, config, rows, solo

from specproof import Engine, Request
from specproof.reference import decode_reference


@pytest.mark.parametrize("method", PER_ROW)
def test_a_target_that_drafts_for_itself_is_accepted_always_over_a_long_run(method):
    requests = rows((3, 19, 1), limit=120)
    truth = vary(solo(target("llama"), requests))
    outputs, records, engine = decode(target("llama"), target("llama"), config(method), requests)
    assert_equal(outputs, truth, method)
    steps = [row for record in records for row in record.rows]
    wrong = [
        (row.request_id, row.start, row.drafted, row.num_accepted)
        for row in steps
        if row.num_accepted < len(row.drafted)
    ]
    assert not wrong, f"{method}: drafts of the target itself rejected, first {wrong[0]}"
    assert [output.num_steps for output in outputs] == [20, 20, 20], "full acceptance emits K + 1 tokens a step"
    assert engine.statistics.accepted == engine.statistics.drafted == 300


def test_a_target_that_drafts_for_itself_is_accepted_always_where_rows_are_cut_to_the_batch():
    requests = rows((3,), limit=61)
    outputs, _, engine = decode(target("llama"), target("llama"), config("rollback"), requests)
    assert_equal(outputs, solo(target("llama"), requests), "rollback")
    assert engine.statistics.accepted == engine.statistics.drafted == 50


@pytest.mark.parametrize("layout", ["slotted", "left-padded"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_every_draft_is_what_the_draft_model_would_say_with_a_fresh_cache(layout, k):
    """After full acceptance, partial acceptance and rejection, in one step and in turn: no token lost, none left."""
    draft = noisy_copy("llama")
    requests = rows((4, 13, 1, 7), limit=60)
    outputs, records, _ = decode(
        target("llama"), draft, config("specproof", layout=layout, num_draft_tokens=k), requests
    )
    assert_equal(outputs, vary(solo(target("llama"), requests)), layout)
    known = {r.request_id: [*r.prompt_ids, *o.token_ids] for r, o in zip(requests, outputs, strict=True)}
    full = partial = mixed = 0
    for record in records:
        kinds = {row.num_accepted == k for row in record.rows if len(row.drafted) == k}
        full, partial, mixed = full + (True in kinds), partial + (False in kinds), mixed + (len(kinds) == 2)
        for row in record.rows:
            if row.drafted:
                prefix = known[row.request_id][: row.start + 1]
                fresh = decode_reference(draft, Request(prefix, max_new_tokens=len(row.drafted))).token_ids
                assert row.drafted == fresh, (
                    f"step {record.index}, {row.request_id} at {row.start}: stale draft cache; {layout}"
                )
    assert min(full, partial, mixed) >= 2, f"full {full}, partial {partial}, both in one step {mixed}"


@pytest.mark.parametrize("method", PER_ROW)
def test_acceptance_does_not_fall_as_a_row_grows(method):
    requests = rows((3, 8, 5), limit=130)
    outputs, records, _ = decode(target("llama"), noisy_copy("llama"), config(method), requests)
    assert_equal(outputs, vary(solo(target("llama"), requests)), method)
    thirds: list[list[int]] = [[], [], []]
    for row in (row for record in records for row in record.rows):
        thirds[min(2, 3 * row.start // 130)].append(row.num_accepted)
    first, _, last = (sum(third) / len(third) for third in thirds)
    assert 0.3 < first < 4.5, "a draft that is never or always right shows no trend"
    assert last > first / 2, f"mean acceptance by thirds: {[round(sum(t) / len(t), 2) for t in thirds]}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method", PER_ROW)
def test_a_draft_of_another_dtype_changes_acceptance_only(method, dtype):
    draft = tiny_lm("llama", seed=1, dtype=dtype)  # the target's own weights, rounded
    requests = rows((3, 30), limit=20)
    outputs, _, engine = decode(target("llama"), draft, config(method), requests)
    assert draft.dtype != target("llama").dtype
    assert engine.statistics.accepted > 10
    assert_equal(outputs, vary(solo(target("llama"), requests)), (method, dtype))


@pytest.mark.parametrize("method", PER_ROW)
def test_a_draft_with_a_shorter_context_drafts_as_far_as_it_reaches(method):
    short = tiny_lm("llama", seed=1, max_position_embeddings=32)  # the target but for its context
    requests = rows((4, 20, 31, 40), limit=40)
    outputs, records, _ = decode(target("llama"), short, config(method), requests)
    assert_equal(outputs, vary(solo(target("llama"), requests)), method)
    reach = max(row.start + len(row.drafted) for record in records for row in record.rows if row.drafted)
    assert reach == 32, "the last draft is chosen at the last position that the draft model has"
    assert all(not row.drafted for record in records for row in record.rows if row.start >= 32)
    assert {row.request_id for record in records for row in record.rows if row.drafted} == {"row0", "row1", "row2"}
    assert all(row.num_accepted == len(row.drafted) for record in records for row in record.rows)


def test_rows_that_the_draft_model_has_not_seen_for_some_steps_are_caught_up():
    """The same-length scheduler leaves rows out; their drafts must be as good when they come back."""
    requests = rows((3, 8, 3, 8, 20), limit=25)
    outputs, records, engine = decode(
        target("llama"), target("llama"), config("exspec", batch_size=2, window=5), requests
    )
    assert_equal(outputs, vary(solo(target("llama"), requests)), "exspec")
    assert any(0 < len(record.rows) < 5 for record in records)
    assert engine.statistics.accepted == engine.statistics.drafted > 50


def test_the_draft_model_is_told_of_the_end_of_every_row():
    engine = Engine(target("llama"), noisy_copy("llama"), config("specproof"))
    engine.generate(rows((3, 9, 1, 4, 5), limit=6))
    drafter = engine.drafter
    assert not drafter._cached  # type: ignore[union-attr]
    assert drafter.layout.nbytes == 0  # type: ignore[union-attr]
