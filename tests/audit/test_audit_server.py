"""`specproof audit server` against a real server: a batch that corrupts its rows is caught, and only there."""

import json
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from completions_server import Switches, broken, plain, serve
from subjects import judge, prompts, save_tiny, write_lines
from typer.testing import CliRunner

from specproof.cli.app import app
from specproof.served import ask

LIMIT = 12


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"), judge())


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    rows = [{"id": f"p{k}", "token_ids": prompt} for k, prompt in enumerate(prompts())]
    return write_lines(tmp_path_factory.mktemp("inputs") / "prompts.jsonl", rows)


def specproof(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def audit(target, inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(ask, "DELAYS", (0.01, 0.02))

    def run(url: str, *options, prompts: Path = inputs):
        fast = ("--plain-rows", 2, "--num-draft-tokens", 3, "--max-new-tokens", LIMIT)
        where = ("--prompts", prompts, "--target", target, "--dtype", "float64", "--save", tmp_path / "saved")
        return specproof("audit", "server", url, *where, *fast, *options)

    return run


def document(result, status: int) -> dict:
    assert result.exit_code == status, result.output
    return json.loads(result.stdout)


def test_a_sound_speculative_server_passes_alone_and_in_a_batch(audit, tmp_path, target):
    switches = Switches()
    with serve(switches) as url:
        found = document(audit(url, "--json", "--concurrency", 8), 0)
    assert found["verdict"] == "pass"
    assert max(switches.batches) > 1, switches.batches
    for mode in ("alone", "concurrent"):
        assert (found[mode]["counts"]["exact"], found[mode]["tokens"]) == (8, 8 * LIMIT)
        assert found[mode]["plain_against_plain"]["exact_match"]["n"] == 2
    equal = found["alone_against_concurrent"]["exact_match"]
    assert (equal["hits"], equal["n"]) == (8, 8)
    assert equal["wilson95"][0] < 1
    assert found["servers"] == {"server": {"url": url, "model": "tiny", "form": "return_token_ids"}}
    saved = [json.loads(line) for line in (tmp_path / "saved" / "concurrent.jsonl").read_text().splitlines()]
    assert len({tuple(line["token_ids"]) for line in saved}) == 8
    assert len({token for line in saved for token in line["token_ids"]}) > 12
    again = ("audit", "trace", tmp_path / "saved" / "concurrent.jsonl", "--target", target, "--dtype", "float64")
    assert document(specproof(*again, "--plain-rows", 0, "--json"), 0)["counts"]["exact"] == 8


def test_a_server_that_corrupts_its_batches_is_faulty_only_when_rows_are_asked_at_once(audit, tmp_path):
    junit = tmp_path / "junit.xml"
    with serve(Switches(broken)) as url:
        found = document(audit(url, "--json", "--junit", junit), 1)
    assert found["alone"]["verdict"] == "pass"
    assert found["alone"]["counts"]["exact"] == 8
    assert found["concurrent"]["verdict"] == "fail"
    assert found["concurrent"]["counts"]["faulty"] >= 1, found["concurrent"]["counts"]
    assert found["alone_against_concurrent"]["exact_match"]["hits"] < 8
    alone, concurrent = ElementTree.parse(junit).getroot()
    assert (alone.get("failures"), concurrent.get("failures")) == ("0", str(found["concurrent"]["counts"]["faulty"]))
    first = next(row for row in found["concurrent"]["findings"] if row["finding"])
    (tmp_path / "verdict.json").write_text(json.dumps(found))
    again = specproof("audit", "explain", tmp_path / "verdict.json", "--row", f"concurrent/{first['id']}", "--json")
    replayed = document(again, 1)  # the target's name and dtype are those of the verdict
    assert (replayed["class"], replayed["reproduced"]) == (first["finding"]["class"], True)


def test_the_text_report_names_both_modes_and_what_they_share(audit):
    with serve(Switches(broken)) as url:
        result = audit(url, "--concurrency", 4)
    assert result.exit_code == 1
    assert "one at a time: PASS: 8 rows: 8 exact" in result.stdout
    assert "4 at once: FAIL: 8 rows" in result.stdout
    assert "its rows alone and 4 at once:" in result.stdout


def test_the_plain_server_is_the_reference_of_both_modes_and_has_its_own_floor(audit):
    with serve(Switches(broken)) as url, serve(Switches(plain)) as plain_url:
        found = document(audit(f"{url}/v1", "--plain-url", f"{plain_url}/v1/completions", "--json"), 1)
    assert found["alone"]["reference"]["exact_match"]["rate"] == 1
    assert found["concurrent"]["reference"]["exact_match"]["rate"] < 1
    assert found["concurrent"]["reference"]["target_takes"]["reference"] > 0
    assert found["plain_alone_against_concurrent"]["exact_match"]["rate"] == 1
    assert found["servers"]["plain"]["url"] == plain_url


@pytest.mark.parametrize(
    ("tells", "form"),
    [("as-ids", "ids in logprobs"), ("llama.cpp", "ids in logprobs"), ("sglang", "SGLang /generate")],
)
def test_ids_are_had_from_servers_that_tell_them_otherwise(audit, tells, form):
    with serve(Switches(tells=tells)) as url:
        found = document(audit(url, "--json"), 0)
    assert found["servers"]["server"]["form"] == form
    assert found["concurrent"]["counts"]["exact"] == 8


@pytest.mark.parametrize(("takes_ids", "form"), [(True, "prompt ids, text back"), (False, "text only")])
def test_a_server_that_tells_no_ids_gets_no_firm_verdict(audit, takes_ids, form):
    def encode(text: str) -> list[int]:
        return [int(word[1:]) for word in text.split()]

    with serve(Switches(broken, tells="nothing", takes_ids=takes_ids, encode=encode)) as url:
        result = audit(url, "--json")
    found = document(result, 2)
    assert [found[part]["verdict"] for part in ("alone", "concurrent")] == ["unjudged", "unjudged"]
    assert found["verdict"] == "unjudged"
    assert found["servers"]["server"]["form"] == form
    assert found["alone"]["counts"]["unjudged"] == found["concurrent"]["counts"]["unjudged"] == 8
    assert [row["status"] for row in found["concurrent"]["findings"]].count("unjudged") >= 1
    assert "concurrent: 8 of 8 rows got no firm verdict" in result.stderr
    assert "concurrent: nothing could be judged" in result.stderr


def test_rows_that_fail_are_errors_of_their_own(audit):
    rows = [tuple(prompt) for prompt in prompts()]
    switches = Switches(fails=rows[1:2], garbage=rows[2:3], resets=rows[4:5], slow=rows[6:7])
    with serve(switches) as url:
        found = document(audit(url, "--json", "--timeout", 0.5), 0)
    for mode in ("alone", "concurrent"):
        assert (found[mode]["counts"]["exact"], found[mode]["counts"]["unjudged"]) == (4, 4)
        errors = {row["id"]: row["error"] for row in found[mode]["findings"]}
        assert errors["p1"] == "HTTP 500 (out of memory)"
        assert "no JSON: '<html>oops'" in errors["p2"]
        assert errors["p4"].endswith(", 3 times")
        assert "no answer within 0.5 s" in errors["p6"]
    assert found["alone_against_concurrent"]["exact_match"]["n"] == 4


def test_a_busy_server_is_asked_again(audit, tmp_path):
    switches = Switches(busy=0)
    decode = switches.decode

    def busy_once(rows, limit):
        if len(switches.batches) == 2:
            switches.busy = 2
        return decode(rows, limit)

    switches.decode = busy_once
    with serve(switches) as url:
        found = document(audit(url, "--json"), 0)
    assert found["alone"]["counts"]["exact"] == 8
    lines = [json.loads(line) for line in (tmp_path / "saved" / "alone.jsonl").read_text().splitlines()]
    assert [line["tries"] for line in lines].count(3) == 1


def test_bad_lines_of_the_prompts_are_errors_of_their_own(audit, tmp_path):
    rows = [{"id": "good", "token_ids": [5, 6, 7]}, {"id": "bad", "oops": 1}, {"id": "empty", "prompt": ""}]
    with serve(Switches()) as url:
        found = document(audit(url, "--json", prompts=write_lines(tmp_path / "p.jsonl", rows)), 0)
    assert {row["id"] for row in found["alone"]["findings"]} == {"bad", "empty"}
    assert found["alone"]["counts"]["exact"] == 1


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("localhost:8000", "is no URL of a server"),
        ("ftp://localhost", "is no URL of a server"),
        ("http://127.0.0.1:9", "cannot reach http://127.0.0.1:9"),
    ],
)
def test_a_server_that_is_not_there_is_one_clear_error(audit, url, said):
    result = audit(url)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


