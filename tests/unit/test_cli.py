"""The command line from outside: what it writes, says and returns, and how it ends when it is stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specproof.cli.app import app
from specproof.config import METHODS

LIMITS = (12, 2, 7, 1, 9, 3, 14, 5)
FIELDS = [
    "id", "text", "token_ids", "prompt_len", "shared", "finish_reason", "stop", "error", "steps", "drafted",
    "accepted", "acceptance_histogram", "seconds",
]  # fmt: skip
# What a row's neighbours and the clock may change: never what it says.
COUNTS = ("seconds", "shared", "steps", "drafted", "accepted", "acceptance_histogram")
RATES = ("acceptance_rate", "mean_accepted_length", "tokens_per_second")


def specproof(*arguments, stdin=None):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def start(*arguments, **pipes) -> subprocess.Popen:
    """A process that heeds Ctrl-C, even if this one ignores it, as jobs in the background of a shell do."""
    command = [sys.executable, "-m", "specproof", *map(str, arguments)]
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heed, **pipes)


def read(out: Path, but: tuple[str, ...] = ("seconds",)) -> list[dict]:
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in row.items() if key not in but} for row in rows]


def wait_for_rows(out: Path, process: subprocess.Popen) -> None:
    """Until some rows have finished. The journal is asked too, since a later row may finish first."""
    while not any(path.exists() and path.stat().st_size for path in (out, out.with_name(out.name + ".partial"))):
        assert process.poll() is None, f"ended before a row finished: {process.communicate()}"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory) -> Path:
    """Rows of very different length, so that they finish out of order."""
    path = tmp_path_factory.mktemp("cli") / "prompts.jsonl"
    rows = [{"id": f"p{n}", "prompt": "one two three one two" + " three" * n, "max_new_tokens": n} for n in LIMITS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def undisturbed(prompts, smollm2_folder) -> tuple[Path, dict]:
    """OUT of a run to its end, and its JSON document."""
    out = prompts.with_name("undisturbed.jsonl")
    result = specproof("generate", prompts, "-o", out, "--batch-size", 2, "--json")
    assert result.exit_code == 0, result.output
    return out, json.loads(result.stdout)


def test_help_is_quick_because_it_does_not_import_torch():
    code = "import sys, specproof.cli.app; print('torch' in sys.modules, 'transformers' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["False", "False"]
    for arguments in ([], ["generate"], ["methods"], ["env"], ["demo"], ["audit"], ["audit", "trace"]):
        assert specproof(*arguments, "--help").exit_code == 0


def test_methods_lists_every_method_with_its_parts():
    document = json.loads(specproof("methods", "--json").stdout)
    assert list(document["methods"]) == list(METHODS)
    assert document["methods"]["exspec"]["scheduler"] == "same-length"
    assert set(document["drafters"]) == {"model", "prompt-lookup", "suffix", "cascade", "none"}
    assert all(name in specproof("methods").stdout for name in METHODS)


def test_env_tells_versions_and_machine():
    facts = json.loads(specproof("env", "--json").stdout)
    assert {"python", "torch", "transformers", "cpu", "threads", "dtypes", "cuda_devices", "cache_folder"} <= set(facts)
    assert "torch" in specproof("env").stdout


def test_results_are_in_input_order_with_every_field(undisturbed):
    rows = read(undisturbed[0], but=())
    assert [row["id"] for row in rows] == [f"p{limit}" for limit in LIMITS]
    assert [list(row) for row in rows] == [FIELDS] * len(LIMITS)
    for row, limit in zip(rows, LIMITS, strict=True):
        assert len(row["token_ids"]) == limit
        assert row["finish_reason"] == "length"
        assert row["seconds"] > 0
        # Every step emits its accepted drafts and a token of the target's; the last may be cut by the limit.
        assert sum(row["acceptance_histogram"]) == row["steps"]
        assert row["accepted"] <= row["drafted"]
    assert not undisturbed[0].with_name("undisturbed.jsonl.partial").exists()


def test_the_json_document_has_counts_that_agree_with_the_rows(undisturbed):
    out, document = undisturbed
    rows = read(out)
    assert (document["rows"], document["errors"], document["resumed_rows"]) == (len(LIMITS), 0, 0)
    assert document["finish_reasons"] == {"stop": 0, "length": len(LIMITS), "error": 0}
    assert document["tokens"] == document["new_tokens"] == sum(LIMITS)
    for key in ("steps", "drafted", "accepted", "shared"):
        assert document[key] == sum(row[key] for row in rows)
    assert document["acceptance_rate"] == pytest.approx(document["accepted"] / document["drafted"], abs=1e-6)
    assert document["mean_accepted_length"] == pytest.approx(sum(LIMITS) / document["steps"], abs=1e-6)
    assert document["tokens_per_second"] == pytest.approx(sum(LIMITS) / document["seconds"], rel=1e-3)
    assert (document["method"], document["batch_size"], document["layout"]) == ("specproof", 2, "slotted")
    assert document["refilled"] > 0
    assert document["prefilled"] + document["shared"] == sum(row["prompt_len"] - 1 for row in rows)


def test_every_drafter_gives_the_same_rows(undisturbed, prompts, smollm2_folder, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(" ".join(row["text"] for row in read(undisturbed[0])), encoding="utf-8")
    for name, options in {
        "none": ("--drafter", "none"),
        "suffix": ("--drafter", "suffix", "--corpus", corpus),
        "fixed": ("--drafter", "suffix", "--no-adaptive"),
        "cascade": ("--drafter", "cascade", "--draft", smollm2_folder, "--draft-head", 9000, "--no-adaptive"),
    }.items():
        result = specproof("generate", prompts, "-o", tmp_path / name, "--batch-size", 2, "--json", *options)
        assert result.exit_code == 0, result.output
        document = json.loads(result.stdout)
        counts = ("seconds", "shared", "steps", "drafted", "accepted", "acceptance_histogram")
        assert read(tmp_path / name, counts) == read(undisturbed[0], counts)
        assert document["adaptive"] == (name == "suffix")
        assert document["num_draft_tokens"] == (5 if name in ("fixed", "cascade", "none") else 16)
        assert document["expected"] == 0 or name == "suffix"
        assert document["price_seconds"] == 0 or name == "suffix"
        if name == "cascade":
            assert document["acceptance_by_place"][0] > 0.2
            assert document["draft_seconds"] < document["step_seconds"] < document["seconds"]
            assert document["drafter"] == f"cascade:{smollm2_folder}"


def test_the_sidecar_says_how_the_results_came_about(undisturbed):
    first, last = read(undisturbed[0].with_name("undisturbed.jsonl.meta.jsonl"), but=())
    assert (first["event"], last["event"]) == ("start", "end")
    assert {"versions", "command", "identity", "target", "drafter", "dtype", "device", "machine"} <= set(first)
    assert last["rows"] == len(LIMITS)


def test_a_killed_run_resumes_without_losing_or_repeating_a_row(undisturbed, prompts, tmp_path):
    out = tmp_path / "out.jsonl"
    process = start("generate", prompts, "-o", out, "--batch-size", 2, stdout=subprocess.DEVNULL)
    wait_for_rows(out, process)
    process.kill()
    process.communicate()
    with out.open("a") as file:
        file.write('{"id": "p12", "te')  # a torn line, in case the kill left none
    result = specproof("generate", prompts, "-o", out, "--batch-size", 3, "--resume", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["resumed_rows"] >= 1
    assert json.loads(result.stdout)["tokens"] == sum(LIMITS) > json.loads(result.stdout)["new_tokens"]
    assert read(out, COUNTS) == read(undisturbed[0], COUNTS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "out.jsonl.meta.jsonl"]


def test_ctrl_c_keeps_finished_rows_and_says_how_to_go_on(undisturbed, prompts, tmp_path):
    out, longer = tmp_path / "out.jsonl", tmp_path / "prompts.jsonl"
    more = [{"id": f"more{n}", "prompt": f"Write about {n}.", "max_new_tokens": 99} for n in range(40)]
    longer.write_text(prompts.read_text() + "".join(json.dumps(row) + "\n" for row in more))
    process = start("generate", longer, "-o", out, "--batch-size", 2, stdout=subprocess.DEVNULL)
    wait_for_rows(out, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    rows = len(LIMITS) + len(more)
    assert f"of {rows} rows are finished, kept in {out}; the same command with --resume goes on" in said
    assert "Traceback" not in said
    finished = read(out, COUNTS)[: len(LIMITS)]
    assert finished == read(undisturbed[0], COUNTS)[: len(finished)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--numerics", "fast"), 'numerics was "auto" and is "fast"'),
        (("--attention", "eager"), 'attention was "sdpa" and is "eager"'),
        (("--drafter", "suffix"), 'drafter was "prompt-lookup" and is "suffix"'),
    ],
)
def test_a_run_is_not_resumed_with_other_arithmetic_or_another_drafter(undisturbed, prompts, options, said):
    before = undisturbed[0].read_bytes()
    result = specproof("generate", prompts, "-o", undisturbed[0], "--resume", *options)
    assert (result.exit_code, undisturbed[0].read_bytes()) == (2, before)
    assert said in result.stderr


def test_a_corpus_is_told_where_it_is_cut_and_refused_where_it_is_no_text(
    prompts, smollm2_folder, tmp_path, monkeypatch
):
    monkeypatch.setattr("specproof.jobs.run.MOST_CORPUS", 5)
    corpus, out = tmp_path / "corpus.txt", tmp_path / "out.jsonl"
    for content, code, said in (
        (b"one two three four five six seven", 0, "tokens; the first 5 are used"),
        (b"\xff\xfe", 2, "cannot read the corpus"),
        (b" \n", 2, "has no text; leave --corpus out"),
    ):
        corpus.write_bytes(content)
        options = ("--overwrite", "--drafter", "suffix", "--corpus", corpus, "--max-new-tokens", 2)
        result = specproof("generate", prompts, "-o", out, *options)
        assert (result.exit_code, said in result.stderr) == (code, True), result.stderr


def test_a_closed_pipe_ends_it_quietly(prompts, smollm2_folder):
    process = start("generate", prompts, "-o", "-", "--batch-size", 2, stdout=subprocess.PIPE)
    assert json.loads(process.stdout.readline())["id"] == "p12"
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait(timeout=60) == 141
    assert said == ""


def test_a_complete_run_is_resumed_without_loading_a_model(undisturbed, prompts, monkeypatch):
    monkeypatch.setattr("specproof.cli.run.load_engine", None)
    out = undisturbed[0]
    before = out.read_bytes()
    result = specproof("generate", prompts, "-o", out, "--resume", "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["resumed_rows"], document["new_tokens"]) == (0, len(LIMITS), 0)
    assert document["tokens_per_second"] is None
    assert out.read_bytes() == before


def test_results_are_not_overwritten_or_mixed_by_mistake(undisturbed, prompts, monkeypatch, tmp_path):
    monkeypatch.setattr("specproof.cli.run.load_engine", None)
    out = undisturbed[0]
    before = out.read_bytes()
    other = tmp_path / "other.txt"
    other.write_text("one\n")
    for arguments, said in [
        ((prompts,), "has results already; --resume goes on after them, --overwrite begins anew"),
        ((prompts, "--resume", "--max-new-tokens", 5), "begun differently: max_new_tokens was 128 and is 5."),
        (
            (prompts, "--resume", "--target", "other/model"),
            'target was "embedded:SmolLM2-135M-Instruct" and is "other/',
        ),
        ((other, "--resume"), "begun differently: input_sha256 was"),
    ]:
        result = specproof("generate", *arguments, "-o", out)
        assert (result.exit_code, result.stdout) == (2, "")
        assert said in result.stderr
    assert out.read_bytes() == before


def test_bad_rows_are_errors_in_their_place_and_the_exit_status_says_so(smollm2_folder, tmp_path):
    lines = ['{"prompt": "a b c"}', "oops", '{"id": "far", "token_ids": [10000000]}', '{"prompt": "d e f"}']
    result = specproof("generate", "-", "-o", "-", "--max-new-tokens", 2, stdin="\n".join(lines))
    assert result.exit_code == 1
    assert "2 of 4 rows are errors" in result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(row["id"], row["finish_reason"]) for row in rows] == [
        (0, "length"), (None, "error"), ("far", "error"), (3, "length"),
    ]  # fmt: skip
    assert rows[1]["error"].startswith("line 2: not JSON")
    assert "10000000" in rows[2]["error"]


def test_a_rate_without_a_denominator_is_null(smollm2_folder, tmp_path):
    (tmp_path / "p.jsonl").write_text("oops\n")
    result = specproof("generate", tmp_path / "p.jsonl", "-o", tmp_path / "out.jsonl", "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, [document[rate] for rate in RATES]) == (1, [None, None, None])
    assert specproof("generate", tmp_path / "p.jsonl", "-o", tmp_path / "out.jsonl", "--overwrite").exit_code == 1


def test_an_input_without_rows_gives_an_empty_file_and_resuming_nothing_begins_anew(smollm2_folder, tmp_path):
    (tmp_path / "p.txt").write_text("\n\n")
    result = specproof("generate", tmp_path / "p.txt", "-o", tmp_path / "out.jsonl", "--resume")
    assert (result.exit_code, (tmp_path / "out.jsonl").read_bytes()) == (0, b"")
    assert "has no rows" in result.stderr


def test_a_model_that_cannot_be_loaded_leaves_no_file_behind(tmp_path):
    (tmp_path / "p.txt").write_text("a\n")
    (tmp_path / "model").mkdir()
    result = specproof("generate", tmp_path / "p.txt", "-o", tmp_path / "out.jsonl", "--target", tmp_path / "model")
    assert result.exit_code == 2
    assert result.stderr.startswith("specproof: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "p.txt"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--draft", "d", "--drafter", "prompt-lookup"),
            "uses no draft model; leave --draft out, or take model or cascade",
        ),
        (("--draft", "d", "--method", "target-only"), "--draft with method target-only: it does not draft"),
        (("--drafter", "prompt-lookup", "--method", "target-only"), "--drafter with method target-only"),
        (("--num-draft-tokens", 3, "--drafter", "none"), "--num-draft-tokens: nothing drafts here"),
        (
            ("--no-share-prefixes", "--method", "eqspec"),
            "--no-share-prefixes: only rows that are refilled in slots share",
        ),
        (("--window", 64), "--window: only the same-length scheduler has one"),
        (("--window", 2, "--method", "exspec"), "window is 2, smaller than batch_size 8"),
        (("--device", "cpu", "--device-map", "auto"), "--device and --device-map: choose one"),
        (("--resume", "--overwrite"), "--resume and --overwrite: choose one"),
        (("--resume", "-o", "-"), "--resume: standard output cannot be resumed"),
        (("--overwrite", "-o", "-"), "--overwrite: standard output has nothing to overwrite"),
        (("--json", "-o", "-"), "--json: the results go to standard output already"),
        (("--min-new-tokens", 9, "--max-new-tokens", 8), "min_new_tokens is 9, more than max_new_tokens 8"),
        (("--stop", ""), "a stop string is empty"),
        (("--method", "magic"), "method is 'magic'; known: specproof"),
        (("--drafter", "magic"), "drafter is 'magic'; known: model, prompt-lookup, suffix, cascade, none"),
        (("--drafter", "cascade"), "drafter 'cascade' needs a draft model: name one with --draft"),
        (("--drafter", "suffix", "--draft", "d"), "drafter 'suffix' uses no draft model"),
        (("--corpus", "p.txt"), "drafter 'prompt-lookup' uses no corpus; take suffix or cascade"),
        (("--draft-head", 9), "drafter 'prompt-lookup' has no head to cut"),
        (("--draft-head", 9, "--method", "target-only"), "--draft-head with method target-only: it does not draft"),
        (("--draft-bits", 4), "drafter 'prompt-lookup' has no weights; draft_bits is for model and cascade"),
        (("--draft-bits", 4, "--method", "target-only"), "--draft-bits with method target-only: it does not draft"),
        (("--draft", "d", "--draft-bits", 8), "draft_bits is 8; it must be 4, or None"),
        (
            ("--draft", "d", "--draft-bits", 4, "--method", "eqspec"),
            "draft_bits needs the slotted layout, and method 'eqspec' has another",
        ),
        (("--corpus", "p.txt", "--method", "target-only"), "--corpus with method target-only: it does not draft"),
        (("--drafter", "suffix", "--corpus", "nope.txt"), "there is no file nope.txt for a corpus; name a UTF-8 text"),
        (("--num-draft-tokens", 0, "--adaptive"), "--adaptive: nothing drafts here"),
        (("--numerics", "invariant", "--no-pack"), "pack them, or take numerics auto or fast"),
        (("--drafter", "none", "--adaptive"), "--adaptive: nothing drafts here"),
        (("--dtype", "int3"), "dtype is 'int3'; known: float32"),
        (("-o", "nowhere/out.jsonl"), "there is no folder nowhere"),
        (("-o", "/dev/null", "--overwrite"), "/dev/null is no ordinary file, so it cannot be resumed"),
        (("-o", "folder"), "folder is no ordinary file"),
        (("-o", "p.txt"), "the results would overwrite the input p.txt"),
        (("-o", "./folder/../p.txt"), "the results would overwrite the input p.txt"),
    ],
)
def test_options_that_contradict_each_other_are_refused(smollm2_folder, tmp_path, monkeypatch, options, said):
    monkeypatch.chdir(tmp_path)
    Path("p.txt").write_text("a\n")
    Path("folder").mkdir()
    result = specproof("generate", "p.txt", "-o", "out.jsonl", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("specproof: ")
    assert said in result.stderr
    assert sorted(os.listdir()) == ["folder", "p.txt"]


@pytest.mark.parametrize(("name", "said"), [("nowhere.txt", "No such file"), (".", "Is a directory")])
def test_an_input_that_cannot_be_read_is_bad_input(tmp_path, name, said):
    result = specproof("generate", tmp_path / name, "-o", tmp_path / "out.jsonl")
    assert result.exit_code == 2
    assert said in result.stderr
