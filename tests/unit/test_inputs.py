"""Reading prompts: every form, and every way a line or a file can be wrong."""

import io
import json
import os
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specproof.errors import InputError, RequestError
from specproof.jobs.inputs import open_input, to_request
from specproof.jobs.row import InputRow, json_row, text_row
from specproof.request import Request

GOOD = b'{"prompt": "good"}'


class Letters:
    """A tokenizer of one id per character; a chat begins with -1."""

    def encode(self, text):
        return [ord(letter) for letter in text]

    def encode_chat(self, messages):
        return [-1, *self.encode("".join(message["content"] for message in messages))]


def read(path: Path) -> list[InputRow]:
    with open_input(str(path)) as source:
        rows = list(source.rows())
        assert source.num_rows == len(rows)
        return rows


def write(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def error_of(line: bytes) -> str:
    row = json_row(4, 7, line)
    assert row.error is not None, f"{line!r} was read as {row}"
    assert row.error.startswith("line 7: ")
    return row.error


def test_a_text_file_has_a_prompt_per_line_and_blank_lines_are_skipped(tmp_path):
    rows = read(write(tmp_path / "p.txt", b"one", b"", b"  two ", b"   ", b'{"prompt": "three"}'))
    assert [(row.index, row.line, row.id, row.prompt) for row in rows] == [
        (0, 1, 0, "one"),
        (1, 3, 1, "  two "),
        (2, 5, 2, '{"prompt": "three"}'),
    ]


def test_byte_order_mark_and_windows_line_ends_are_no_part_of_a_prompt(tmp_path):
    (tmp_path / "p.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\nthree")
    assert [row.prompt for row in read(tmp_path / "p.txt")] == ["one", "two", "three"]
    (tmp_path / "p.jsonl").write_bytes(b"\xef\xbb\xbf" + GOOD + b"\r\n" + GOOD)
    assert [row.prompt for row in read(tmp_path / "p.jsonl")] == ["good", "good"]


def test_only_a_newline_ends_a_line(tmp_path):
    assert [row.prompt for row in read(write(tmp_path / "p.txt", "a\u2028b\x0bc\x85d".encode()))] == [
        "a\u2028b\x0bc\x85d"
    ]


def test_jsonl_rows_have_a_prompt_messages_or_token_ids(tmp_path):
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    lines = [{"prompt": ""}, {"id": "chat", "messages": chat}, {"id": 7, "token_ids": [3, 1]}, {"token_ids": []}]
    rows = read(write(tmp_path / "p.jsonl", *(json.dumps(line).encode() for line in lines)))
    assert [row.error for row in rows] == [None] * 4
    assert [row.id for row in rows] == [0, "chat", 7, 3]
    assert [(row.prompt, row.messages, row.token_ids) for row in rows] == [
        ("", None, None),
        (None, tuple(chat), None),
        (None, None, (3, 1)),
        (None, None, ()),
    ]


def test_a_row_overrides_what_holds_for_all():
    line = {"prompt": "ab", "max_new_tokens": 9, "stop": "x", "stop_token_ids": [4], "ignore_eos": False}
    row = json_row(5, 1, json.dumps(line).encode())
    defaults = Request((), max_new_tokens=3, min_new_tokens=2, stop=("y", "z"), ignore_eos=True)
    assert to_request(row, Letters(), defaults) == Request([97, 98], 9, 2, ("x",), (4,), False, "5")
    assert to_request(json_row(5, 1, GOOD), Letters(), defaults).stop == ("y", "z")
    assert to_request(json_row(5, 1, b'{"prompt": "a", "stop": []}'), Letters(), defaults).stop == ()


def test_a_prompt_is_encoded_as_it_stands_unless_chat_is_asked_for():
    chat_row = InputRow(0, 1, 0, messages=({"role": "user", "content": "a"},))
    assert to_request(InputRow(0, 1, 0, prompt="a"), Letters(), Request(())).prompt_ids == [97]
    assert to_request(InputRow(0, 1, 0, prompt="a"), Letters(), Request(()), chat=True).prompt_ids == [-1, 97]
    assert to_request(chat_row, Letters(), Request(())).prompt_ids == [-1, 97]
    assert to_request(InputRow(0, 1, 0, token_ids=(5,)), Letters(), Request(()), chat=True).prompt_ids == (5,)


def test_a_bad_row_has_no_request():
    with pytest.raises(RequestError, match="line 2: not JSON"):
        to_request(json_row(1, 2, b"oops"), Letters(), Request(()))


def test_spec_bench_rows_are_read_as_published(tmp_path):
    line = {"question_id": 81, "category": "writing", "turns": ["first", "second"], "reference": ["r", ""]}
    (row,) = read(write(tmp_path / "question.jsonl", json.dumps(line).encode()))
    assert (row.id, row.prompt, row.error) == (81, "first", None)


def test_null_counts_as_absent():
    row = json_row(3, 1, b'{"id": null, "prompt": "a", "messages": null, "stop": null, "max_new_tokens": null}')
    assert (row.id, row.prompt, row.overrides, row.error) == (3, "a", {}, None)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"plain text", "not JSON"),
        (b'{"prompt": "a"', "not JSON"),
        (b'{"prompt": "a"} {"prompt": "b"}', "not JSON"),
        (b'["a"]', "JSON, but a list; a line must be one JSON object"),
        (b"null", "JSON, but null"),
        (b"7", "JSON, but a number"),
        (b'{"prompt": "\xff"}', "not UTF-8 (byte 13 of the line)"),
        (b"[" * 100_000, "JSON that cannot be read"),
        (b'{"max_new_tokens": ' + b"9" * 5000 + b"}", "JSON that cannot be read"),
        (b"{}", "no prompt; give exactly one of prompt, messages, token_ids, turns"),
        (b'{"id": 3}', "no prompt"),
        (b'{"prompt": null}', "no prompt"),
        (b'{"prompt": "a", "token_ids": [1]}', "prompt and token_ids; give exactly one"),
        (b'{"prompt": "a", "prompt": "b"}', "key 'prompt' is given twice"),
        (b'{"prompt": "a", "max_tokens": 5}', "unknown key 'max_tokens'; known keys: id, prompt"),
        (b'{"prompt": "a", "category": "writing"}', "unknown key 'category'"),
        (b'{"prompt": ["a"]}', "prompt is a list; give a string"),
        (b'{"prompt": "\\ud800"}', "half of a surrogate pair"),
        (b'{"prompt": "a", "id": 1.5}', "id is a number; give a string or a whole number"),
        (b'{"prompt": "a", "id": true}', "id is a boolean"),
        (b'{"prompt": "a", "id": "\\udfff"}', "half of a surrogate pair"),
        (b'{"turns": []}', "turns is empty"),
        (b'{"turns": "a"}', "turns is a string; give a list"),
        (b'{"turns": ["a", 2]}', "turns[1] is a number"),
        (b'{"messages": []}', "messages is empty"),
        (b'{"messages": {"role": "user", "content": "a"}}', "messages is an object; give a list"),
        (b'{"messages": [{"role": "user"}]}', "messages[0] must be an object with exactly the keys role and content"),
        (
            b'{"messages": [{"role": "user", "content": "a", "name": "b"}]}',
            "messages[0] must be an object with exactly",
        ),
        (b'{"messages": [{"role": "user", "content": null}]}', "messages[0].content is null"),
        (b'{"token_ids": "12"}', "token_ids is a string; give a list"),
        (b'{"token_ids": [1, "2"]}', "token_ids[1] is a string; give a whole number"),
        (b'{"token_ids": [1, 2.0]}', "token_ids[1] is 2.0; give a whole number"),
        (b'{"token_ids": [true]}', "token_ids[0] is True; give a whole number"),
        (b'{"token_ids": [-1]}', "token_ids[0] is -1; give a whole number of at least 0"),
        (b'{"token_ids": [NaN]}', "NaN is not JSON"),
        (b'{"token_ids": [1e999]}', "token_ids[0] is inf"),
        (b'{"prompt": "a", "max_new_tokens": 0}', "max_new_tokens is 0; give a whole number of at least 1"),
        (b'{"prompt": "a", "max_new_tokens": "5"}', "max_new_tokens is a string"),
        (b'{"prompt": "a", "max_new_tokens": 5.0}', "max_new_tokens is 5.0"),
        (b'{"prompt": "a", "min_new_tokens": -1}', "min_new_tokens is -1"),
        (b'{"prompt": "a", "ignore_eos": 1}', "ignore_eos is a number; give true or false"),
        (b'{"prompt": "a", "stop": ""}', "stop has an empty string"),
        (b'{"prompt": "a", "stop": ["b", 1]}', "stop is a number; give a string"),
        (b'{"prompt": "a", "stop": {"b": 1}}', "stop is an object; give a list"),
        (b'{"prompt": "a", "stop_token_ids": 2}', "stop_token_ids is a number; give a list"),
        (b'{"prompt": "a", "stop_token_ids": [null]}', "stop_token_ids[0] is null"),
    ],
)
def test_a_bad_line_says_what_is_wrong_and_what_to_do(line, said):
    assert said in error_of(line)


