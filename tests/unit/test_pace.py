"""Drafting what pays, with a clock that follows a price list: every decision here is determined."""

from functools import cache

import pytest
from families import tiny_lm
from helpers import REQUESTS, assert_equal, decode, noisy_copy, references, scripted, target
from priced import PricedClock, decode_priced

from specproof import Engine, EngineConfig, Request
from specproof.drafters import DraftRow, PromptLookup, Scripted
from specproof.pace import Adaptive, Fixed, Outlook
from specproof.reference import decode_reference
from specproof.step import PrefillChunk, StepRecord

PROMPT = [(7 * i + 3) % 50 for i in range(12)]
LONG = [Request([*PROMPT, i], max_new_tokens=110, request_id=f"row{i}") for i in range(4)]


def dear(tokens):
    return 0.01 * tokens  # a draft costs as much as a row


def cheap(tokens):
    return 0.05 + 0.001 * tokens


@cache
def truth():
    return [decode_reference(target("llama"), request) for request in LONG]


def good(right=lambda row: 99):
    return scripted(LONG, truth(), right)


def drafted(records):
    return [sum(len(row.drafted) for row in record.rows) for record in records]


@cache
def plain_seconds(price):
    return decode_priced(target("llama"), None, LONG, price, batch_size=4)[2]


def test_where_drafts_are_cheap_and_right_nearly_all_of_the_gain_is_had():
    outputs, _, adaptive = decode_priced(target("llama"), good(), LONG, cheap, batch_size=4, adaptive=True)
    _, _, fixed = decode_priced(target("llama"), good(), LONG, cheap, batch_size=4)
    assert_equal(outputs, truth(), "adaptive")
    assert fixed < 0.3 * plain_seconds(cheap), "the drafts of this test do not pay"
    assert adaptive < 1.25 * fixed


