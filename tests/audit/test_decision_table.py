"""The decision from evidence to class, case by case; and the pure parts it rests on."""

import pytest

from specproof.audit.compare import first_difference, rouge_l, wilson
from specproof.audit.diagnose import BENIGN, CLASSES, LARGE, SIGNATURES, Evidence, decide
from specproof.audit.structure import check_end, find_loop, judged_length
from specproof.audit.trace_row import Trace
from specproof.request import Request

HOLD = {"width-1": 0.2, "width-6": 0.2, "alone": 0.2, "batch": 0.2, "precision-up": 0.2}
NOISE = 0.1

CASES = [
    # margin, controls, signature, class
    (0.0, {}, None, "tie"),
    (0.05, HOLD, None, "near-tie"),
    (0.1, HOLD, None, "near-tie"),
    (0.05, HOLD | {"width-1": -0.01}, None, "width-variance"),
    (0.05, HOLD | {"width-6": 0.0}, None, "width-variance"),
    (0.05, HOLD | {"alone": -0.1}, None, "width-variance"),
    (0.05, HOLD | {"width-1": -0.1, "batch": -0.1}, None, "batch-variance"),
    (0.05, HOLD | {"batch-width-6": -0.1}, None, "width-variance"),
    (0.05, HOLD | {"batch-anew": -0.1}, None, "batch-variance"),
    (0.05, HOLD | {"batch": -0.01}, None, "batch-variance"),
    (0.05, HOLD | {"batch": None, "precision-up": None}, None, "near-tie"),
    (0.3, HOLD | {"width-1": -0.01}, None, "width-variance"),
    (0.3, HOLD | {"batch": -0.01}, None, "batch-variance"),
    (0.3, HOLD | {"precision-up": -0.01}, None, "near-tie"),
    (0.3, HOLD, None, "unexplained"),
    # Under the run's noise, but nothing moves at this place.
    (0.09, dict.fromkeys(HOLD, 0.1), None, "unexplained"),
    (0.09, dict.fromkeys(HOLD, 0.1) | {"batch": 0.06}, None, "near-tie"),
    (0.3, {}, None, "unexplained"),
    (0.05, {}, None, "unexplained"),
    # Large margins: no control makes them benign.
    (5.0, dict.fromkeys(HOLD, -1.0), None, "unexplained"),
    (5.0, dict.fromkeys(HOLD, -1.0), "many", "lost-sync"),
    (5.0, HOLD, "close", "unexplained"),
    (5.0, HOLD, "foreign", "foreign-row"),
    (5.0, HOLD, "stop", "termination"),
    (5.0, HOLD, "symbol", "text-symptom"),
    (5.0, HOLD, "loop", "text-symptom"),
    (5.0, HOLD, "token-changed", "accept-rule"),
    (5.0, HOLD, "token-missing", "accept-rule"),
    (5.0, HOLD, "token-extra", "accept-rule"),
    (5.0, HOLD, "unchecked", "accept-rule"),
    (5.0, HOLD, "last", "accept-rule"),
    (5.0, HOLD, "few", "lost-sync"),
]


@pytest.mark.parametrize(("margin", "controls", "signature", "cls"), CASES)
def test_the_class_follows_from_the_evidence(margin, controls, signature, cls):
    found, why = decide(Evidence(margin, NOISE, controls, signature))
    assert (found, bool(why)) == (cls, True)


def test_a_margin_of_one_unit_in_the_last_place_is_a_near_tie_though_nothing_moves():
    still = dict.fromkeys(HOLD, 0.09)
    assert decide(Evidence(0.09, NOISE, still, step=0.09))[0] == "near-tie"
    assert decide(Evidence(0.09, NOISE, still, step=0.08))[0] == "unexplained"


def test_the_table_covers_every_class_and_signature():
    assert {case[3] for case in CASES} == set(CLASSES) - {"exact"}
    assert {case[2] for case in CASES} == {None, *SIGNATURES}


def test_no_large_margin_is_ever_benign_whatever_the_controls_say():
    for signature in (None, *SIGNATURES):
        for value in (-9.0, 0.0, None, 9.0):
            controls = dict.fromkeys(HOLD, value)
            assert decide(Evidence(LARGE * NOISE * 1.001, NOISE, controls, signature))[0] not in BENIGN