def test_a_bad_line_keeps_its_id_and_has_none_if_it_named_none():
    assert json_row(2, 3, b'{"id": "mine", "prompt": 5}').id == "mine"
    assert json_row(2, 3, b'{"prompt": 5}').id is None  # 2 may be another row's id
    assert text_row(2, 3, b"\xff").id == 2


def test_a_bad_line_harms_no_other_row(tmp_path):
    rows = read(write(tmp_path / "p.jsonl", GOOD, b"oops", b'{"id": 1, "prompt": "x"}', b"\xff\xfe", GOOD))
    assert [row.error is None for row in rows] == [True, False, True, False, True]
    assert [row.id for row in rows] == [0, None, 1, None, 4]


@settings(deadline=None)
@given(st.binary())
def test_no_line_of_garbage_crashes(line):
    for parse in (json_row, text_row):
        row = parse(0, 1, line)
        given = [content for content in (row.prompt, row.messages, row.token_ids) if content is not None]
        assert len(given) == (row.error is None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from(["id", "prompt", "messages", "token_ids", "turns", "question_id", "max_new_tokens", "stop", "x"])


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(KEYS, JSON, max_size=4))
def test_no_object_of_garbage_crashes_and_what_is_accepted_makes_a_request(record):
    row = json_row(0, 1, json.dumps(record).encode())
    if row.error is None:
        assert to_request(row, Letters(), Request(())).request_id == "0"


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(st.binary().map(lambda line: line.replace(b"\n", b"")).filter(bytes.strip), max_size=5))
def test_garbage_between_good_rows_leaves_them_as_they_are(tmp_path_factory, garbage):
    good = b'{"id": "sure", "prompt": "good"}'
    rows = read(write(tmp_path_factory.mktemp("garbage") / "p.jsonl", b"{}", *garbage, good))
    assert len(rows) == len(garbage) + 2
    assert (rows[-1].id, rows[-1].prompt, rows[-1].index) == ("sure", "good", len(garbage) + 1)