@pytest.mark.filterwarnings("ignore:none of .* draft tokens was right")
def test_where_drafts_are_wrong_trying_them_costs_less_than_two_percent():
    for price in (dear, cheap):
        outputs, records, adaptive = decode_priced(
            target("llama"), good(lambda row: 0), LONG, price, batch_size=4, adaptive=True
        )
        _, _, fixed = decode_priced(target("llama"), good(lambda row: 0), LONG, price, batch_size=4)
        assert_equal(outputs, truth(), "adaptive")
        assert adaptive < plain_seconds(price) / 0.98 < fixed
        assert price is dear or sum(drafted(records)) > 0, "never tried"
        assert 0 in drafted(records[len(records) // 2 :])


def test_where_a_right_draft_costs_a_row_nothing_is_drafted_but_a_few_tries():
    _, records, adaptive = decode_priced(target("llama"), good(), LONG, dear, batch_size=4, adaptive=True)
    assert adaptive < plain_seconds(dear) / 0.98
    assert sum(drafted(records)) < 40


def test_drafting_stops_when_drafts_turn_wrong_and_comes_back_when_they_are_right_again():
    request = [Request(PROMPT, max_new_tokens=1100, request_id="row0")]
    lm = tiny_lm("llama", seed=1, max_position_embeddings=2048)
    known = [decode_reference(lm, request[0])]

    def phase(row: DraftRow) -> int:
        return 0 if 200 <= len(row.token_ids) < 500 else 99

    outputs, records, _ = decode_priced(
        lm, scripted(request, known, phase), request, lambda n: 0.01 + 0.004 * n, batch_size=1, adaptive=True
    )

    assert_equal(outputs, known, "three phases")
    phases = {"good": (0, 200), "wrong": (240, 490), "again": (800, 1200)}
    shares = {}
    for record in records:
        for row in record.rows:
            name = next((name for name, (start, end) in phases.items() if start <= row.start < end), "between")
            shares.setdefault(name, []).append(len(row.drafted))
    mean = {name: sum(found) / len(found) for name, found in shares.items()}
    assert mean["good"] > 2, mean
    assert mean["wrong"] < 0.2, mean
    assert mean["again"] > 2, mean


def test_a_model_drafts_where_its_rounds_are_cheap_and_hardly_ever_where_they_are_not():
    drafts = noisy_copy("llama")

    def run(draft_price):
        return decode_priced(
            target("llama"), drafts, LONG, cheap, draft_price, batch_size=4, adaptive=True, num_draft_tokens=8
        )

    outputs, records, quick = run(lambda n: 0.002 + 0.0001 * n)
    assert_equal(outputs, truth(), "a cheap model")
    assert sum(drafted(records)) > 200
    assert quick < 0.92 * plain_seconds(cheap)
    outputs, records, slow = run(lambda n: 0.2 + 0.001 * n)
    assert_equal(outputs, truth(), "a dear model")
    assert sum(drafted(records)) < 20
    assert slow < plain_seconds(cheap) / 0.98 + 3 * 0.2  # the price of a round is not known before the first


def test_the_same_clock_gives_the_same_decisions():
    runs = [
        decode_priced(target("llama"), noisy_copy("llama"), LONG, cheap, cheap, batch_size=4, adaptive=True)[1]
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert sum(drafted(runs[0])) > 0


def test_expected_acceptance_and_price_are_near_what_is_accepted_and_paid():
    _, records, _ = decode_priced(
        target("llama"), good(lambda row: len(row.token_ids) % 5), LONG, cheap, batch_size=4, adaptive=True
    )
    expected = sum(record.expected or 0 for record in records)
    accepted = sum(row.num_accepted for record in records for row in record.rows)
    assert accepted > 100
    assert 0.7 * accepted < expected < 1.3 * accepted
    drafting = [record for record in records if any(row.drafted for row in record.rows) and not record.prefilled]
    price = sum(record.price for record in drafting)
    paid = sum(record.seconds - cheap(len(record.rows)) for record in drafting)
    assert paid > 0
    assert 0.7 * paid < price < 1.3 * paid


def test_the_records_carry_what_the_clock_says():
    clock = PricedClock()
    engine = Engine(target("llama"), PromptLookup(), EngineConfig(batch_size=3), clock=clock)
    clock.charge(engine.layout, cheap)
    records = []
    engine.observers.append(records.append)
    assert_equal(engine.generate(REQUESTS), references("llama"), "priced")
    assert isinstance(engine.pace, Fixed)
    assert all(record.expected is None for record in records)
    for record in records:
        assert record.seconds == cheap(record.num_tokens) or abs(record.seconds - cheap(record.num_tokens)) < 1e-9
        assert record.draft_seconds == 0
    assert abs(sum(record.seconds for record in records) - clock.now) < 1e-6


def test_without_a_drafter_nothing_is_paced():
    _, records, engine = decode(target("llama"), None, EngineConfig(adaptive=True), REQUESTS)
    assert not isinstance(engine.pace, Adaptive)
    assert all(record.expected is None for record in records)


def test_a_script_that_never_proposes_costs_nothing():
    _, records, seconds = decode_priced(
        target("llama"), Scripted(lambda row, n: []), LONG, dear, batch_size=4, adaptive=True
    )
    assert sum(drafted(records)) == 0
    assert seconds == plain_seconds(dear)


def test_where_the_host_does_not_wait_a_step_of_prompts_alone_has_no_price():
    prompts = StepRecord(0, (), (PrefillChunk("row0", 0, 64),), (), (), 0, False, False, 64, 1e-6)
    for waits in (True, False):
        pace = Adaptive(waits=waits)
        for _ in range(2):
            pace(prompts)
        assert pace.asks(Outlook({"row0": 100})) is False
        assert pace._cost.knows(64, 2) is waits


def test_a_machine_that_is_held_up_now_and_then_does_not_end_drafting():
    request = [Request(PROMPT, max_new_tokens=700, request_id="row0")]
    lm = tiny_lm("llama", seed=1, max_position_embeddings=2048)
    known = [decode_reference(lm, request[0])]
    helpful = scripted(request, known, lambda row: 99)
    late = Scripted(lambda row, n: helpful.propose([row], n)[0] if len(row.token_ids) > 400 else [])
    forwards = []

    def price(tokens):
        forwards.append(tokens)
        return cheap(tokens) * (3 if len(forwards) % 5 == 0 else 1)

    outputs, records, _ = decode_priced(lm, late, request, price, batch_size=1, adaptive=True)
    assert_equal(outputs, known, "late drafts")
    assert sum(drafted(records)) > 100
