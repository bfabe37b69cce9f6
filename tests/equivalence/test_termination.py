"""Where a row ends: at the first of its stop ids, stop strings and limits, also inside an accepted block."""

import pytest
from families import VOCAB
from helpers import assert_equal, decode, target, vary
from probes import SPECULATIVE, TOY, Toy, config, free_run, prompt, right, rows, solo, with_eos

from specproof import Engine, Request
from specproof.drafters import PromptLookup

K = 8


def run(lm, requests, method="specproof", accept=99, tokenizer=None, **options):
    """Outputs of an engine whose drafter goes on past every stop, and the records of its steps."""
    engine = Engine(lm, right(accept), config(method, num_draft_tokens=K, **options), tokenizer)
    records = []
    engine.observers.append(records.append)
    return engine.generate(requests), records


def assert_nothing_behind(outputs, records):
    """What a row emitted, step by step, is its output, and the counts count nothing else."""
    for output in outputs:
        steps = [row for record in records for row in record.rows if row.request_id == output.request_id]
        assert tuple(token for row in steps for token in row.emitted) == output.token_ids
        assert output.num_accepted == sum(row.num_accepted for row in steps)
        assert len(output.token_ids) - len(steps) <= output.num_accepted <= len(output.token_ids)
        assert output.num_drafted == sum(len(row.drafted) for row in steps)
        assert sum(output.acceptance_histogram) == output.num_steps == len(steps)
        assert sum(j * n for j, n in enumerate(output.acceptance_histogram)) == output.num_accepted


def first_times(ids, start=0):
    """Indices of tokens that occur there for the first time: stops that can be placed."""
    return [i for i, token in enumerate(ids) if i >= start and token not in ids[:i]]


@pytest.mark.parametrize("method", SPECULATIVE)
def test_an_end_id_stops_the_row_wherever_it_lies_in_an_accepted_block(method):
    tried = set()
    for request in rows((6, 3), limit=40):
        free = free_run(tuple(request.prompt_ids))
        for place in first_times(free)[:18]:
            outputs, records = run(with_eos(target("llama"), [free[place]]), [request], method)
            where = f"end id {free[place]} at {place}, {method}"
            assert outputs[0].token_ids == free[: place + 1], where
            assert (outputs[0].finish_reason, outputs[0].stop) == ("stop", free[place]), where
            assert any(row.num_accepted for record in records for row in record.rows)
            assert_nothing_behind(outputs, records)
            tried.add(place % (K + 1))
    assert tried == set(range(K + 1)), f"places of a block: {tried}"


@pytest.mark.parametrize("method", SPECULATIVE)
def test_several_end_ids_each_end_a_row_and_without_any_rows_reach_their_limit(method):
    requests = rows((4, 9, 2), limit=30)
    free = [free_run(tuple(request.prompt_ids)) for request in requests]
    eos = [next(t for t in ids[4:] if not any(t in other for other in free if other is not ids)) for ids in free]
    lm = with_eos(target("llama"), eos)
    truth = solo(lm, requests)
    assert [reference.stop for reference in truth] == eos, "each row has an end id of its own"
    outputs, records = run(lm, requests, method, lambda row: len(row.token_ids) % 7)
    assert_equal(outputs, truth, method)
    assert_nothing_behind(outputs, records)
    none = with_eos(target("llama"), [])
    for drafter in (right(99), PromptLookup()):
        outputs, _, _ = decode(none, drafter, config(method), requests)
        assert [output.finish_reason for output in outputs] == ["length"] * 3
        assert [output.token_ids for output in outputs] == [ids[:30] for ids in free]


@pytest.mark.parametrize("method", SPECULATIVE)
def test_limits_of_one_two_and_three_tokens_inside_a_block_of_eight_and_mixed(method):
    limits = (1, 2, 3, 9, 10, 30, 1)
    requests = [Request(prompt(4 + i, i), max_new_tokens=n, request_id=f"row{i}") for i, n in enumerate(limits)]
    truth = vary(solo(target("llama"), requests))
    for drafter in (right(99), PromptLookup()):
        outputs, records, _ = decode(
            target("llama"), drafter, config(method, num_draft_tokens=K, batch_size=7), requests
        )
        assert_equal(outputs, truth, method)
        assert [len(output.token_ids) for output in outputs] == list(limits)
        assert {output.finish_reason for output in outputs} == {"length"}
        assert_nothing_behind(outputs, records)


