"""No row depends on another: not on its neighbours, their number, their order, or on who had its slot before."""

import pytest
from families import tiny_lm
from helpers import assert_equal, decode, noisy_copy, target, vary
from probes import PER_ROW, SPECULATIVE, config, prompt, right, rows, solo, with_eos

from specproof import Engine, Request
from specproof.drafters import PromptLookup, Scripted


def some_draft(row):
    """row0 and row3 never draft, the others do, with uneven success."""
    return 0 if row.request_id in ("row0", "row3") else (2 * len(row.token_ids)) % 5


@pytest.mark.parametrize("method", SPECULATIVE)
def test_rows_without_drafts_may_stand_anywhere_among_rows_that_draft(method):
    requests = rows((4, 11, 2, 8), limit=18)
    truth = vary(solo(target("llama"), requests))
    drafter = right(some_draft, wrong=False)
    for order in ([0, 1, 2, 3], [1, 0, 3, 2], [3, 0, 1, 2], [2, 1, 0, 3]):
        outputs, records, _ = decode(target("llama"), drafter, config(method), [requests[i] for i in order])
        counts = [{bool(row.drafted) for row in record.rows} for record in records]
        assert sum(len(kinds) == 2 for kinds in counts) >= 3, "no step mixed rows with and without drafts"
        assert all(not row.drafted for record in records for row in record.rows if row.request_id in ("row0", "row3"))
        assert_equal(outputs, [truth[i] for i in order], (method, order))


@pytest.mark.parametrize("method", SPECULATIVE)
def test_permuting_replacing_and_removing_neighbours_changes_no_row(method):
    requests = rows((5, 17, 1, 9, 30, 3), limit=14)
    truth = {r.request_id: t for r, t in zip(requests, vary(solo(target("llama"), requests)), strict=True)}
    others = [Request(prompt(n, 40 + n), max_new_tokens=9, request_id=f"other{n}") for n in (2, 21, 6)]
    batches = [
        requests,
        requests[::-1],
        requests[2:] + requests[:2],
        [requests[0], *others, requests[4]],
        [others[0], requests[1]],
        [requests[3]],
    ]
    for number, batch in enumerate(batches):
        drafter = right(lambda row: len(row.token_ids) % 4)
        outputs, _, engine = decode(target("llama"), drafter, config(method, batch_size=3, window=4), batch)
        assert engine.statistics.accepted
        kept = [(output, truth[output.request_id]) for output in outputs if output.request_id in truth]
        assert_equal([o for o, _ in kept], [t for _, t in kept], (method, f"batch {number}"))


@pytest.mark.parametrize("method", ["target-only", *SPECULATIVE])
def test_the_same_prompts_at_any_batch_size(method):
    requests = rows((5, 17, 1, 9, 30, 3, 12), limit=12)
    truth = vary(solo(target("llama"), requests))
    for batch_size in (1, 2, 4, 16):
        drafter = None if method == "target-only" else PromptLookup()
        outputs, _, _ = decode(target("llama"), drafter, config(method, batch_size=batch_size, window=16), requests)
        assert_equal(outputs, truth, (method, f"batch size {batch_size}"))


@pytest.mark.parametrize("method", PER_ROW)
def test_a_rows_drafts_and_acceptance_are_the_same_alone_and_in_a_padded_batch(method):
    requests = rows((5, 33, 1, 9), limit=20)
    truth = vary(solo(target("llama"), requests))
    together, records, _ = decode(target("llama"), noisy_copy("llama"), config(method), requests)
    assert_equal(together, truth, method)
    assert len({output.num_accepted for output in together}) > 1, "all rows accept alike"
    for request, output in zip(requests, together, strict=True):
        (alone,), steps, _ = decode(target("llama"), noisy_copy("llama"), config(method), [request])
        ours = [
            (row.drafted, row.num_accepted)
            for record in records
            for row in record.rows
            if row.request_id == request.request_id
        ]
        assert ours == [(row.drafted, row.num_accepted) for record in steps for row in record.rows]
        assert alone == output


@pytest.mark.parametrize("method", SPECULATIVE)
def test_rows_that_finish_after_one_five_and_a_hundred_tokens_leave_the_others_alone(method):
    prompts = [prompt(n, seed) for seed, n in enumerate((4, 7, 3, 12, 2, 5))]
    limits = (1, 5, 100, 1, 33, 2)
    requests = [
        Request(p, max_new_tokens=n, request_id=f"row{i}") for i, (p, n) in enumerate(zip(prompts, limits, strict=True))
    ]
    truth = vary(solo(target("llama"), requests))
    drafter = right(lambda row: len(row.token_ids) % 5)
    outputs, _, engine = decode(target("llama"), drafter, config(method, batch_size=2, window=3), requests)
    assert_equal(outputs, truth, method)
    assert [len(output.token_ids) for output in outputs] == list(limits)
    assert engine.statistics.finished == 6
    assert (engine.statistics.refilled > 0) == (method in ("specproof", "exspec"))


