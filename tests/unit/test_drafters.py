"""Everything that proposes tokens, and the check of what is proposed."""

from itertools import product

import pytest
import torch
from families import VOCAB, tiny_lm
from helpers import REQUESTS, assert_equal, noisy_copy, references, target
from hypothesis import given, settings
from hypothesis import strategies as st

from specproof import Engine, EngineConfig, Request
from specproof.drafters import DeviceDrafts, DraftRow, ModelDrafter, PromptLookup, Scripted, StatefulDrafter
from specproof.drafters.drafter import Confidence, HostDrafts
from specproof.drafters.proposal import check_proposal
from specproof.errors import DrafterError
from specproof.kv import LAYOUTS, Slotted
from specproof.reference import decode_reference

# --- prompt lookup --------------------------------------------------------------------------------------------------


def naive_lookup(ids: list[int], count: int, longest: int, shortest: int) -> list[int]:
    """Straight from the definition: longest tail first, latest earlier occurrence first."""
    for size in range(longest, shortest - 1, -1):
        for start in reversed(range(len(ids) - size)):
            if ids[start : start + size] == ids[len(ids) - size :]:
                return ids[start + size : start + size + count]
    return []


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    ids=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    count=st.integers(0, 6),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4)).map(sorted),
)
def test_prompt_lookup_finds_what_its_definition_says(ids, count, sizes):
    shortest, longest = sizes
    lookup = PromptLookup(max_ngram=longest, min_ngram=shortest)
    row = DraftRow("row", tuple(ids), max_tokens=count)
    assert lookup.propose([row], 6).ids == [naive_lookup(ids, count, longest, shortest)]


def test_prompt_lookup_takes_the_longest_tail_and_its_latest_occurrence():
    ids = (1, 2, 7, 9, 2, 8, 1, 2, 5, 2, 6, 1, 2)
    rows = [
        DraftRow("a", ids, 3),
        DraftRow("b", (1,), 3),
        DraftRow("c", (4, 4), 3),
        DraftRow("d", (1, 2, 3), 3),
        DraftRow("e", ids, 1),
    ]
    assert PromptLookup().propose(rows, 3).ids == [[5, 2, 6], [], [4], [], [5]]
    assert PromptLookup(max_ngram=1).propose(rows[:1], 3).ids == [[6, 1, 2]]


# --- a model that drafts --------------------------------------------------------------------------------------------


class Ledger:
    """A layout that notes which token each row's cells stand for, and what each forward fed."""

    def __init__(self, layout) -> None:
        self.layout = layout
        self.cells: dict[str, list[int]] = {}
        self.fed: list[dict[str, int]] = []  # per forward, row -> tokens

    def admit(self, row, length):
        self.cells[row] = []
        self.layout.admit(row, length)

    def release(self, row):
        del self.cells[row]
        self.layout.release(row)

    def clear(self):
        self.layout.clear()

    def forward(self, feeds, device_ids=None):
        device = [] if device_ids is None else device_ids.tolist()
        for feed in feeds:
            own, device = device[: feed.num_device], device[feed.num_device :]
            assert len(self.cells[feed.row]) >= feed.start, "a gap in the row's KV"
            self.cells[feed.row][feed.start :] = [*feed.tokens, *own]
        assert not device
        self.fed.append({feed.row: feed.length for feed in feeds})
        return self.layout.forward(feeds, device_ids)

    @property
    def nbytes(self):
        return self.layout.nbytes


def drafts_of(proposed: DeviceDrafts) -> list[list[int]]:
    return [ids[:count] for ids, count in zip(proposed.ids.tolist(), proposed.counts, strict=True)]


