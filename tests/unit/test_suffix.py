"""The suffix index against its definition, and what the drafter remembers."""

from families import VOCAB
from helpers import REQUESTS, assert_equal, decode, references, target
from hypothesis import given, settings
from hypothesis import strategies as st

from specproof import Engine, EngineConfig, Request
from specproof.drafters import DraftRow, StatefulDrafter, Suffix
from specproof.drafters.suffix import LONGEST, OCCURRENCES, SuffixIndex
from specproof.reference import decode_reference

TEXTS = st.lists(st.lists(st.integers(0, 2), max_size=40), min_size=1, max_size=4)


def agreement(text, end, tail):
    return max(n for n in range(min(end, len(tail), LONGEST) + 1) if n == 0 or text[end - n : end] == tail[-n:])


def longest_match(texts, tail, size):
    """Straight from the definition: all places in the order in which they were added, the latest of the longest."""
    places = [(text, end) for text in texts for end in range(size, len(text) + 1) if agreement(text, end, tail) >= size]
    going = [(text, end) for text, end in places[-OCCURRENCES:] if end < len(text)]
    if not going:
        return None
    length = max(agreement(text, end, tail) for text, end in going)
    text, end = [place for place in going if agreement(*place, tail) == length][-1]
    return length, text[end:]


@settings(max_examples=400, deadline=None, derandomize=True)
@given(texts=TEXTS, tail=st.lists(st.integers(0, 2), max_size=40), size=st.integers(1, 3), cuts=st.integers(0, 40))
def test_the_longest_match_is_found_however_the_texts_grew(texts, tail, size, cuts):
    index = SuffixIndex(size)
    for text in texts:
        grown = list(text[:cuts])
        index.add(grown)
        grown += text[cuts:]
        index.add(grown, len(text[:cuts]))
    match, naive = index.find(tail, 5), longest_match(texts, tail, size)
    assert (match is None) == (naive is None)
    if match is not None and naive is not None:
        assert (match.length, match.drafts) == (naive[0], naive[1][:5])
        assert len(match.votes) == len(match.drafts)
        assert all(0 < vote <= 1 for vote in match.votes)


def test_votes_are_the_share_of_matches_that_go_on_alike():
    index = SuffixIndex(2)
    index.add([1, 2, 7, 8, 0, 1, 2, 7, 9, 0, 1, 2, 5, 5])
    match = index.find([3, 1, 2], 3)
    assert match is not None
    assert (match.length, match.drafts) == (2, [5, 5])
    assert match.votes == [1 / 3, 1.0]


def test_the_row_itself_comes_before_others_of_equal_length_and_longer_matches_before_both():
    suffix = Suffix(corpus=[[1, 2, 50, 51], [9, 1, 2, 40, 41]])
    assert suffix.propose([DraftRow("a", (1, 2, 30, 31, 1, 2), 2, prompt_len=6)], 2).ids == [[30, 31]]
    assert suffix.propose([DraftRow("b", (9, 1, 2, 30, 7, 1, 2), 2, prompt_len=7)], 2).ids == [[30, 7]]
    assert suffix.propose([DraftRow("c", (8, 1, 2, 30, 9, 1, 2), 2, prompt_len=7)], 2).ids == [[40, 41]]
    assert suffix.propose([DraftRow("d", (6, 6, 5), 2), DraftRow("e", (1,), 2)], 2).ids == [[], []]


def test_outputs_of_finished_rows_are_drafted_for_others_and_prompts_are_not():
    suffix = Suffix()
    suffix.propose([DraftRow("a", (1, 2, 3), 2, prompt_len=3)], 2)
    suffix.propose([DraftRow("a", (1, 2, 3, 4, 5, 6, 7), 2, prompt_len=3)], 2)
    suffix.release("a")
    assert suffix.propose([DraftRow("b", (8, 4, 5), 5, prompt_len=3)], 5).ids == [[6, 7]]
    assert suffix.propose([DraftRow("c", (8, 1, 2), 5, prompt_len=3)], 5).ids == [[]]


def test_what_a_running_row_has_emitted_is_drafted_for_others():
    suffix = Suffix()
    a = (1, 2, 3, 4, 5, 6, 7)
    assert suffix.propose([DraftRow("a", a, 2, prompt_len=3), DraftRow("b", (8, 4, 5), 5, prompt_len=3)], 5).ids == [
        [],
        [6, 7],
    ]
    rows = [DraftRow("a", (*a, 9, 4, 5), 5, prompt_len=3), DraftRow("b", (8, 4, 5, 6, 1, 2), 5, prompt_len=3)]
    assert suffix.propose(rows, 5).ids == [[6, 7, 9, 4, 5], []], "the row itself first; nothing of its prompt"
    assert suffix.propose([DraftRow("c", (7, 9), 5, prompt_len=1)], 5).ids == [[4, 5]]
    assert suffix.propose([DraftRow("d", (1, 4), 5, prompt_len=1)], 5).ids == [[]]


def test_memory_of_finished_outputs_is_bounded():
    suffix = Suffix(memory=50)
    for n in range(200):
        suffix.propose([DraftRow(f"{n}", (0, *(n * 10 + i for i in range(1, 11))), 1, prompt_len=1)], 1)
        suffix.release(f"{n}")
    held = len(suffix._older) + len(suffix._outputs)
    assert 50 <= held <= 2 * 60
    assert not suffix._rows
    assert suffix.propose([DraftRow("new", (5, 1991, 1992), 2, prompt_len=3)], 2).ids == [[1993, 1994]]
    assert suffix.propose([DraftRow("old", (5, 11, 12), 2, prompt_len=3)], 2).ids == [[]]


def test_an_engine_that_decodes_one_prompt_twice_drafts_the_second_from_the_first():
    prompt = [(7 * i + 3) % VOCAB for i in range(9)]
    truth = decode_reference(target("llama"), Request(prompt, max_new_tokens=40))
    engine = Engine(target("llama"), Suffix(), EngineConfig(batch_size=1))
    assert isinstance(engine.drafter, StatefulDrafter)
    first, second = engine.generate([Request([*prompt], max_new_tokens=40) for _ in range(2)])
    assert_equal([first, second], [truth, truth], "twice")
    assert second.num_steps < 0.5 * first.num_steps


def test_every_row_is_the_reference_with_a_corpus_of_right_and_wrong_texts():
    corpus = [reference.token_ids for reference in references("qwen3")] + [[1, 2, 3] * 20]
    for adaptive in (False, True):
        config = EngineConfig(batch_size=3, adaptive=adaptive)
        outputs, _, engine = decode(target("qwen3"), Suffix(corpus), config, REQUESTS)
        assert_equal(outputs, references("qwen3"), adaptive)
        assert adaptive or engine.statistics.accepted > 10
