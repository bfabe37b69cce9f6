"""`specproof audit trace` from outside, on a real model: exit statuses, JSON, JUnit, and bfloat16's near-ties."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from subjects import generate, traces_of, vllm_lines, write_lines
from typer.testing import CliRunner

from specproof.audit import audit_traces
from specproof.audit.diagnose import BENIGN
from specproof.cli.app import app
from specproof.jobs.sidecar import sidecar_path
from specproof.lm import load_model
from specproof.tokenizer import Tokenizer

FEW = {"prompt_token_ids": [504, 3575, 282], "token_ids": [4649, 314]}
PROMPTS = (
    "The capital of France is", "Once upon a time, in a village by the sea,", "def add(a, b):",
    "Explain photosynthesis to a child.", "Q: What is 17 + 25?\nA:", "The three laws of motion are",
    "Dear Sir or Madam, I am writing to", "List five fruits:",
)  # fmt: skip


def specproof(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def run(tmp_path_factory, smollm2_folder) -> tuple[Path, Path]:
    """Prompts, and what `generate` wrote for them."""
    folder = tmp_path_factory.mktemp("audit")
    inputs = write_lines(folder / "prompts.jsonl", [{"id": f"p{k}", "prompt": text} for k, text in enumerate(PROMPTS)])
    out = folder / "out.jsonl"
    assert specproof("generate", inputs, "-o", out, "--max-new-tokens", 12).exit_code == 0
    outputs = [tuple(json.loads(line)["token_ids"]) for line in out.read_text().splitlines()]
    assert len(set(outputs)) == len(PROMPTS)
    assert len({token for output in outputs for token in output}) > 30
    return inputs, out


def audit(*arguments):
    return specproof("audit", "trace", *arguments, "--plain-rows", 2)


def changed(out: Path, path: Path, **changes) -> Path:
    """A copy in which the third row is another."""
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    rows[2] |= changes
    sidecar_path(path).write_bytes(sidecar_path(out).read_bytes())
    return write_lines(path, rows)


def test_our_own_output_passes_with_exit_status_0_and_a_full_document(run, tmp_path):
    inputs, out = run
    junit = tmp_path / "junit.xml"
    result = audit(out, "--prompts", inputs, "--reference", out, "--json", "--junit", junit)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["verdict"] == "pass"
    assert document["counts"]["exact"] == len(PROMPTS)
    assert document["plain_against_plain"]["exact_match"]["n"] == 2
    assert document["noise"]["shapes"]["width-1"]["n"] > 0
    assert document["reference"]["exact_match"]["rate"] == 1
    assert document["reference"]["rouge_l"] == 1
    suite = ElementTree.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("8", "0", "0")


def test_a_changed_token_fails_with_exit_status_1_and_is_shown_with_its_text(run, tmp_path):
    inputs, out = run
    tokens = json.loads(out.read_text().splitlines()[2])["token_ids"]
    candidate = changed(out, tmp_path / "c.jsonl", token_ids=[*tokens[:5], 1234, *tokens[6:]])
    junit = tmp_path / "junit.xml"
    result = audit(candidate, "--prompts", inputs, "--junit", junit)
    assert result.exit_code == 1
    assert "FAIL: 8 rows: 7 exact, 1 faulty" in result.stdout
    assert "accept-rule" in result.stdout
    failure = ElementTree.parse(junit).getroot().find("testcase[@name='p2']/failure")
    assert failure is not None
    assert "token 5 is 1234" in (failure.get("message") or "")


def test_a_tail_that_was_cut_is_seen_because_the_sidecar_tells_the_limit(run, tmp_path):
    inputs, out = run
    tokens = json.loads(out.read_text().splitlines()[2])["token_ids"]
    result = audit(changed(out, tmp_path / "c.jsonl", token_ids=tokens[:-3]), "--prompts", inputs, "--json")
    assert result.exit_code == 1
    (row,) = json.loads(result.stdout)["findings"]
    assert (row["id"], row["class"], row["termination"]["kind"]) == ("p2", "termination", "cut-tail")


def test_text_alone_gets_no_firm_verdict_and_says_so(run, tmp_path):
    _, out = run
    texts = [json.loads(line)["text"] for line in out.read_text().splitlines()]
    lines = [{"id": k, "prompt": p, "text": t} for k, (p, t) in enumerate(zip(PROMPTS, texts, strict=True))]
    lines[2]["text"] = "no such thing was ever said here"
    result = audit(write_lines(tmp_path / "t.jsonl", lines), "--json")
    assert result.exit_code == 2
    document = json.loads(result.stdout)
    assert document["verdict"] == "unjudged"
    assert document["counts"] == {"exact": 0, "benign": 0, "faulty": 0, "unexplained": 0, "unjudged": 8}
    assert {row["confidence"] for row in document["findings"]} == {"low"}
    assert "2" in {row["id"] for row in document["findings"]}
    assert "8 of 8 rows got no firm verdict" in result.stderr
    assert "nothing could be judged" in result.stderr
    assert "no limit is stated" in result.stderr


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        ("oops\n", (), "line 1: not JSON"),
        ('{"id": 1, "token_ids": [1]}\n', (), "line 1: it has no prompt"),
        ('{"prompt_token_ids": [1], "token_ids": [99999999]}\n', (), "row 0: its output has id 99999999"),
        ('{"prompt_token_ids": [1], "token_ids": [1]}\n', ("--dtype", "int3"), "dtype is 'int3'"),
        ('{"prompt_token_ids": [1], "token_ids": [1]}\n', ("--target", "."), "has no config.json"),
        ('{"prompt_token_ids": [1], "token_ids": [1]}\n', ("--target", "/no/such"), "there is no folder /no/such"),
    ],
)
def test_bad_input_is_one_line_and_exit_status_2(smollm2_folder, tmp_path, monkeypatch, content, options, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.jsonl").write_text(content)
    result = audit(tmp_path / "t.jsonl", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert result.stderr.startswith("specproof: ")


def test_a_reference_of_other_rows_is_refused_and_one_of_some_rows_is_noted(run, tmp_path):
    _, out = run
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    others = write_lines(tmp_path / "others.jsonl", [{**FEW, "id": "elsewhere"}])
    two = write_lines(tmp_path / "two.jsonl", [{**FEW, "id": line["id"]} for line in lines[:2]])
    candidate = write_lines(tmp_path / "c.jsonl", [{**FEW, "id": line["id"]} for line in lines[:3]])
    refused = audit(candidate, "--reference", others)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "no row of" in refused.stderr
    assert "2 of 3 rows have their reference in" in audit(candidate, "--reference", two).stderr


def test_the_plain_floor_names_the_batch_that_was_really_decoded(tmp_path, smollm2_folder):
    result = audit(write_lines(tmp_path / "t.jsonl", [FEW]))
    assert "1 row: " in result.stdout
    assert "plain against plain (batch 1 and 1): " in result.stdout


def test_the_help_of_audit_needs_no_model():
    result = specproof("audit", "trace", "--help")
    assert result.exit_code == 0
    assert "--junit" in result.stdout


@pytest.fixture(scope="module")
def bfloat16(smollm2_folder):
    """Target, tokenizer, and the trace of Transformers' own batch of 8 in bfloat16."""
    lm, tokenizer = load_model(smollm2_folder, dtype="bfloat16"), Tokenizer.load(smollm2_folder)
    rows = [tokenizer.encode(prompt) for prompt in PROMPTS]
    outputs = generate(lm, rows, 32, pad=0)
    assert len({tuple(output) for output in outputs}) == len(outputs)
    return lm, tokenizer, traces_of(rows, outputs, 32)