@pytest.mark.parametrize(
    ("switches", "options", "said"),
    [
        ({"key": "secret"}, (), "set the environment variable SPECPROOF_API_KEY"),
        ({}, ("--model", "other"), "does not exist.); give the name of a model that it serves with --model"),
        ({"models": ("a", "b")}, (), "lists a, b; give the name of one with --model"),
        ({"models": ()}, (), "lists no models"),
        ({"fails": tuple(map(tuple, prompts()))}, (), "answers none of the first 3 prompts: HTTP 500 (out of memory)"),
    ],
)
def test_a_server_that_cannot_be_used_says_what_to_do(audit, switches, options, said):
    with serve(Switches(**switches)) as url:
        result = audit(url, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr.replace("\n", " ")


def test_the_key_comes_from_the_environment(audit, monkeypatch):
    monkeypatch.setenv("SPECPROOF_API_KEY", "secret")
    with serve(Switches(key="secret")) as url:
        assert audit(url).exit_code == 0


def test_prompts_without_a_row_and_a_folder_with_traces_are_refused(audit, tmp_path):
    (tmp_path / "none.jsonl").write_text("\n")
    with serve(Switches()) as url:
        result = audit(url, prompts=tmp_path / "none.jsonl")
        assert (result.exit_code, "has no prompt to ask for" in result.stderr) == (2, True)
        (tmp_path / "saved").mkdir(exist_ok=True)
        (tmp_path / "saved" / "alone.jsonl").write_text("mine\n")
        result = audit(url)
    assert (result.exit_code, "has traces already" in result.stderr) == (2, True)
    assert (tmp_path / "saved" / "alone.jsonl").read_text() == "mine\n"


def test_answers_are_kept_when_the_server_goes_away_in_between(audit, tmp_path):
    with serve(Switches(lives=6)) as url:
        result = audit(url)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{url} has gone" in result.stderr
    lines = [json.loads(line) for line in (tmp_path / "saved" / "alone.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == ["p0", "p1", "p2", "p3", "p4"]
    assert all(len(line["token_ids"]) == LIMIT for line in lines)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--dtype", "int3"), "dtype is 'int3'"),
        (("--device", "cuda:99"), "device 'cuda:99' cannot be used"),
        (("--target", "/no/such/model"), "there is no folder /no/such/model"),
    ],
)
def test_the_target_is_checked_before_the_server_is_asked(audit, tmp_path, options, said):
    switches = Switches()
    with serve(switches) as url:
        result = audit(url, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert not switches.batches
    assert not (tmp_path / "saved").exists()


def test_a_server_that_cannot_be_reached_leaves_no_folder_behind(target, inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = specproof("audit", "server", "http://127.0.0.1:9", "--prompts", inputs, "--target", target)
    assert result.exit_code == 2
    assert "answers are kept" not in result.stderr
    assert not list(tmp_path.iterdir())