@pytest.mark.parametrize(
    ("tokens", "loop"),
    [
        ([1, 2, 3] + [7] * 8, (1, 8)),
        ([1, 2] + [5, 6] * 4, (2, 4)),
        ([5, 6] * 3, None),
        ([7] * 7, None),
        (list(range(20)), None),
        ([1, 2, 3, 4, 5] * 4 + [1, 2], (5, 4)),
        ([], None),
    ],
)
def test_a_loop_is_at_least_four_repetitions_and_eight_tokens(tokens, loop):
    assert find_loop(tokens) == loop


END, FILL = frozenset({9}), frozenset({0})
ENDS = [
    # tokens, limit (None: not stated), claim, the target wants to end, kind
    ([1, 2, 3], 3, None, False, None),
    ([1, 2, 9], 8, None, False, None),
    ([1, 2, 9], 8, "stop", False, None),
    ([1, 2, 9, 0, 0, 9], 8, None, False, None),
    ([1, 2, 9, 4], 8, None, False, "after-stop"),
    ([1, 2, 3, 4], 3, None, False, "past-limit"),
    ([1, 2], 3, None, False, "cut-tail"),
    ([1, 2], 3, "length", False, "cut-tail"),
    ([1, 2], 3, "stop", True, None),
    ([], 3, None, False, "cut-tail"),
    ([], 3, None, True, None),
    ([1, 2], None, None, False, None),
    ([1, 2], None, "length", False, None),
    ([1, 2], None, "stop", False, "cut-tail"),
    ([1, 9], 8, "length", False, "wrong-reason"),
    ([1, 9], 2, "length", False, None),
]


@pytest.mark.parametrize(("tokens", "limit", "claim", "wants", "kind"), ENDS)
def test_the_end_of_a_row_is_judged_apart_from_its_tokens(tokens, limit, claim, wants, kind):
    request = Request((1,), max_new_tokens=limit or 99)
    trace = Trace(0, "r", request, tuple(tokens), limit_known=limit is not None, finish_reason=claim)
    found = check_end(trace, judged_length(tokens, END, 0), END, FILL, None, wants, None)
    assert (found.kind if found else None) == kind


def test_a_stop_string_ends_a_row_and_nothing_may_follow_it():
    def text(ids):
        return "".join(chr(96 + token) for token in ids)

    def kind(tokens, stop):
        trace = Trace(0, "r", Request((1,), max_new_tokens=9, stop=stop), tuple(tokens))
        found = check_end(trace, len(tokens), END, FILL, None, False, text)
        return found.kind if found else None

    assert kind([1, 2, 3], ("bc",)) is None
    assert kind([1, 2, 3, 4], ("bc",)) == "after-stop"
    assert kind([1, 2, 3], ("x",)) == "cut-tail"


def test_a_full_context_is_a_limit_too():
    trace = Trace(0, "r", Request((1, 2, 3), max_new_tokens=99), (4, 5))
    assert check_end(trace, 2, END, FILL, 5, False, None) is None
    assert check_end(trace, 2, END, FILL, 6, False, None).kind == "cut-tail"


def test_ending_ids_before_the_least_length_do_not_end_a_row():
    assert judged_length([9, 1, 9, 4], END, 2) == 3
    assert judged_length([9, 1, 9, 4], END, 0) == 1


def test_a_rate_has_the_wilson_interval():
    assert wilson(0, 0) is None
    assert wilson(8, 8) == pytest.approx((0.6756, 1.0), abs=1e-4)
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)


def test_a_difference_is_found_where_one_side_ends():
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2], [1, 2, 3]) == 2
    assert first_difference([1, 5], [1, 2, 3]) == 1


def test_rouge_l_works_on_ids_and_on_text():
    assert rouge_l([1, 2, 3, 4], [1, 2, 3, 4], None) == 1
    assert rouge_l([], [], None) == 1
    assert rouge_l([1, 2, 3, 4], [1, 2, 9, 4], None) == pytest.approx(0.75)
    assert rouge_l([1, 2], [3], lambda ids: "the cat sat" if len(ids) == 2 else "the cat") == pytest.approx(0.8)
