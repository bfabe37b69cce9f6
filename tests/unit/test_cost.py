"""Prices measured while running: right where measured, sensible elsewhere, not led astray by one bad measurement."""

import random
from math import inf

import pytest

from specproof.pace.cost import FORGET, WINDOW, Cost


def price(tokens):
    return 0.02 + 0.004 * tokens


def learnt(noise=0.0, tokens=(1, 2, 4, 8, 16), times=20, scale=lambda i: 1.0):
    cost, rng = Cost(), random.Random(0)
    for i in range(times):
        for n in tokens:
            cost.learn(n, price(n) * scale(i) * rng.lognormvariate(0, noise))
    return cost


def test_measured_prices_are_given_back_and_those_between_are_interpolated():
    cost = learnt()
    for tokens in (1, 2, 3, 4, 6, 8, 11, 16):
        assert cost(tokens) == pytest.approx(price(tokens), rel=1e-6)
    assert cost(16) < cost(24) < 2 * cost(16)
    assert cost(33) == Cost()(1) == inf, "what it has no idea of is never planned"


def test_a_price_that_jumps_is_kept_as_it_is():
    cost = Cost()
    for _ in range(5):
        cost.learn(1, 0.02)
        cost.learn(2, 0.04)
        cost.learn(16, 0.05)
    assert [round(cost(n), 4) for n in (1, 2, 16)] == [0.02, 0.04, 0.05]


def test_noise_is_averaged_and_outliers_are_left_out():
    cost = learnt(noise=0.1, times=40)
    for tokens in (1, 4, 16):
        assert cost(tokens) == pytest.approx(price(tokens), rel=0.15)
    for _ in range(WINDOW // 3):
        cost.learn(4, 1.0)  # 30 times as long
        for tokens in (1, 2, 8, 16):
            cost.learn(tokens, price(tokens))
    assert cost(4) / cost(1) == pytest.approx(price(4) / price(1), rel=0.2)


def test_a_first_measurement_that_is_far_off_is_outvoted():
    cost = Cost()
    for n, seconds in ((8, 2.0), (8, 0.05), (8, 0.05), (16, 0.08), (8, 0.05), (16, 0.08), (8, 0.05), (16, 0.08)) * 3:
        cost.learn(n, seconds)
    assert cost(16) / cost(8) == pytest.approx(1.6, rel=0.1)


def test_what_slows_every_forward_alike_does_not_distort_the_comparison():
    """Only steps of 16 tokens are seen while the machine gets half as fast: those of 1 token are thought slower too."""
    cost = learnt()
    for _ in range(100):
        cost.learn(16, 2 * price(16))
    assert cost(16) == pytest.approx(2 * price(16), rel=0.1)
    assert cost(16) / cost(1) == pytest.approx(price(16) / price(1), rel=0.35)


def test_it_says_what_it_knows_and_forgets_what_it_never_sees_again():
    cost = Cost()
    assert not cost.knows(8, 1)
    cost.learn(8, 0.05)
    cost.learn(100, 0.5)
    assert cost.knows(8, 1)
    assert cost.knows(5, 1)
    assert cost.knows(96, 1)
    assert not cost.knows(3, 1)
    assert not cost.knows(30, 1)
    assert not cost.knows(8, 2)
    assert cost.foreseen == 192
    assert (cost.age(8), cost.age(100), cost.age(50)) == (1, 0, 0)
    for _ in range(FORGET + 2):
        cost.learn(8, 0.05)
    assert not cost.knows(100, 1)


def test_beyond_what_was_measured_prices_grow_like_the_last_doubling_but_hopefully_if_there_was_none():
    assert learnt(tokens=(8,))(16) == pytest.approx(price(8) * 2**0.3)
    steep = Cost()
    for n in (4, 8, 16):
        steep.learn(n, 0.01 * n**0.7)
    assert steep(32) == pytest.approx(0.01 * 32**0.7)
    flat = Cost()
    for n in (4, 8, 16):
        flat.learn(n, 0.01)
    assert flat(32) == pytest.approx(0.01 * 2**0.3)


def test_drafts_beside_prompts_cost_what_they_add_there():
    cost = Cost()
    for _ in range(5):
        for n, seconds in ((4, 0.05), (8, 0.05), (16, 0.05), (64, 0.1), (128, 0.2)):  # free up to 16, dear from 64 on
            cost.learn(n, seconds)
    assert cost.of_step(4, 0)(0) == pytest.approx(0.05)
    assert cost.of_step(4, 100)(0) == pytest.approx(0.05)
    assert cost.of_step(4, 0)(12) == pytest.approx(0.05)
    assert cost.of_step(4, 60)(12) == pytest.approx(0.05 + 12 * 0.1 / 64)
