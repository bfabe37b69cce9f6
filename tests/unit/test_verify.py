"""How many drafts are right, and where a row ends inside a block of new tokens."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specproof import Request
from specproof.sequence import Sequence
from specproof.verify.accept import COMMITS, batch_min, count_accepted
from specproof.verify.terminate import End, find_end, visible_text

# Ids of the toy tokenizer: several characters, none, one character of several ids, and an EOS id that is text as well.
PIECES = [b"a", b"b", b"ab", b"", b" a", b"ba b", "é".encode()[:1], "é".encode()[1:], b"a", b"\n"]
EOS, STOP_ID = 8, 9


def decode(ids) -> str:
    """Bytes of all ids, then text: half a character is U+FFFD until its other half comes."""
    return b"".join(PIECES[i] for i in ids).decode(errors="replace")


def row(emitted=(), *, limit=100, **options) -> Sequence:
    """A row with the prompt [EOS, 0]: an EOS in the prompt must not matter."""
    request = Request([EOS, 0], max_new_tokens=limit, **options)
    ends = {STOP_ID, *request.stop_token_ids} | (set() if request.ignore_eos else {EOS})
    return Sequence("row", request, [EOS, 0, *emitted], 2, limit, frozenset(ends))


@pytest.mark.parametrize(
    ("drafts", "choices", "accepted"),
    [
        ([], [4], 0),
        ([4], [4, 5], 1),
        ([4], [5, 4], 0),
        ([4, 5, 6], [4, 5, 6, 7], 3),
        ([4, 5, 6], [4, 5, 7, 8], 2),
        ([4, 9, 6], [4, 5, 6, 7], 1),  # right again after a rejection: still rejected
        ([9, 5, 6], [4, 5, 6, 7], 0),
    ],
)
def test_the_longest_equal_prefix_is_accepted(drafts, choices, accepted):
    assert count_accepted(drafts, choices) == accepted


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(0, 2), min_size=7, max_size=7))
def test_accepted_drafts_equal_the_choices_and_the_next_one_does_not(drafts, choices):
    choices = choices[: len(drafts) + 1]
    accepted = count_accepted(drafts, choices)
    assert drafts[:accepted] == choices[:accepted]
    assert accepted == len(drafts) or drafts[accepted] != choices[accepted]


def test_batch_min_cuts_all_rows_to_the_smallest_and_per_row_cuts_none():
    assert batch_min([3, 1, 4]) == [1, 1, 1]
    assert batch_min([]) == []
    assert COMMITS["batch-min"] is batch_min
    assert COMMITS["per-row"]([3, 1, 4]) == [3, 1, 4]


@pytest.mark.parametrize(
    ("options", "emitted", "new", "end"),
    [
        ({}, [1], [0, 1, 2], End(3)),
        ({"limit": 4}, [1], [0, 1, 2], End(3, "length")),
        ({"limit": 3}, [1], [0, 1, 2], End(2, "length")),
        ({}, [1], [0, EOS, 2], End(2, "stop", EOS)),
        ({}, [1], [EOS, STOP_ID, 2], End(1, "stop", EOS)),
        ({"limit": 3}, [1], [0, EOS, 2], End(2, "stop", EOS)),  # a stop at the limit is a stop
        ({"limit": 2}, [1], [0, EOS, 2], End(1, "length")),  # a stop behind the limit is none
        ({"ignore_eos": True}, [1], [0, EOS, STOP_ID], End(3, "stop", STOP_ID)),
        ({"stop_token_ids": (2,)}, [1], [0, 2, EOS], End(2, "stop", 2)),
        ({"stop": ("bab",)}, [1], [0, 1, 0], End(2, "stop", "bab")),  # begins in an earlier step
        ({"stop": ("bab",)}, [1], [2, EOS], End(1, "stop", "bab")),  # before the EOS, inside a token
        ({"stop": ("é",)}, [], [6, 7, 0], End(2, "stop", "é")),  # a character of two tokens
        ({"stop": ("ab", "a")}, [], [2], End(1, "stop", "ab")),  # the longest of those at one place
        ({"stop": ("b", "ab")}, [], [2], End(1, "stop", "ab")),  # the earliest of those in one token
        ({"stop": ("a",), "min_new_tokens": 2}, [], [0, 1, 0, 1], End(3, "stop", "a")),
        ({"stop": ("ab",), "min_new_tokens": 1}, [], [0, 1, 0], End(2, "stop", "ab")),  # ends behind the first token
        ({"stop": ("a",), "limit": 2}, [], [1, 1, 0], End(2, "length")),
    ],
)
def test_a_row_ends_at_the_first_stop_or_its_limit(options, emitted, new, end):
    assert find_end(row(emitted, **options), new, decode) == end


STOPS = st.lists(st.text("ab é\n\ufffd", min_size=1, max_size=3), max_size=3).map(tuple)


@settings(max_examples=500, deadline=None, derandomize=True)
@example(emitted=[], new=[6, 7], stop=("\ufffd",), least=0, room=5, ignore_eos=False)  # half a character, then all
@given(
    emitted=st.lists(st.integers(0, 7), max_size=4),
    new=st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=6),
    stop=STOPS,
    least=st.integers(0, 5),
    room=st.integers(1, 7),
    ignore_eos=st.booleans(),
)
def test_a_block_ends_where_one_token_at_a_time_would(emitted, new, stop, least, room, ignore_eos):
    """However many tokens a step brings. As in the engine, no end id comes before min_new_tokens, no stop is missed."""
    options = {"stop": stop, "min_new_tokens": least, "limit": len(emitted) + room, "ignore_eos": ignore_eos}
    alone = row((), **options)
    for i, token in enumerate([*emitted, *new]):
        if i < least and token in alone.end_ids:
            return
        one = find_end(alone, [token], decode)
        if one.reason is not None and i < len(emitted):
            return  # the row would not be here
        alone.token_ids.append(token)
        if one.reason is not None:
            break

    end = find_end(row(emitted, **options), new, decode)

    assert end == End(len(alone.emitted) - len(emitted), one.reason, one.stop)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    ids=st.lists(st.integers(0, 7), min_size=1, max_size=8),
    stop=STOPS,
    least=st.integers(0, 4),
    last=st.sampled_from([0, EOS]),
)
def test_the_visible_text_ends_before_the_stop(ids, stop, least, last):
    ended = row(stop=stop, min_new_tokens=least)
    end = find_end(ended, [*ids, last] if len(ids) >= least else ids, decode)
    emitted = [*ids, last][: end.kept]
    ended.token_ids += emitted

    text = visible_text(ended, end, decode)

    if isinstance(end.stop, str):
        shown = decode(emitted)
        assert shown.startswith(text + end.stop)
        assert len(text + end.stop) > len(decode(emitted[:least])), (
            "a stop string inside the first min_new_tokens tokens"
        )
        assert end.kept > least
    elif end.stop is not None:
        assert text == decode(emitted[:-1])
    else:
        assert text == decode(emitted)


def test_a_token_that_is_an_end_id_and_completes_a_stop_string_counts_as_the_id():
    ending = row([1], stop=("ba",))
    assert find_end(ending, [EOS, 0], decode) == End(1, "stop", EOS)
    ending.token_ids.append(EOS)
    assert visible_text(ending, End(1, "stop", EOS), decode) == "b"
    assert find_end(row([1], stop=("ba",)), [0, EOS], decode) == End(1, "stop", "ba"), "an earlier string still wins"