def test_an_end_id_at_the_limit_counts_as_a_stop():
    request = Request(prompt(6), max_new_tokens=40, request_id="row0")
    free = free_run(tuple(request.prompt_ids))
    for place in first_times(free)[:10]:
        lm = with_eos(target("llama"), [free[place]])
        for limit, reason in ((place, "length"), (place + 1, "stop"), (place + 2, "stop")):
            if limit:
                outputs, _ = run(lm, [Request(prompt(6), max_new_tokens=limit)])
                assert (outputs[0].finish_reason, len(outputs[0].token_ids)) == (reason, min(limit, place + 1))


@pytest.mark.parametrize("accept", range(6))
@pytest.mark.parametrize("method", ["specproof", "eqspec", "rollback"])
def test_min_new_tokens_counts_tokens_whatever_a_step_accepts(method, accept):
    """The first end id that may be chosen is the reference's, not one for each step."""
    requests = [
        Request(prompt(6, i), max_new_tokens=30, min_new_tokens=n, request_id=f"row{i}")
        for i, n in enumerate((0, 10, 11))
    ]
    common = {token for request in requests for token in free_run(tuple(request.prompt_ids))[:12]}
    lm = with_eos(target("llama"), sorted(common)[::3])
    truth = solo(lm, requests)
    assert truth[0].finish_reason == "stop"
    assert len(truth[0].token_ids) < 10 < min(len(reference.token_ids) for reference in truth[1:])
    known = {r.request_id: t.token_ids for r, t in zip(requests, truth, strict=True)}

    class Told:
        def propose(self, rows_, max_tokens):
            return [self._row(row, min(max_tokens, row.max_tokens)) for row in rows_]

        def _row(self, row, n):
            at = len(row.token_ids) - 6
            return [(t + (j >= accept)) % VOCAB for j, t in enumerate(known[row.request_id][at : at + n])]

    outputs, records, engine = decode(lm, Told(), config(method, num_draft_tokens=5), requests)
    assert engine.statistics.drafted
    assert (engine.statistics.accepted > 0) == (accept > 0)
    assert_equal(outputs, truth, (method, f"accepting {accept}"))
    assert_nothing_behind(outputs, records)


@pytest.mark.parametrize("method", SPECULATIVE)
def test_ignore_eos_goes_past_end_ids_but_not_past_a_rows_own_stop_ids(method):
    free = free_run(tuple(prompt(6)))
    first, second, third = first_times(free, 2)[:3]
    lm = with_eos(target("llama"), [free[first]])
    requests = [
        Request(prompt(6), 40, request_id="row0"),
        Request(prompt(6), 40, request_id="row1", ignore_eos=True),
        Request(prompt(6), 40, request_id="row2", ignore_eos=True, stop_token_ids=(free[third], free[second])),
        Request(prompt(6), 40, request_id="row3", stop_token_ids=(free[second],)),
    ]
    outputs, records = run(lm, requests, method)
    assert [output.token_ids for output in outputs] == [free[: first + 1], free, free[: second + 1], free[: first + 1]]
    assert [output.stop for output in outputs] == [free[first], None, free[second], free[first]]
    assert_nothing_behind(outputs, records)


@pytest.mark.parametrize("method", ["target-only", *SPECULATIVE])
def test_padding_end_and_stop_ids_inside_a_prompt_mean_nothing(method):
    """pad = EOS: in the prompt it is content, in the output it ends the row."""
    inside = prompt(12)
    ends = {inside[4], inside[5], inside[11]}
    lm = with_eos(target("llama"), ends)
    lm.model.config.pad_token_id = inside[4]
    requests = [
        Request(inside, 25, request_id="row0"),
        Request([inside[4]] * 5, 25, request_id="row1", ignore_eos=True),
        Request([inside[4], *prompt(30, 3)], 25, request_id="row2", stop_token_ids=(prompt(30, 3)[7],)),
        Request([inside[4]], 25, request_id="row3"),
    ]
    truth = vary(solo(lm, requests))
    drafter = None if method == "target-only" else right(lambda row: len(row.token_ids) % 6)
    outputs, _, _ = decode(lm, drafter, config(method), requests)
    assert_equal(outputs, truth, method)
    assert [output.prompt_len for output in outputs] == [12, 5, 31, 1]
    lm.model.config.pad_token_id = None


