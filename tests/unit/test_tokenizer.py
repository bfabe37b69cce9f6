"""Text to ids and back, with a real tokenizer; and mismatches, with tiny ones made for the purpose."""

import logging
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from specproof.errors import ConfigError, RequestError, TokenizerMismatchError
from specproof.tokenizer import PROBE, Tokenizer, require_same

QUESTION = [{"role": "user", "content": "Why?"}]


@pytest.fixture(scope="module")
def tokenizer(smollm2_folder: Path) -> Tokenizer:
    return Tokenizer.load(smollm2_folder)


def tiny(*changes, normalizer=None, pre_tokenizer=None, chat_template: str | None = None) -> Tokenizer:
    """A tokenizer of single bytes plus "ab"; each of `changes` edits its vocabulary."""
    vocabulary = {char: index for index, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary["ab"] = len(vocabulary)
    for change in changes:
        change(vocabulary)
    backend = Backend(models.BPE(vocabulary, merges=[("a", "b")]))
    backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=chat_template))


def mismatch(target: Tokenizer, draft: Tokenizer) -> str:
    with pytest.raises(TokenizerMismatchError) as caught:
        require_same(target, draft)
    return str(caught.value)


@pytest.mark.parametrize("text", ["", "Hello,  world!\n\n\tx = 1", PROBE, "a . b , c n't 's"])
def test_decoding_gives_the_text_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_long_text_is_neither_cut_nor_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    short = tiny()
    short._hf.model_max_length = 10
    with caplog.at_level(logging.WARNING):
        assert len(short.encode("xy " * 100)) == 300
    assert caplog.text == ""


def test_chat_messages_end_where_the_answer_begins(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_chat(QUESTION)
    assert tokenizer._hf.decode(ids).endswith("<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n")
    assert ids.count(1) == 3, "system, user and assistant each begin with <|im_start|>, written once"


def test_chat_messages_without_a_template_are_an_error_of_the_request() -> None:
    with pytest.raises(RequestError, match="no chat template"):
        tiny().encode_chat(QUESTION)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "empty"),
        (["Why?"], r"messages\[0\] is 'Why\?'"),
        ([*QUESTION, {"content": "Because."}], r"messages\[1\]"),
        ([{"role": "user"}], r"messages\[0\]"),
        ([{"role": "user", "content": 7}], "the chat template refuses"),
    ],
)
def test_malformed_messages_are_an_error_of_the_request(tokenizer: Tokenizer, messages: list, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        tokenizer.encode_chat(messages)


def test_what_a_template_itself_refuses_is_an_error_of_the_request() -> None:
    strict = tiny(chat_template="{{ raise_exception('roles must alternate') }}")
    with pytest.raises(RequestError, match="roles must alternate"):
        strict.encode_chat(QUESTION)


def test_special_tokens_and_ids_outside_the_vocabulary_add_no_text(tokenizer: Tokenizer) -> None:
    assert {0, 1, 2, 16} <= tokenizer.special_ids
    beyond = max(tokenizer.vocabulary()) + 1
    for extra in (*tokenizer.special_ids, beyond):
        assert tokenizer.decode([*tokenizer.encode("yes"), extra]) == "yes"


def test_bos_is_none_where_the_tokenizer_has_none(tokenizer: Tokenizer) -> None:
    assert tokenizer.bos_id == 1
    assert tiny().bos_id is None


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path)):
        Tokenizer.load(tmp_path)


def test_equal_tokenizers_match(tokenizer: Tokenizer, smollm2_folder: Path) -> None:
    require_same(tokenizer, Tokenizer.load(smollm2_folder))
    require_same(tiny(), tiny())


def test_the_first_differing_token_is_named() -> None:
    def swap(vocabulary: dict[str, int]) -> None:
        vocabulary["b"], vocabulary["a"] = vocabulary["a"], vocabulary["b"]

    first = tiny()._hf.convert_tokens_to_ids("a")
    assert f"id {first} is 'a' in the target's tokenizer and 'b' in the draft's" in mismatch(tiny(), tiny(swap))


def test_a_token_that_one_side_lacks_is_named() -> None:
    longer = tiny()
    longer._hf.add_tokens([AddedToken("<tool>", special=True)])
    assert "id 257 is not defined in the target's tokenizer and '<tool>' in the draft's" in mismatch(tiny(), longer)
    assert "id 257 is '<tool>' in the target's tokenizer and not defined in the draft's" in mismatch(longer, tiny())


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (
            {"normalizer": normalizers.Lowercase()},
            "token 0 of a test text is 'G' (id 38) by the target's tokenizer and 'g'",
        ),
        ({"normalizer": normalizers.NFC()}, "split text differently"),
        ({"normalizer": normalizers.Replace(Regex(" +"), " ")}, "split text differently"),
        ({"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True)}, "token 0 of a test text is 'G'"),
    ],
)
def test_the_same_vocabulary_with_other_rules_is_a_mismatch(rules: dict, message: str) -> None:
    assert message in mismatch(tiny(), tiny(**rules))
