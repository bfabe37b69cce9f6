"""What a token is worth by its row."""

import numpy as np
import pytest

from specproof.pace.cost import Cost
from specproof.pace.outlook import Outlook
from specproof.pace.worth import Worth, last_chances
from specproof.request import Output
from specproof.step import RowStep, StepRecord


def cost(of_step=0.02, of_token=0.001):
    made = Cost()
    for n in (1, 2, 4, 8, 16):
        for _ in range(3):
            made.learn(n, of_step + of_token * n)
    return made


def record(emitted, finished=()):
    rows = tuple(RowStep(name, 0, (), 0, 0, tuple(range(count))) for name, count in emitted.items())
    ended = tuple(Output(name, 1, (1,), None, "stop") for name in finished)
    return StepRecord(0, (), (), rows, ended, 0, False, False)


def simulated(remaining, speeds, ends, draws=20_000):
    """By drawing the lives of the rows."""
    rng = np.random.default_rng(1)
    limits = np.array(remaining) / np.array(speeds)
    lives = np.broadcast_to(limits * rng.normal(1, 0.15, (draws, len(limits))), (draws, len(limits)))
    if ends:
        lives = np.minimum(lives, rng.exponential(1 / (ends * np.array(speeds)), lives.shape))
    return np.bincount(lives.argmax(1), minlength=len(limits)) / draws


@pytest.mark.parametrize("ends", [0.0, 0.01, 0.2])
@pytest.mark.parametrize(
    ("remaining", "speeds"),
    [([40] * 8, [1.0] * 8), ([40, 30, 20], [1.0, 1.0, 1.0]), ([40, 40, 40], [1.0, 2.0, 4.0]), ([3, 100], [1.0, 1.5])],
)
def test_the_chance_to_be_last_is_that_of_drawn_lives(remaining, speeds, ends):
    found = last_chances(remaining, speeds, ends)
    assert sum(found) == pytest.approx(1)
    assert found == pytest.approx(simulated(remaining, speeds, ends), abs=0.06)


def test_extremes_give_chances_too():
    for remaining in ([1, 1], [1, 100_000], [0, 5]):
        found = last_chances(remaining, [1.0, 1.0], 0.5)
        assert all(0 <= chance <= 1 for chance in found)
        assert sum(found) == pytest.approx(1)


def test_tokens_are_worth_the_same_while_rows_wait_and_the_last_rows_most_when_none_does():
    worth, rows = Worth(cost()), {"a": 10, "b": 10, "c": 90}
    assert worth(Outlook(rows, later=1)) == dict.fromkeys("abc", 1.0)
    assert worth(Outlook({"a": 5})) == {"a": 1.0}
    found = worth(Outlook(rows))
    assert sum(found.values()) == pytest.approx(3)
    assert found["a"] == pytest.approx(found["b"])
    # c ends last: all that a step takes but for a's and b's shares. A row takes 0.001 of 0.023 seconds, three of 3.
    assert found["a"] == pytest.approx(3 * 0.001 / 0.023, rel=0.1)
    assert found["c"] == pytest.approx(3 - 2 * found["a"])


def test_fast_rows_are_worth_less_and_rows_that_end_by_themselves_make_them_more_alike():
    worth, rows = Worth(cost()), {"a": 50, "b": 60}
    before = worth(Outlook(rows))
    for _ in range(30):
        worth.learn(record({"a": 1, "b": 4}))
    fast = worth(Outlook(rows))
    assert before["b"] > before["a"]
    assert fast["a"] > fast["b"]
    for i in range(100):
        worth.learn(record({f"other{i}": 1}, [f"other{i}"]))
    ending = worth(Outlook(rows))
    assert fast["a"] > ending["a"] > ending["b"] > fast["b"]
