"""Every form of trace line gives the same rows; a line that cannot be audited is one clear error."""

import json
import re

import pytest
from subjects import write_lines

from specproof.audit.traces import read_traces
from specproof.errors import InputError

PROMPT, OUTPUT = [5, 6, 7], [8, 9]


class Words:
    """A word is an id: its number."""

    def encode(self, text):
        return [int(word) for word in text.split()]

    def encode_chat(self, messages):
        return [99, *self.encode(messages[0]["content"]), 98]


FORMS = {
    "vllm": {
        "request_id": "a", "prompt_token_ids": PROMPT,
        "outputs": [{"index": 0, "token_ids": OUTPUT, "finish_reason": "stop", "stop_reason": None}],
    },
    "vllm-flat": {"id": "a", "prompt_token_ids": PROMPT, "token_ids": OUTPUT, "finish_reason": "stop"},
    "sglang": {
        "input_ids": PROMPT, "output_ids": OUTPUT, "text": "8 9",
        "meta_info": {"id": "a", "finish_reason": {"type": "stop", "matched": 9}},
    },
    "ours-with-prompt": {
        "id": "a", "prompt_ids": PROMPT, "token_ids": OUTPUT, "prompt_len": 3, "finish_reason": "stop",
    },
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_with_ids_gives_the_same_row(tmp_path, form):
    (trace,) = read_traces(write_lines(tmp_path / "t.jsonl", [FORMS[form]]), None)
    assert (trace.id, trace.prompt_ids, trace.token_ids) == ("a", tuple(PROMPT), tuple(OUTPUT))
    assert (trace.finish_reason, trace.from_text, trace.limit_known) == ("stop", False, False)


@pytest.mark.parametrize(
    "line",
    [
        {"id": 81, "prompt": "5 6 7 ", "text": "8 9"},
        {"question_id": 81, "prompt": "5 6 7 ", "choices": [{"index": 0, "turns": ["8 9", "10"]}]},
    ],
)
def test_text_alone_is_encoded_and_marked(tmp_path, line):
    (trace,) = read_traces(write_lines(tmp_path / "t.jsonl", [line]), Words())
    assert (trace.id, trace.prompt_ids, trace.token_ids, trace.from_text) == ("81", (5, 6, 7), (8, 9), True)


def test_spec_bench_answers_take_their_prompts_from_the_questions(tmp_path):
    questions = write_lines(tmp_path / "q.jsonl", [{"question_id": 81, "category": "x", "turns": ["5 6", "7"]}])
    answers = write_lines(tmp_path / "t.jsonl", [{"question_id": 81, "choices": [{"turns": ["8 9"]}]}])
    (trace,) = read_traces(answers, Words(), questions)
    assert (trace.prompt_ids, trace.token_ids, trace.from_text) == ((5, 6), (8, 9), True)
    (trace,) = read_traces(answers, Words(), questions, chat=True)
    assert trace.prompt_ids == (99, 5, 6, 98)


def test_our_output_takes_prompts_and_rules_from_the_input(tmp_path):
    inputs = write_lines(
        tmp_path / "p.jsonl", [{"id": "a", "token_ids": PROMPT, "max_new_tokens": 2}, {"id": "b", "prompt": "1"}]
    )
    out = write_lines(
        tmp_path / "t.jsonl",
        [
            {"id": "b", "token_ids": [4], "text": "x", "prompt_len": 1, "finish_reason": "stop", "stop": "x"},
            {"id": "a", "token_ids": OUTPUT, "prompt_len": 3, "finish_reason": "length", "stop": None},
        ],
    )
    b, a = read_traces(out, Words(), inputs, max_new_tokens=7)
    assert (a.prompt_ids, a.request.max_new_tokens, a.limit_known) == ((5, 6, 7), 2, True)
    assert (b.prompt_ids, b.request.max_new_tokens, b.stop, b.from_text) == ((1,), 7, "x", False)


def test_the_sidecar_tells_the_rules_and_whether_the_prompts_are_the_same(tmp_path):
    inputs = write_lines(tmp_path / "p.jsonl", [{"id": "a", "prompt": "5 6 7"}])
    out = write_lines(tmp_path / "t.jsonl", [{"id": "a", "token_ids": OUTPUT, "prompt_len": 5}])
    identity = {"max_new_tokens": 4, "min_new_tokens": 1, "stop": ["x"], "ignore_eos": True, "chat": True}
    write_lines(tmp_path / "t.jsonl.meta.jsonl", [{"event": "start", "identity": identity}])
    (trace,) = read_traces(out, Words(), inputs)
    request = trace.request
    assert trace.prompt_ids == (99, 5, 6, 7, 98)
    assert (request.max_new_tokens, request.min_new_tokens, request.stop, request.ignore_eos) == (4, 1, ("x",), True)
    write_lines(
        tmp_path / "t.jsonl.meta.jsonl", [{"event": "start", "identity": {**identity, "input_sha256": "other"}}]
    )
    with pytest.raises(InputError, match="not the input that these results were made from"):
        read_traces(out, Words(), inputs)


def test_a_row_that_the_engine_calls_an_error_is_kept_as_one(tmp_path):
    line = {"id": 0, "token_ids": [], "finish_reason": "error", "error": "too long"}
    (trace,) = read_traces(write_lines(tmp_path / "t.jsonl", [line]), None)
    assert (trace.error, trace.token_ids) == ("too long", ())


def with_rule(**rules) -> str:
    return json.dumps({"id": "a", "prompt_token_ids": PROMPT, "token_ids": OUTPUT, **rules})


GOOD = json.dumps({"id": "a", "prompt_token_ids": PROMPT, "token_ids": OUTPUT})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "has no rows"),
        ("oops", "line 1: not JSON"),
        (f"{GOOD}\n[1]", "line 2: it is no JSON object"),
        (f"{GOOD}\n\n{GOOD}", "line 3: the id 'a' is that of line 1 too"),
        ('{"prompt_token_ids": [1]}', "line 1: it has no output"),
        ('{"token_ids": [1]}', "line 1: it has no prompt; give prompt_token_ids in the line, or the file of prompts"),
        ('{"prompt_token_ids": [1], "token_ids": ["a"]}', r"line 1: token_ids\[0\] is a string"),
        ('{"prompt_token_ids": [1], "token_ids": [-1]}', r"line 1: token_ids\[0\] is -1"),
        ('{"prompt_token_ids": [1], "outputs": []}', "line 1: outputs has 0 entries"),
        ('{"prompt_token_ids": [1], "outputs": [{}, {}]}', "line 1: outputs has 2 entries"),
        ('{"prompt_token_ids": [1], "token_ids": [1], "output_ids": [1]}', "give one of them"),
        ('{"prompt": "1", "text": "2"}', "the target has no tokenizer; give token ids"),
        ('{"prompt_token_ids": [1], "token_ids": [1], "prompt_len": 2}', "its prompt had 2 tokens"),
        ('{"question_id": 1, "choices": [{"turns": []}]}', "turns is empty"),
        (with_rule(stop_token_ids=5), "line 1: stop_token_ids is a number; give a list"),
        (with_rule(stop_token_ids="ab"), "line 1: stop_token_ids is a string; give a list"),
        (with_rule(stop_token_ids={"a": 1}), "line 1: stop_token_ids is an object; give a list"),
        (with_rule(stop=[""]), "line 1: stop has an empty string"),
        (with_rule(stop=""), "line 1: the stop that matched is an empty string"),
        (with_rule(stop={"a": 1}), "line 1: the stop that matched is an object"),
        (with_rule(stop=[1]), "line 1: stop is a number; give a string"),
        (with_rule(ignore_eos="yes"), "line 1: ignore_eos is a string; give true or false"),
        (with_rule(finish_reason=3), "line 1: finish_reason is a number; give a string"),
        (with_rule(max_tokens="ab"), "line 1: max_new_tokens is a string; give a whole number"),
        (with_rule(max_tokens=4, min_new_tokens=5), "line 1: min_new_tokens is 5, more than max_new_tokens 4"),
        (with_rule(min_new_tokens=10**90), "line 1: min_new_tokens is a number of 91 digits, more than"),
        (with_rule(prompt_len="2"), "line 1: prompt_len is a string"),
        (with_rule(max_tokens=-(10**90)), "line 1: max_new_tokens is a number of 91 digits; give a whole number"),
        (with_rule(error="", token_ids=None), "line 1: it has no output"),
    ],
)
def test_a_line_that_cannot_be_audited_is_one_clear_error(tmp_path, content, said):
    path = tmp_path / "t.jsonl"
    path.write_text(content)
    with pytest.raises(InputError, match=said):
        read_traces(path, None)


