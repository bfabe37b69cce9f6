"""`specproof audit explain`: a saved finding comes out again as it was, or it is said that it does not."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from families import VOCAB, tiny_lm
from subjects import clean, generate, judge, prompts, save_tiny, spoil, traces_of
from typer.testing import CliRunner

from specproof.audit import audit_traces
from specproof.audit.replay import replay_finding
from specproof.audit.saved import read_saved
from specproof.audit.score import score_row
from specproof.cli.app import app

ROW = 3


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"), judge())


def verdict(traces, lm=None):
    return audit_traces(lm or judge(), traces, plain_rows=0)


@pytest.fixture(scope="module")
def spoilt() -> dict:
    """The document of a trace in which one token is wrong and two rows are swapped."""
    traces, tokens = clean(), list(clean()[ROW].token_ids)
    tokens[9] = (tokens[9] + 5) % VOCAB
    traces = spoil(traces, ROW, tokens)
    traces = spoil(spoil(traces, 5, clean()[6].token_ids), 6, clean()[5].token_ids)
    return verdict(traces).to_dict()


def explain(path: Path, *options):
    return CliRunner().invoke(app, ["audit", "explain", str(path), *map(str, options)])


def save(path: Path, document) -> Path:
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("form", ["verdict", "row", "finding"])
def test_a_wrong_token_is_found_again_from_any_part_of_the_verdict(spoilt, target, tmp_path, form):
    (row,) = [row for row in spoilt["findings"] if row["id"] == f"row{ROW}"]
    part = {"verdict": spoilt, "row": row, "finding": row["finding"]}[form]
    options = ("--row", f"row{ROW}") if form == "verdict" else ()
    result = explain(save(tmp_path / "f.json", part), "--target", target, "--json", *options)
    assert result.exit_code == 1, result.output
    found = json.loads(result.stdout)
    assert found["reproduced"]
    assert (found["class"], found["signature"], found["index"]) == ("accept-rule", "token-changed", 9)
    assert found["choice"] == clean()[ROW].token_ids[9]
    assert (found["dtype"], found["margin"]) == ("float64", row["finding"]["margin"])
    assert set(found["controls"]) == {"width-1", "width-6", "alone", "batch-anew", "precision-up"}
    assert all(margin == pytest.approx(found["margin"]) for name, margin in found["controls"].items() if margin)


def test_a_foreign_row_is_found_again_because_the_other_row_is_saved_too(spoilt, target, tmp_path):
    result = explain(save(tmp_path / "v.json", spoilt), "--row", "row5", "--target", target)
    assert result.exit_code == 1
    assert "foreign-row" in result.stdout
    assert "reproduced: the same choice, the same class" in result.stdout
    assert "alone, fresh cache" in result.stdout


def test_a_foreign_row_is_found_again_even_if_the_other_row_ends_before_the_divergence(target, tmp_path):
    lm, traces = judge(), clean()
    first = traces[2].token_ids[0]  # both rows begin with it, so that row 2 diverges later
    other = (first, *generate(lm, [[*traces[5].prompt_ids, first]], 23)[0])
    document = verdict(spoil(spoil(traces, 2, other), 5, (first,))).to_dict()
    (row,) = [row for row in document["findings"] if row["id"] == "row2"]
    index, kept = row["finding"]["index"], row["finding"]["replay"]["other_ids"]
    assert index > 1
    assert (row["class"], row["finding"]["other_row"]) == ("foreign-row", "row5")
    assert tuple(kept) == (*traces[5].prompt_ids, *other[:index])
    result = explain(save(tmp_path / "v.json", document), "--row", "row2", "--target", target)
    assert "reproduced: the same choice, the same class" in result.stdout, result.output


def closest(lm) -> tuple[list, int]:
    """A row that ends in the runner-up of the closest choice of all, as an engine might have rounded it; its index."""
    traces = traces_of(prompts(), generate(lm, prompts()))
    assert len({token for trace in traces for token in trace.token_ids}) >= 12
    scored = [(trace, score_row(lm, trace.prompt_ids, trace.token_ids)) for trace in traces]
    gap, trace, score = min(
        ((min(score.gaps[:-1]), trace, score) for trace, score in scored), key=lambda found: found[0]
    )
    index = score.gaps.index(gap)
    return [replace(trace, token_ids=(*score.tokens[:index], score.others[index]), limit_known=False)], index


def test_a_benign_difference_is_reproduced_with_exit_status_0(tmp_path):
    lm = tiny_lm("llama", seed=1, dtype=torch.bfloat16)
    traces, index = closest(lm)
    document = verdict(traces, lm).to_dict()
    (row,) = document["findings"]
    assert (row["status"], row["finding"]["index"]) == ("benign", index), row
    path = save(tmp_path / "v.json", {**document, "target": str(save_tiny(tmp_path / "bf16", lm))})
    result = explain(path, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["class"], found["dtype"], found["reproduced"]) == (row["finding"]["class"], "bfloat16", True)
    assert found["margin"] == row["finding"]["margin"]
    assert set(found["controls"]) == {"width-1", "width-6", "alone", "batch-anew", "precision-up"}


def test_another_target_does_not_reproduce_it(spoilt, tmp_path):
    path = save(tmp_path / "v.json", spoilt)
    other = save_tiny(tmp_path / "other", tiny_lm("llama", seed=7))
    result = explain(path, "--row", f"row{ROW}", "--target", other)
    assert result.exit_code == 1
    assert "NOT reproduced: it was accept-rule" in result.stdout


def test_a_token_that_the_target_now_takes_is_exact_and_not_reproduced(spoilt, tmp_path):
    saved = read_saved(save(tmp_path / "v.json", spoilt), f"row{ROW}")
    right = replace(saved, token=saved.choice, replay=replace(saved.replay, rest=(saved.choice,)))
    found = replay_finding(judge(), None, right)
    assert (found.cls, found.margin, found.reproduced) == ("exact", 0, False)


def test_what_cannot_be_replayed_is_one_clear_error(spoilt, target, tmp_path):
    (row,) = [row for row in spoilt["findings"] if row["id"] == f"row{ROW}"]
    without = {key: value for key, value in row["finding"].items() if key != "replay"}
    cases = {
        "has 3 findings; name one with --row: row3, row5, row6": (spoilt, ()),
        "row 'nobody' has no divergence; these have: row3, row5, row6": (spoilt, ("--row", "nobody")),
        "no row has a divergence": (verdict(clean()).to_dict(), ()),
        "holds no finding, row or verdict": ([1, 2], ()),
        "its finding cannot be replayed: replay is null; an object is needed": (without, ()),
        "index is null": ({**row["finding"], "index": None}, ()),
        "prefix_ids[0] is a string": ({**row["finding"], "prefix_ids": ["a"]}, ()),
        "its prompt has id 999": ({**row["finding"], "prefix_ids": [999, *row["finding"]["prefix_ids"][1:]]}, ()),
    }
    for said, (document, options) in cases.items():
        result = explain(save(tmp_path / "f.json", document), "--target", target, *options)
        assert (result.exit_code, result.stdout) == (2, ""), said
        assert said in result.stderr.replace("\n", " "), result.stderr
    (tmp_path / "f.json").write_text("{}\n{}\n")
    assert "not one JSON document" in explain(tmp_path / "f.json").stderr
    assert "cannot read" in explain(tmp_path / "nowhere.json").stderr