def test_the_form_follows_the_name_or_else_the_first_filled_line(tmp_path):
    for name, prompt in [("p", "good"), ("p.dat", "good"), ("p.txt", GOOD.decode()), ("p.JSONL", "good")]:
        assert read(write(tmp_path / name, b"", GOOD))[0].prompt == prompt
    assert read(write(tmp_path / "q", b"{ not json", GOOD))[0].prompt == "{ not json"


def test_standard_input_is_read_once_and_given_twice(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(GOOD + b"\nplain\n")))
    with open_input("-") as source:
        for _ in range(2):
            assert [row.prompt for row in source.rows()] == ["good", None]


def test_a_named_pipe_is_read_like_standard_input(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"one\ntwo\n",))
    writer.start()
    assert [row.prompt for row in read(pipe)] == ["one", "two"]
    writer.join()


def test_an_empty_file_has_no_rows(tmp_path):
    assert read(write(tmp_path / "p.jsonl")) == []
    assert read(write(tmp_path / "p", b"", b"  ")) == []


@pytest.mark.parametrize("ids", [('"a"', '"a"'), ("7", '"7"'), ("1", None)])
def test_two_rows_with_one_id_are_refused_by_line(tmp_path, ids):
    lines = [b'{"prompt": "x"}' if i is None else f'{{"id": {i}, "prompt": "x"}}'.encode() for i in ids]
    with pytest.raises(InputError, match="lines 1 and 3 both have the id"):
        read(write(tmp_path / "p.jsonl", lines[0], b"", lines[1]))


def test_a_missing_file_a_folder_and_utf16_are_refused_with_what_to_do(tmp_path):
    for name, said in [("nowhere", "cannot read .*nowhere: No such file"), (".", "cannot read .*: Is a directory")]:
        with pytest.raises(InputError, match=said):
            read(tmp_path / name)
    (tmp_path / "p.txt").write_text("one\n", encoding="utf-16")
    with pytest.raises(InputError, match="UTF-16; save it as UTF-8"):
        read(tmp_path / "p.txt")
