"""What trying may cost is bounded, whatever the estimates say."""

import pytest

from specproof.drafters import Confidence, DraftRow
from specproof.drafters.drafter import NextDraft
from specproof.pace.chances import Chances
from specproof.pace.cost import Cost
from specproof.pace.purse import CREDIT, ENOUGH, FIRST, LOAN, MOST, SHARE, START, Purse
from specproof.pace.rounds import THIN, Rounds
from specproof.step import RowStep

WORTHS = {f"row{i}": 1.0 for i in range(4)}


def opened():
    purse = Purse()
    purse.foresee(10_000, 1)
    return purse


def test_losses_are_bounded_by_the_start_and_a_share_of_the_time():
    purse, lost = opened(), 0.0
    for _ in range(10_000):
        if purse.has():
            purse.book(-0.5)
            lost += 0.5
        purse.pass_time(1.0)
    assert 0.9 * SHARE * 10_000 < lost < START + SHARE * 10_000 + 1


def test_what_was_won_counts_up_to_a_limit_only():
    purse = opened()
    purse.book(1000)
    assert purse.balance == MOST
    purse.book(-MOST)
    assert not purse.has()


def test_a_loan_must_come_back_within_some_steps():
    purse = opened()
    assert purse.credit == CREDIT
    purse.book(-START)
    assert purse.lend(purse.credit)
    assert not purse.lend(0.1), "no more than its credit at a time"
    purse.book(-purse.credit + 0.5)
    assert purse.has(), "what was lent may be owed for a while"
    for _ in range(120):
        purse.pass_time(1.0)
    assert not purse.has()
    assert purse.lend(purse.credit / 2)


def test_what_it_opens_with_is_a_part_of_the_work_that_is_foreseen():
    assert not Purse().has()
    purse = Purse()
    purse.foresee(50, 2)
    purse.foresee(40, 2)
    assert purse.balance == FIRST * 50 / 2
    assert purse.credit == LOAN * 40 / 2
    purse.foresee(5000, 2)  # another run, after a short one
    assert (purse.balance, purse.credit) == (START, CREDIT)
    assert opened().balance == START


def price(tokens):
    return 0.05 + 0.002 * tokens


def begin(made):
    made.begin(WORTHS, lambda drafts: price(len(WORTHS) + drafts))


def rounds(purse=None):
    """Of four rows; a clock that only the test moves."""
    clock, cost, chances = [0.0], Cost(), Chances()
    for n in (4, 4, 8, 8, 16, 32):
        cost.learn(n, price(n))
    made = Rounds(cost, chances, purse or opened(), lambda: clock[0])
    begin(made)
    return made, chances, clock


def nexts(unread, num_drafts=0, remaining=100):
    return [
        NextDraft(DraftRow(f"row{i}", (), 8, remaining=remaining), num_drafts, n, Confidence("model"))
        for i, n in enumerate(unread)
    ]


def learn(chances, right, times):
    for _ in range(times):
        chances.learn(RowStep("other", 0, (1,), int(right), int(right), (1,)), Confidence("model"))


def test_a_model_of_which_nothing_is_known_tries_the_row_that_has_least_to_read():
    made, chances, _ = rounds()
    assert made.go_on(nexts([50, 20, 1, 30])) == [False, False, True, False]
    assert made.explores
    learn(chances, True, int(THIN) + 1)
    begin(made)
    assert made.go_on(nexts([1, 1, 2, 1])) == [True] * 4
    assert not made.explores


def test_a_row_that_was_read_is_tried_again_whatever_is_owed():
    purse = Purse()
    purse.foresee(20, 1)
    made, _, _ = rounds(purse)
    made.prefilled(1, 1.0)  # reading is dear
    assert purse.lend(purse.credit)
    assert made.go_on(nexts([500, 200, 400, 300])) == [False] * 4, "nothing more is lent"
    assert made.go_on(nexts([500, 2, 400, 300])) == [False, True, False, False]


def test_what_the_balance_can_pay_needs_no_loan():
    purse = opened()
    assert purse.lend(purse.credit)
    assert not purse.lend(START + 0.1)
    assert purse.lend(START)


def test_a_model_that_is_wrong_or_dear_is_not_asked_on():
    made, chances, clock = rounds()
    learn(chances, False, 50)
    assert made.go_on(nexts([1] * 4)) == [False] * 4
    made, chances, clock = rounds()
    learn(chances, True, 50)
    assert made.go_on(nexts([1] * 4)) == [True] * 4
    for _ in range(4):  # each round takes as long as four steps
        begin(made)
        made.go_on(nexts([1] * 4))
        clock[0] += 0.2
        made.end_round()
    begin(made)
    assert made.go_on(nexts([1] * 4)) == [False] * 4


def test_reading_is_charged_over_what_a_row_still_has_to_emit():
    made, chances, _ = rounds()
    learn(chances, True, 50)
    made.prefilled(256, 1.0)
    assert made.go_on(nexts([1, 1, 1, 40], remaining=200)) == [True] * 4
    begin(made)
    assert made.go_on(nexts([1, 1, 1, 40], remaining=2)) == [True, True, True, False]


def test_nobody_to_ask_for_is_no_question():
    made, _, _ = rounds()
    assert made.go_on([]) == []


def test_an_empty_purse_opens_again_when_it_can_pay_for_more_than_asking():
    purse = Purse()
    purse.foresee(200, 1)
    assert purse.is_open()
    purse.book(-START)
    asked = []
    for _ in range(300):
        asked.append(purse.is_open())
        if asked[-1]:
            purse.book(-0.02)
        purse.pass_time(1)
    bursts = [i for i in range(1, 300) if asked[i] and not asked[i - 1]]
    assert bursts, "it never opened again"
    assert not any(asked[: bursts[0]])
    assert bursts[0] == pytest.approx(ENOUGH / SHARE, abs=2)
    assert sum(asked[bursts[0] : bursts[0] + 10]) == 10