@pytest.mark.parametrize("method", SPECULATIVE)
def test_a_padding_id_among_the_emitted_tokens_is_content(method):
    requests = rows((6, 3), limit=20)
    free = free_run(tuple(requests[0].prompt_ids))
    lm = with_eos(target("llama"), [])
    lm.model.config.pad_token_id = free[3]
    outputs, records = run(lm, requests, method)
    assert outputs[0].token_ids == free[:20]
    assert free[3] in outputs[0].token_ids[:-1]
    assert_nothing_behind(outputs, records)
    lm.model.config.pad_token_id = None


# --- stop strings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", SPECULATIVE)
@pytest.mark.parametrize("spanning", [1, 2, 3])
def test_a_stop_string_may_end_at_every_offset_of_a_block_and_span_tokens_and_steps(method, spanning):
    request = Request(prompt(6), max_new_tokens=40, request_id="row0")
    free = free_run(tuple(request.prompt_ids))
    text = TOY.decode(free)
    offsets, crossing = set(), 0
    for place in range(spanning - 1, 22):
        stop = text[
            2 * (place - spanning + 1) + (spanning > 1) : 2 * place + 2 - (spanning > 1)
        ]  # begins and ends inside tokens
        at = text.index(stop)
        ends_in = (at + len(stop) - 1) // 2
        outputs, records = run(
            target("llama"), [Request(prompt(6), 40, stop=(stop,), request_id="row0")], method, tokenizer=TOY
        )
        where = f"stop {stop!r} ending in token {ends_in}; {method}"
        assert outputs[0].token_ids == free[: ends_in + 1], where
        assert (outputs[0].finish_reason, outputs[0].stop, outputs[0].text) == ("stop", stop, text[:at]), where
        assert_nothing_behind(outputs, records)
        offsets.add(ends_in % (K + 1))
        crossing += at // 2 // (K + 1) != ends_in // (K + 1)
    assert len(offsets) == K + 1, f"offsets tried: {offsets}"
    assert crossing >= (0 if spanning == 1 else 1), "no stop spans two steps"


def test_of_several_stops_the_one_that_is_complete_first_ends_the_row():
    free = free_run(tuple(prompt(6)))
    text = TOY.decode(free)
    early, late, overlapping = text[11:14], text[25:29], text[10:18]
    for stops in ((late, early), (early, late), (overlapping, early, "?"), (late, "??", early, overlapping)):
        request = Request(prompt(6), 40, stop=stops, request_id="row0")
        reference = solo(target("llama"), [request], TOY.decode)[0]
        assert (reference.stop, reference.text) == (early, text[:11])
        for accept in range(K + 1):
            outputs, records = run(target("llama"), [request], accept=accept, tokenizer=TOY)
            assert_equal(outputs, [reference], f"accepting {accept}")
            assert outputs[0].text == reference.text
            assert_nothing_behind(outputs, records)


@pytest.mark.parametrize("method", SPECULATIVE)
def test_a_stop_string_inside_a_character_of_several_bytes(method):
    """The bytes of a character come in two tokens; half of it must not be taken for the stop, nor hide it."""
    free = free_run(tuple(prompt(6)))
    place = next(
        i
        for i in range(2, 30)
        if free[i] != free[i + 1] and not {free[i], free[i + 1]} & set(free[:i]) and (i % 9) in (3, 8)
    )
    for character in ("é", "日", "🙂"):
        raw = character.encode()
        toy = TOY.having({free[place]: b"x" + raw[:1], free[place + 1]: raw[1:] + b"y"})
        for stop in (character, character + "y", "x" + character, "y"):
            request = Request(prompt(6), 40, stop=(stop,), request_id="row0")
            reference = solo(target("llama"), [request], toy.decode)[0]
            outputs, records = run(target("llama"), [request], method, tokenizer=toy)
            assert_equal(outputs, [reference], (method, stop))
            assert outputs[0].token_ids == free[: place + 2], (method, stop)
            assert outputs[0].text == reference.text
            assert "\ufffd" not in outputs[0].text
            assert_nothing_behind(outputs, records)