def test_bfloat16_divergences_are_benign_with_margin_and_noise_shown(bfloat16):
    lm, tokenizer, traces = bfloat16
    verdict = audit_traces(lm, traces, tokenizer, plain_rows=0)
    assert verdict.passed, verdict.to_dict()
    findings = [row.finding for row in verdict.rows if row.finding is not None]
    assert findings, "this batch shows no rounding at all: choose other prompts"
    for found in findings:
        assert found.cls in BENIGN
        assert found.margin <= verdict.noise.threshold
        assert found.cls == "tie" or {"batch", "batch-width-6"} <= set(found.controls)
    assert 0 < verdict.noise.near_ties < verdict.noise.positions


def test_a_wrong_token_is_no_rounding_in_bfloat16_either(bfloat16, tmp_path):
    lm, _, traces = bfloat16
    lines = vllm_lines(traces)
    tokens = lines[4]["outputs"][0]["token_ids"]
    lines[4]["outputs"][0]["token_ids"] = [*tokens[:7], (tokens[7] + 1000) % lm.vocab_size, *tokens[8:]]
    result = audit(write_lines(tmp_path / "t.jsonl", lines), "--dtype", "bfloat16", "--json")
    assert result.exit_code == 1
    (row,) = [row for row in json.loads(result.stdout)["findings"] if row["status"] == "faulty"]
    assert (row["id"], row["class"], row["finding"]["index"]) == ("row4", "accept-rule", 7)
    assert row["finding"]["margin"] > 4 * row["finding"]["noise"]


def test_a_prompt_without_a_row_is_told_and_changes_no_verdict(run, tmp_path):
    inputs, out = run
    lines = out.read_text().splitlines(keepends=True)
    fewer = tmp_path / "fewer.jsonl"
    fewer.write_text("".join(lines[:1] + lines[2:3]))
    result = audit(fewer, "--prompts", inputs, "--max-new-tokens", 12, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["notes"] == [f"6 of 8 prompts have no row in {fewer}, 'p1' first"]


def test_an_empty_prompt_is_not_the_one_in_the_file_of_prompts(run, tmp_path):
    inputs, out = run
    result = audit(changed(out, tmp_path / "empty.jsonl", prompt_token_ids=[]), "--prompts", inputs)
    assert result.exit_code == 2
    assert "row 'p2' has a prompt of 0 ids that is not the one of" in result.stderr


def test_an_engine_that_was_given_nothing_to_decode_has_not_passed(tmp_path, smollm2_folder):
    nothing = tmp_path / "empty.jsonl"
    nothing.touch()
    result = specproof("audit", "engine", nothing, "--target", smollm2_folder)
    assert result.exit_code == 2
    assert "has no rows; give at least one prompt" in result.stderr


def test_an_engine_that_drafts_with_four_bits_is_audited(tmp_path, smollm2_folder):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("The capital of France is\nOne, two, three,\n")
    options = ("--target", smollm2_folder, "--draft", smollm2_folder, "--draft-bits", 4, "--max-new-tokens", 12)
    result = specproof("audit", "engine", prompts, *options, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["violations"] == []
    assert 2 < document["steps"] < 12, "no draft was accepted"