def test_a_row_that_is_not_among_the_prompts_and_a_missing_file_are_errors(tmp_path):
    inputs = write_lines(tmp_path / "p.jsonl", [{"id": "a", "token_ids": [1]}])
    out = write_lines(tmp_path / "t.jsonl", [{"id": "b", "token_ids": [1]}])
    with pytest.raises(InputError, match="its id 'b' is not in"):
        read_traces(out, None, inputs)
    with pytest.raises(InputError, match="cannot read"):
        read_traces(tmp_path / "nowhere.jsonl", None)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"max_new_tokens": "abc"}, "max_new_tokens is a string"),
        ({"max_new_tokens": -5}, "max_new_tokens is -5"),
        ({"max_new_tokens": None}, "max_new_tokens is null"),
        ({"min_new_tokens": "x"}, "min_new_tokens is a string"),
        ({"stop": None}, "stop is null"),
        ({"stop": 5}, "stop is a number"),
        ({"stop": [1]}, "stop is a number"),
        ({"ignore_eos": 1}, "ignore_eos is a number"),
        ({"chat": "no"}, "chat is a string"),
        ({"input_sha256": 7}, "input_sha256 is a number"),
    ],
)
def test_a_sidecar_with_an_impossible_rule_is_named_and_not_believed(tmp_path, rule, said):
    out = write_lines(tmp_path / "t.jsonl", [{"prompt_token_ids": PROMPT, "token_ids": OUTPUT}])
    write_lines(tmp_path / "t.jsonl.meta.jsonl", [{"event": "start", "identity": rule}])
    with pytest.raises(InputError, match=rf"t\.jsonl\.meta\.jsonl: .*{said}"):
        read_traces(out, None)