def greedy(lm, ids: list[int], count: int) -> list[int]:
    return list(decode_reference(lm, Request(ids, max_new_tokens=count)).token_ids) if count else []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_after_any_acceptance_the_draft_goes_on_from_committed_tokens_only(layout):
    """All acceptances of two rows in turn. Full acceptance leaves the draft one token behind: it feeds two."""
    k, lm = 3, tiny_lm("llama", seed=1)
    ledger = Ledger(LAYOUTS[layout](lm, "sdpa"))
    drafter = ModelDrafter(lm, ledger, VOCAB)
    assert isinstance(drafter, StatefulDrafter)
    rows = {"a": [5], "b": [9, 8, 7, 6]}
    previous: dict[str, int] = {}
    drafted: set[int] = set()
    for accepted in product(range(k + 1), repeat=2):
        ledger.fed.clear()
        proposed = drafts_of(drafter.propose([DraftRow(name, tuple(ids), k) for name, ids in rows.items()], k))
        first = ledger.fed[-k]
        for (name, ids), drafts, count in zip(rows.items(), proposed, accepted, strict=True):
            assert drafts == greedy(lm, ids, k), f"{name}: not the draft's own greedy tokens; {layout}"
            assert ledger.cells[name] == [*ids, *drafts[:-1]], f"{name}: KV of other tokens than the row's; {layout}"
            if name in previous:
                assert first[name] == (2 if previous[name] == k else 1), (
                    f"{name} fed {first[name]} after {previous[name]} of {k}"
                )
            drafted.update(drafts)
            ids += [*drafts[:count], (drafts[count] + 1) % VOCAB if count < k else 33]  # recovered, or bonus
        drafter.commit(dict(zip(rows, accepted, strict=True)))
        previous = dict(zip(rows, accepted, strict=True))
    assert len(drafted) > 5, "the draft repeats itself"
    for name in rows:
        drafter.release(name)
    drafter.release("never seen")
    assert ledger.nbytes == 0


def test_rows_that_sit_out_or_use_fewer_drafts_do_not_disturb_the_others():
    lm = tiny_lm("qwen3", seed=1)
    drafter = ModelDrafter(lm, Slotted(lm, "sdpa"), VOCAB, prefill_chunk=4)
    rows = {name: [(7 * i + n) % VOCAB for i in range(n)] for name, n in (("a", 1), ("b", 13), ("c", 6))}
    for step in range(12):
        names = [name for i, name in enumerate(rows) if (step + i) % 3]
        room = {name: (step + len(name + name) * i) % 5 for i, name in enumerate(names)}
        proposed = drafts_of(drafter.propose([DraftRow(name, tuple(rows[name]), room[name]) for name in names], 3))
        for name, drafts in zip(names, proposed, strict=True):
            assert drafts == greedy(lm, rows[name], min(3, room[name])), (step, name)
            rows[name] += [*drafts[: step % 4], (step * 11) % VOCAB]
        drafter.commit({name: min(step % 4, len(drafts)) for name, drafts in zip(names, proposed, strict=True)})


def test_a_draft_does_not_choose_ids_that_the_target_cannot_choose():
    lm = tiny_lm("llama", seed=1)
    drafter = ModelDrafter(lm, Slotted(lm, "sdpa"), VOCAB)
    free = drafts_of(drafter.propose([DraftRow("a", (9, 8, 7), 3)], 3))[0]
    banned = drafts_of(
        drafter.propose([DraftRow("b", (9, 8, 7), 3, banned_ids=(free[0], free[1]), banned_until=4)], 3)
    )[0]
    assert banned[0] != free[0]
    request = Request((9, 8, 7), max_new_tokens=3, min_new_tokens=1, stop_token_ids=(free[0], free[1]))
    alone = decode_reference(lm, request).token_ids
    assert tuple(banned[: len(alone)]) == alone, (
        "banned at sequence index 3 only, and drafted as the target would choose"
    )


