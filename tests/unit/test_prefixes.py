"""Who takes over what from whom, and who waits."""

from hypothesis import given, settings
from hypothesis import strategies as st

from specproof.prefixes import LEAST, Holder, common_length, share_prefixes
from specproof.step import SharedPrefix

COMMON = list(range(100, 200))


def row(name: str, common: int, cached: int = 0, own: int = 10) -> Holder:
    ids = [*COMMON[:common], *([ord(name)] * own)]
    return Holder(name, ids, cached, len(ids) - 1)


def test_one_row_computes_what_is_common_and_the_others_wait_for_exactly_that_part():
    for cached in (0, 10, 20, 34):
        assert share_prefixes([row("a", 50, cached), row("b", 50), row("c", 60)]) == ((), {"b", "c"})
    shares, waiting = share_prefixes([row("a", 50, 50), row("b", 50), row("c", 50)])
    assert shares == (SharedPrefix("b", "a", 50), SharedPrefix("c", "a", 50))
    assert not waiting


def test_a_row_takes_what_is_there_rather_than_wait_for_little_more():
    shares, waiting = share_prefixes([row("a", 50, 50 - LEAST + 1), row("b", 50)])
    assert (shares, waiting) == ((SharedPrefix("b", "a", 50 - LEAST + 1),), set())


def test_a_row_with_more_in_common_with_another_new_row_waits_for_that_one():
    rows = [row("a", 40, 45), row("b", 80), Holder("c", [*COMMON[:80], 1, 2], 0, 81)]
    assert share_prefixes(rows) == ((SharedPrefix("b", "a", 40),), {"c"})


def test_a_row_that_has_ended_serves_as_well_and_emitted_tokens_count():
    past = Holder("a", [*COMMON[:60]], 59, 20)  # a turn of a conversation: 21 tokens of prompt, 39 emitted
    shares, waiting = share_prefixes([row("b", 70), row("c", 40)], [past])
    assert shares == (SharedPrefix("b", "a", 59), SharedPrefix("c", "a", 40))
    assert not waiting


def test_the_pending_token_is_never_taken_over():
    same = [Holder(name, COMMON[:30], cached, 29) for name, cached in (("a", 30), ("b", 0))]
    assert share_prefixes(same) == ((SharedPrefix("b", "a", 29),), set())


def test_little_in_common_is_computed_anew_and_nobody_waits_for_a_row_behind():
    assert share_prefixes([row("a", LEAST - 1, 60), row("b", LEAST - 1)]) == ((), set())
    assert share_prefixes([row("a", 50), row("b", 50, 20)]) == ((SharedPrefix("a", "b", 20),), set())
    assert share_prefixes([row("a", 50, 5), row("b", 50, 5)]) == ((), set()), "they have begun"


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    ours=st.lists(st.integers(0, 1), max_size=200),
    at=st.integers(0, 200),
    most=st.integers(0, 200),
)
def test_the_common_length_is_that_of_its_definition(ours, at, most):
    theirs = [token + (i == at) for i, token in enumerate(ours)]
    most = min(most, len(ours))
    expected = next((i for i in range(most) if ours[i] != theirs[i]), most)
    assert common_length(ours, theirs, most) == expected
    assert common_length(tuple(ours), tuple(theirs), most) == expected