@pytest.mark.parametrize("error", ["", False])
def test_an_empty_error_is_none_and_the_row_is_read(tmp_path, error):
    (trace,) = read_traces(write_lines(tmp_path / "t.jsonl", [{**FORMS["vllm-flat"], "error": error}]), None)
    assert (trace.error, trace.token_ids) == (None, tuple(OUTPUT))


def test_prompts_that_contradict_the_row_are_an_error_that_names_it(tmp_path):
    inputs = write_lines(tmp_path / "p.jsonl", [{"id": "a", "token_ids": [5, 6, 8]}])
    with pytest.raises(InputError, match="line 1: row 'a' has a prompt of 3 ids that is not the one of 3"):
        read_traces(write_lines(tmp_path / "t.jsonl", [FORMS["vllm-flat"]]), None, inputs)


def test_a_bad_row_of_the_prompts_is_told_by_its_own_reason_unless_its_output_is_an_error_too(tmp_path):
    inputs = write_lines(tmp_path / "p.jsonl", [{"id": "a", "oops": 1}, {"id": "b", "token_ids": PROMPT}])
    refused = {"id": "a", "token_ids": [], "finish_reason": "error", "error": "unknown key"}
    lines = [refused, {"id": "b", "token_ids": OUTPUT}]
    assert [trace.error for trace in read_traces(write_lines(tmp_path / "t.jsonl", lines), None, inputs)] == [
        "unknown key",
        None,
    ]
    with pytest.raises(InputError, match=r"its row of .*p\.jsonl cannot be used: line 1: unknown key 'oops'"):
        read_traces(write_lines(tmp_path / "t.jsonl", [{"id": "a", "token_ids": OUTPUT}]), None, inputs)


def test_the_number_of_a_line_that_is_no_json_is_told_once(tmp_path):
    (tmp_path / "t.jsonl").write_text(f"{GOOD}\noops\n")
    with pytest.raises(InputError) as told:
        read_traces(tmp_path / "t.jsonl", None)
    assert re.findall(r"line \d", str(told.value)) == ["line 2"]


def test_standard_input_is_refused_in_a_sentence():
    with pytest.raises(InputError, match="not from standard input"):
        read_traces("-", None)