@pytest.mark.parametrize("method", SPECULATIVE)
def test_stops_limits_and_end_ids_of_all_kinds_in_one_batch(method):
    lengths = (6, 3, 9, 5, 2)
    free = [free_run(tuple(request.prompt_ids)) for request in rows(lengths)]
    texts = [TOY.decode(ids) for ids in free]
    requests = [
        Request(prompt(6, 0), 40, stop=(texts[0][20:23],), request_id="row0"),
        Request(prompt(3, 1), 12, request_id="row1"),
        Request(prompt(9, 2), 40, stop_token_ids=(free[2][first_times(free[2], 6)[0]],), request_id="row2"),
        Request(prompt(5, 3), 40, stop=("~",), min_new_tokens=5, request_id="row3"),
        Request(prompt(2, 4), 40, stop=(texts[4][4:6],), min_new_tokens=9, request_id="row4"),
    ]
    truth = solo(target("llama"), requests, TOY.decode)
    assert {type(reference.stop) for reference in truth} == {str, int, type(None)}
    outputs, records = run(target("llama"), requests, method, lambda row: len(row.token_ids) % 5, TOY, batch_size=3)
    assert_equal(outputs, truth, method)
    assert [output.text for output in outputs] == [reference.text for reference in truth]
    assert_nothing_behind(outputs, records)


def test_a_stop_in_the_protected_first_tokens_is_passed_over_and_a_later_one_ends_the_row():
    ids = free_run(tuple(prompt(6)))
    toy = Toy({**TOY.pieces, ids[4]: b"##", ids[12]: b"##"} if ids[4] != ids[12] else TOY.pieces)
    for least in (0, 4, 5, 6, 12, 13):
        request = Request(prompt(6), 40, stop=("##",), min_new_tokens=least, request_id="row0")
        reference = solo(target("llama"), [request], toy.decode)[0]
        outputs, _ = run(target("llama"), [request], tokenizer=toy)
        assert_equal(outputs, [reference], f"min_new_tokens {least}")
        assert outputs[0].text == reference.text
        assert (reference.stop == "##" and len(reference.token_ids) == 5) == (least <= 4)


def test_a_stop_that_begins_in_the_protected_tokens_and_ends_behind_them_counts():
    text = TOY.decode(free_run(tuple(prompt(6))))
    stop = text[9:13]  # begins in token 4, ends in token 6
    assert text.index(stop) == 9
    for least in range(4, 9):
        request = Request(prompt(6), 40, stop=(stop,), min_new_tokens=least, request_id="row0")
        reference = solo(target("llama"), [request], TOY.decode)[0]
        assert (reference.stop == stop and len(reference.token_ids) == 7) == (least <= 6)
        outputs, records = run(target("llama"), [request], tokenizer=TOY)
        assert_equal(outputs, [reference], f"min_new_tokens {least}")
        assert outputs[0].text == reference.text
        assert_nothing_behind(outputs, records)


def test_a_stop_string_of_the_embedded_model_ends_its_row_in_text_ids_and_counts(smollm2_folder):
    engine = Engine(smollm2_folder, PromptLookup(), config("specproof", num_draft_tokens=K))
    assert engine.tokenizer is not None
    ids = engine.tokenizer.encode("Count: one, two, three, four, five, six, seven, one, two, three, four,")
    (free,) = engine.generate([Request(ids, max_new_tokens=16)])
    assert free.num_accepted > 0
    assert free.text is not None
    assert len(set(free.token_ids)) > 3
    cut = len(free.text) * 2 // 3
    stop = free.text[cut - 4 : cut]
    (output, whole) = engine.generate([Request(ids, 16, stop=(stop,)), Request(ids, 16)])
    assert (output.finish_reason, output.stop) == ("stop", stop)
    assert output.text == free.text[: free.text.index(stop)]
    assert stop in engine.tokenizer.decode(output.token_ids)
    assert stop not in engine.tokenizer.decode(output.token_ids[:-1])
    assert len(output.token_ids) - output.num_steps <= output.num_accepted <= len(output.token_ids)
    assert whole.token_ids == free.token_ids