@pytest.mark.parametrize("method", ["specproof", "exspec"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_draft_with_a_shorter_context_stops_drafting_there(method, family):
    draft = tiny_lm(family, seed=1, **({"n_positions": 14} if family == "gpt2" else {"max_position_embeddings": 14}))
    assert draft.context == 14
    assert target(family).context == 160
    engine = Engine(target(family), draft, EngineConfig(method, batch_size=3, window=4, num_draft_tokens=3))
    steps = []
    engine.observers.append(lambda record: steps.extend(record.rows))

    assert_equal(engine.generate(REQUESTS), references(family), (method, family))

    # The last draft's own KV is not needed, so drafts may reach one position beyond the draft's context.
    assert max(step.start + 1 + len(step.drafted) for step in steps if step.drafted) == 14 + 1
    assert any(step.start + 1 == 15 and not step.drafted for step in steps)
    assert all(not step.drafted for step in steps if step.start + 1 > 14)


@pytest.mark.parametrize("size", [VOCAB - 20, VOCAB + 20])
@pytest.mark.parametrize("method", ["specproof", "eqspec"])
def test_a_draft_with_a_smaller_or_larger_vocabulary_works(method, size):
    """Ids that the draft does not know come in prompts, in outputs, and as stop ids that it is told not to choose."""
    draft = tiny_lm("llama", seed=1, vocab_size=size)
    requests = [
        Request(r.prompt_ids, max_new_tokens=r.max_new_tokens, min_new_tokens=1, stop_token_ids=(VOCAB - 1, VOCAB - 2))
        for r in REQUESTS
    ]
    truth = [decode_reference(target("llama"), request) for request in requests]
    assert any(token >= VOCAB - 20 for reference in truth for token in reference.token_ids)
    engine = Engine(target("llama"), draft, EngineConfig(method, batch_size=3, num_draft_tokens=3))
    drafted = []
    engine.observers.append(lambda record: drafted.extend(token for row in record.rows for token in row.drafted))

    assert_equal(engine.generate(requests), truth, (method, size))

    assert drafted
    assert max(drafted) < min(size, VOCAB)


def test_the_engine_tells_a_drafter_how_each_step_and_row_ended_and_its_memory_is_given_back():
    told: list[dict[str, int]] = []
    released: list[str] = []

    class Told(ModelDrafter):
        def commit(self, accepted):
            told.append(accepted)
            super().commit(accepted)

        def release(self, request_id):
            released.append(request_id)
            super().release(request_id)

    draft = noisy_copy("llama")
    ledger = Ledger(Slotted(draft, "sdpa"))
    engine = Engine(target("llama"), Told(draft, ledger, VOCAB), EngineConfig(batch_size=3))
    kept = []
    engine.observers.append(lambda record: kept.append({row.request_id: row.num_accepted for row in record.rows}))

    assert_equal(engine.generate(REQUESTS), references("llama"), "a model drafter told by the engine")

    assert told == kept
    assert any(len(set(step.values())) > 1 for step in told), "never ragged"
    assert sorted(released) == sorted(request.request_id for request in REQUESTS)
    assert ledger.nbytes == 0


# --- what is proposed, checked --------------------------------------------------------------------------------------

ROWS = [DraftRow("first", (1,), 5), DraftRow("second", (1, 2), 2)]


@pytest.mark.parametrize(
    ("proposed", "message"),
    [
        ([[1]], "1 rows of 2"),
        ([[1], [2], [3]], "3 rows of 2"),
        ([[1], [1, 2, 3, 4]], "second.*4 drafts.*at most 3"),
        ([[-1], []], "first.*-1"),
        ([[], [0, 50]], "second.*50.*0 to 49"),
        ([[1.0], []], "first.*1.0"),
        ([["7"], []], "first.*'7'"),
        ([[None], []], "first.*None"),
        (DeviceDrafts(torch.zeros(1, 3, dtype=torch.long), [3]), "1 rows of 2"),
    ],
)
def test_what_cannot_be_a_draft_is_refused_and_the_row_named(proposed, message):
    with pytest.raises(DrafterError, match=message):
        check_proposal(proposed, ROWS, max_tokens=3, vocab_size=50)


@pytest.mark.parametrize("chance", [float("nan"), float("inf"), -0.1, 1.5, "a", None])
def test_a_confidence_that_is_no_chance_is_refused_and_the_row_named(chance):
    proposed = HostDrafts([[1], [2, 3]], [Confidence("own", [0.5]), Confidence("own", [1, chance])])
    with pytest.raises(DrafterError, match=r"second: confidence .* is no chance from 0 to 1"):
        check_proposal(proposed, ROWS, max_tokens=3, vocab_size=50)


def test_rows_may_propose_fewer_or_none_and_are_cut_to_what_they_can_use():
    proposal = check_proposal([[], [4, 5, 6]], ROWS, max_tokens=3, vocab_size=50)
    assert proposal.on_host == {"first": [], "second": [4, 5]}
    assert proposal.counts == {"first": 0, "second": 2}
    assert proposal.on_device is None


def test_device_drafts_are_laid_one_row_after_another():
    proposal = check_proposal(DeviceDrafts(torch.tensor([[1, 2, 3], [4, 5, 6]]), [2, 1]), ROWS, 3, 50)
    assert proposal.on_device is not None
    assert proposal.on_device.tolist() == [1, 2, 4]
    assert proposal.counts == {"first": 2, "second": 1}


def test_a_bad_draft_ends_the_run_and_the_engine_can_be_used_again():
    good = True
    engine = Engine(target("llama"), Scripted(lambda row, n: [1] if good else [VOCAB]), EngineConfig(batch_size=3))
    assert_equal(engine.generate(REQUESTS), references("llama"), "before")
    good = False
    with pytest.raises(DrafterError, match="row0"):
        engine.generate(REQUESTS)
    good = True
    assert_equal(engine.generate(REQUESTS), references("llama"), "after")