@pytest.mark.parametrize("method", SPECULATIVE)
def test_one_rows_end_id_does_not_end_its_neighbours(method):
    requests = rows((4, 7, 3), limit=30)
    free = solo(target("llama"), requests)
    eos = next(t for t in free[1].token_ids[3:] if t not in free[0].token_ids)
    lm = with_eos(target("llama"), [eos])
    truth = solo(lm, requests)
    assert [r.finish_reason for r in truth[:2]] == ["length", "stop"]
    outputs, _, _ = decode(lm, right(99), config(method), requests)
    assert_equal(outputs, truth, method)


@pytest.mark.parametrize("method", SPECULATIVE)
def test_a_freed_slot_shows_nothing_of_the_row_that_had_it(method):
    """A long row leaves its slot to short ones, within one run and from run to run."""
    requests = rows((50, 2, 1, 45, 3, 2), limit=10)
    truth = vary(solo(target("llama"), requests))
    engine = Engine(target("llama"), noisy_copy("llama"), config(method, batch_size=1, window=1))
    for run in range(2):
        assert_equal(engine.generate(requests), truth, (method, f"run {run}"))
    assert engine.layout.nbytes == engine.drafter.layout.nbytes == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("method", SPECULATIVE)
def test_shared_prefixes_and_duplicates_are_rows_like_any_others(method):
    shared = prompt(14)
    requests = [Request([*shared, i + 1], max_new_tokens=12, request_id=f"row{i}") for i in range(4)]
    requests += [Request(requests[0].prompt_ids, max_new_tokens=12, request_id=f"again{i}") for i in range(3)]
    truth = vary(solo(target("llama"), requests))
    engine = Engine(target("llama"), noisy_copy("llama"), config(method))
    cold = engine.generate(requests)
    assert_equal(cold, truth, (method, "cold"))
    assert len({output.token_ids for output in cold[:4]}) > 1, "the last prompt token changes nothing"
    assert engine.generate(requests) == cold, "a second run differs from the first"


@pytest.mark.parametrize("method", SPECULATIVE)
def test_one_row_and_fewer_rows_than_the_batch_holds(method):
    for lengths in ((6,), (6, 1, 13)):
        requests = rows(lengths, limit=15)
        outputs, _, _ = decode(target("llama"), right(3), config(method, batch_size=16, window=16), requests)
        assert_equal(outputs, solo(target("llama"), requests), (method, lengths))


@pytest.mark.parametrize("method", ["specproof", "exspec"])
def test_three_hundred_rows_come_back_each_once_in_their_order(method):
    lm = tiny_lm("llama", seed=1, num_hidden_layers=1)
    requests = [Request(prompt(1 + i % 13, i), max_new_tokens=1 + i % 5) for i in range(300)]
    outputs, records, engine = decode(lm, PromptLookup(), config(method, batch_size=16, window=24), requests)
    assert [output.request_id for output in outputs] == [str(i) for i in range(300)]
    finished = [output.request_id for record in records for output in record.finished]
    assert sorted(finished, key=int) == [str(i) for i in range(300)]
    assert finished != sorted(finished, key=int), "all rows finished in the order they came"
    assert engine.statistics.refilled == 300 - (16 if method == "specproof" else 24)
    sample = range(0, 300, 7)
    assert_equal([outputs[i] for i in sample], vary(solo(lm, [requests[i] for i in sample])), method)


def test_a_drafter_sees_only_rows_that_can_use_a_draft_and_their_true_tokens():
    requests = rows((4, 2, 6), limit=7)
    truth = {
        r.request_id: [*r.prompt_ids, *t.token_ids]
        for r, t in zip(requests, solo(target("llama"), requests), strict=True)
    }
    seen = []

    def script(row, k):
        seen.append((row.request_id, len(row.token_ids), row.max_tokens))
        assert list(row.token_ids) == truth[row.request_id][: len(row.token_ids)]
        return []

    decode(target("llama"), Scripted(script), config("specproof"), requests)
    left = [len(truth[name]) - length for name, length, _ in seen]
    assert min(left) == 2, "asked about a row whose last token needs no draft"
    assert all(most == min(5, rest - 1) for (_, _, most), rest in zip(seen, left, strict=True))
