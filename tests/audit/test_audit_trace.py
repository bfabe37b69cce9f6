"""Bar by bar: a clean trace is clean, and each way of spoiling it is named."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from families import FAMILIES, VOCAB
from subjects import LIMIT, PAD, clean, generate, judge, prompts, spoil, traces_of

from specproof.audit import audit_traces
from specproof.audit.junit import junit_xml
from specproof.audit.score import score_row
from specproof.audit.verdict import Verdict, overall

ROW = 3


def audited(traces, lm=None, **options) -> Verdict:
    return audit_traces(lm or judge(), traces, plain_rows=0, **options)


def only_faulty(verdict: Verdict, row: int):
    """The finding of the one faulty row; all others are exact."""
    assert verdict.counts == {"exact": 7, "benign": 0, "faulty": 1, "unexplained": 0, "unjudged": 0}, verdict.to_dict()
    assert verdict.rows[row].status == "faulty"
    assert not verdict.passed
    return verdict.rows[row]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_left_padded_batch_by_transformers_audits_clean_in_every_family(family):
    verdict = audit_traces(judge(family), clean(family), plain_rows=8)
    assert verdict.counts["exact"] == 8, verdict.to_dict()
    assert verdict.passed
    assert (verdict.floor.found.equal, verdict.floor.found.rows) == (8, 8)
    assert verdict.noise.threshold < 1e-9
    assert verdict.noise.positions == 8 * LIMIT


def test_one_changed_token_is_named_with_both_tokens_and_its_margin():
    tokens = list(clean()[ROW].token_ids)
    right = tokens[9]
    tokens[9] = (right + 5) % VOCAB
    row = only_faulty(audited(spoil(clean(), ROW, tokens)), ROW)
    found = row.finding
    assert (found.cls, found.signature, found.index) == ("accept-rule", "token-changed", 9)
    assert (found.token, found.choice) == (tokens[9], right)
    assert found.margin > 1e3 * found.noise
    assert found.prefix_ids == (*clean()[ROW].prompt_ids, *tokens[:9])
    assert all(margin > 0 for margin in found.controls.values() if margin is not None)


def test_a_dropped_and_a_repeated_token_are_told_from_a_changed_one():
    tokens = clean()[ROW].token_ids
    at = next(i for i in range(6, 15) if tokens[i] not in (tokens[i - 1], tokens[i + 1]))
    missing = audited(spoil(clean(), ROW, tokens[:at] + tokens[at + 1 :], finish_reason=None))
    assert missing.rows[ROW].finding.signature == "token-missing"
    extra = audited(spoil(clean(), ROW, (*tokens[: at + 1], *tokens[at:-1])))
    assert (extra.rows[ROW].finding.signature, extra.rows[ROW].finding.cls) == ("token-extra", "accept-rule")


def test_a_token_accepted_unchecked_is_told_from_one_changed_afterwards():
    lm, trace = judge(), clean()[ROW]
    wrong = (*trace.token_ids[:9], (trace.token_ids[9] + 5) % VOCAB)
    rest = generate(lm, [[*trace.prompt_ids, *wrong]], LIMIT - 10)[0]
    found = only_faulty(audited(spoil(clean(), ROW, (*wrong, *rest))), ROW).finding
    assert (found.cls, found.signature, found.index, found.differing) == ("accept-rule", "unchecked", 9, 1)


def test_two_swapped_rows_are_both_named_with_the_row_they_belong_to():
    traces = list(clean())
    swapped = spoil(spoil(traces, 2, traces[5].token_ids), 5, traces[2].token_ids)
    verdict = audited(swapped)
    assert verdict.counts["faulty"] == 2
    for row, other in ((2, "row5"), (5, "row2")):
        found = verdict.rows[row].finding
        assert (found.cls, found.other_row, found.index) == ("foreign-row", other, 0)


def test_swapped_rows_that_begin_alike_are_named_too():
    """The first token of each could come from either prompt, so the divergence is behind it."""
    lm, traces = judge(), list(clean())
    first = traces[2].token_ids[0]
    mine = (first, *generate(lm, [[*traces[2].prompt_ids, first]], LIMIT - 1)[0])
    other = (first, *generate(lm, [[*traces[5].prompt_ids, first]], LIMIT - 1)[0])
    found = audited(spoil(spoil(traces, 2, other), 5, mine)).rows[2].finding
    assert (found.cls, found.other_row) == ("foreign-row", "row5")
    assert found.index >= 1


def test_rows_that_are_swapped_in_the_middle_of_decoding_are_named():
    traces = list(clean())
    a, b = traces[2].token_ids, traces[5].token_ids
    verdict = audited(spoil(spoil(traces, 2, (*a[:8], *b[8:])), 5, (*b[:8], *a[8:])))
    assert [verdict.rows[k].finding.other_row for k in (2, 5)] == ["row5", "row2"]
    assert {verdict.rows[k].finding.cls for k in (2, 5)} == {"foreign-row"}


def test_a_rest_that_needs_no_prompt_is_no_other_rows(monkeypatch):
    """A row that is wrong at one place, and whose rest the target gives behind any prompt, or none at all."""
    asked = []

    def agrees(lm, prompt, output, *rest):
        score = score_row(lm, prompt, output, *rest)
        asked.append(tuple(prompt))
        behind_mine = tuple(prompt[: len(mine)]) == mine
        return score if behind_mine else replace(score, choices=(*score.tokens, score.choices[-1]))

    mine, tokens = clean()[ROW].prompt_ids, list(clean()[ROW].token_ids)
    tokens[9] = (tokens[9] + 5) % VOCAB
    monkeypatch.setattr("specproof.audit.signature.score_row", agrees)
    row = only_faulty(audited(spoil(clean(), ROW, tokens)), ROW)
    assert (row.cls, row.finding.signature, row.finding.other_row) == ("accept-rule", "token-changed", None)
    assert tuple(tokens[:9]) in asked


def test_a_cut_tail_is_a_termination_and_no_divergence():
    row = only_faulty(audited(spoil(clean(), ROW, clean()[ROW].token_ids[:-4])), ROW)
    assert (row.finding, row.cls, row.termination.kind) == (None, "termination", "cut-tail")
    assert f"{LIMIT - 4} of {LIMIT}" in row.termination.message


@pytest.mark.parametrize("reason", [None, "stop", "length"])
def test_an_empty_row_that_the_target_does_not_end_is_cut_whatever_it_claims(reason):
    row = only_faulty(audited(spoil(clean(), ROW, (), limit_known=False, finish_reason=reason)), ROW)
    assert (row.finding, row.termination.kind, row.termination.index) == (None, "cut-tail", 0)


def test_a_row_under_its_own_minimum_is_cut_even_if_its_limit_is_unknown():
    asked = replace(clean()[ROW].request, min_new_tokens=LIMIT)
    short = spoil(clean(), ROW, clean()[ROW].token_ids[:-4], limit_known=False, request=asked)
    row = only_faulty(audited(short), ROW)
    assert (row.termination.kind, f"at least {LIMIT} were asked for" in row.termination.message) == ("cut-tail", True)


def test_a_wrong_last_token_is_no_evidence_of_its_cause():
    tokens = clean()[ROW].token_ids
    row = only_faulty(audited(spoil(clean(), ROW, (*tokens[:-1], (tokens[-1] + 5) % VOCAB))), ROW)
    assert (row.cls, row.finding.signature) == ("accept-rule", "last")
    assert "cause cannot be told" in row.finding.why


def test_short_rows_that_are_swapped_are_not_said_to_be_out_of_sync_for_certain():
    short = traces_of(prompts(), [trace.token_ids[:4] for trace in clean()], limit=4)
    verdict = audited(spoil(short, 2, short[5].token_ids))
    assert (verdict.rows[2].cls, verdict.rows[2].finding.signature) == ("lost-sync", "few")
    assert "cannot be ruled out" in verdict.rows[2].finding.why


def test_an_audit_that_judged_no_row_is_no_pass():
    verdict = audited([replace(trace, from_text=True) for trace in clean()])
    assert (verdict.outcome, verdict.passed, verdict.to_dict()["verdict"]) == ("unjudged", False, "unjudged")
    suite = ElementTree.fromstring(junit_xml(verdict))
    assert (suite.get("tests"), suite.get("errors"), suite.get("skipped")) == ("9", "1", "8")
    assert suite.find("testcase/error").get("type") == "unjudged"
    one = audited([clean()[0], *(replace(trace, error="gone") for trace in clean()[1:])])
    assert one.outcome == "pass"
    assert {skip.get("type") for skip in ElementTree.fromstring(junit_xml(one)).iter("skipped")} == {"error"}
    assert overall(("pass", "unjudged")) == "unjudged"
    assert overall(("fail", "unjudged", "pass")) == "fail"


def test_tokens_past_the_limit_are_a_termination():
    longer = generate(judge(), [clean()[ROW].prompt_ids], LIMIT + 3)[0]
    row = only_faulty(audited(spoil(clean(), ROW, longer)), ROW)
    assert (row.finding, row.termination.kind, row.termination.index) == (None, "past-limit", LIMIT)


def with_eos() -> tuple[int, int]:
    """An EOS id that ends some row in the middle, and that row."""
    for row, trace in enumerate(clean()):
        for index in range(6, LIMIT - 6):
            eos = trace.token_ids[index]
            if eos not in trace.token_ids[:index] and all(eos not in other.token_ids[:3] for other in clean()):
                return eos, row
    raise AssertionError("no token of these outputs can serve as EOS")


def test_padding_behind_the_stop_is_counted_and_no_fault():
    eos, row = with_eos()
    verdict = audited(clean("llama", eos), judge("llama", eos))
    assert verdict.counts["exact"] == 8, verdict.to_dict()
    assert verdict.rows[row].padded > 0
    assert clean("llama", eos)[row].token_ids[-1] == PAD
    assert any(verdict_row.padded == 0 for verdict_row in verdict.rows)


def test_text_after_the_stop_and_a_stop_that_is_ignored_are_named():
    eos, row = with_eos()
    traces, lm = clean("llama", eos), judge("llama", eos)
    end = traces[row].token_ids.index(eos)
    after = audited(spoil(traces, row, clean()[row].token_ids), lm).rows[row]  # the model without EOS went on
    assert (after.cls, after.termination.kind, after.termination.index) == ("termination", "after-stop", end + 1)
    ignored = (*traces[row].token_ids[:end], (eos + 5) % VOCAB, *clean()[row].token_ids[end + 1 :])
    found = audited(spoil(traces, row, ignored), lm).rows[row].finding
    assert (found.cls, found.signature, found.index, found.choice) == ("termination", "stop", end, eos)


def test_an_engine_may_leave_the_ending_id_out_of_its_tokens():
    eos, row = with_eos()
    traces = clean("llama", eos)
    end = traces[row].token_ids.index(eos)
    verdict = audited(spoil(traces, row, traces[row].token_ids[:end], finish_reason="stop"), judge("llama", eos))
    assert verdict.passed, verdict.to_dict()


def test_padding_inside_is_a_text_symptom():
    tokens = (*clean()[ROW].token_ids[:9], PAD, PAD, *clean()[ROW].token_ids[9:-2])
    assert PAD not in clean()[ROW].token_ids
    row = only_faulty(audited(spoil(clean(), ROW, tokens)), ROW)
    assert (row.cls, row.finding.signature) == ("text-symptom", "symbol")
    assert row.symptoms == (f"pad id {PAD} inside",)


def test_a_row_that_leaves_the_target_and_loops_is_a_text_symptom():
    tokens = (*clean()[ROW].token_ids[:8], *[9, 17] * 8)
    row = only_faulty(audited(spoil(clean(), ROW, tokens)), ROW)
    assert (row.cls, row.finding.signature) == ("text-symptom", "loop")


def test_a_row_of_another_model_has_lost_its_sync():
    other = generate(judge("qwen2"), [clean()[ROW].prompt_ids])[0]
    row = only_faulty(audited(spoil(clean(), ROW, other)), ROW)
    assert (row.cls, row.finding.signature) == ("lost-sync", "many")


def test_text_alone_gets_a_finding_but_no_firm_verdict():
    tokens = list(clean()[ROW].token_ids)
    tokens[9] = (tokens[9] + 5) % VOCAB
    verdict = audited(spoil(clean(), ROW, tokens, from_text=True))
    assert verdict.rows[ROW].status == "unjudged"
    assert verdict.rows[ROW].finding.index == 9
    assert verdict.counts["unjudged"] == 1
    assert verdict.passed


def test_the_reference_gives_exact_and_partial_match_and_whom_the_target_believes():
    tokens = list(clean()[ROW].token_ids)
    tokens[9] = (tokens[9] + 5) % VOCAB
    spoiled = spoil(clean(), ROW, tokens)
    document = audited(spoiled, reference=clean()).to_dict()["reference"]
    assert (document["exact_match"]["hits"], document["exact_match"]["n"]) == (7, 8)
    assert document["partial_match"]["hits"] == 7 * LIMIT + 9
    assert document["target_takes"] == {"candidate": 0, "reference": 1, "neither": 0}
    assert 0.9 < document["rouge_l"] < 1
    turned = audited(clean(), reference=spoiled).to_dict()["reference"]
    assert turned["target_takes"]["candidate"] == 1


def test_a_longer_output_than_one_piece_of_logits_is_judged_alike(monkeypatch):
    whole = audited(clean())
    monkeypatch.setattr("specproof.audit.score.LOGITS_AT_ONCE", 7)
    pieces = audited(clean())
    assert pieces.counts == whole.counts
    spoiled = audited(spoil(clean(), ROW, (*clean()[ROW].token_ids[:-1], 5)))
    assert spoiled.rows[ROW].finding.index == LIMIT - 1


def test_a_single_row_and_prompts_of_one_token_are_audited():
    rows = prompts(1)
    assert len(rows[0]) == 1
    verdict = audit_traces(judge(), traces_of(rows, generate(judge(), rows)))
    assert verdict.counts["exact"] == 1
    tokens = [(clean()[0].token_ids[0] + 5) % VOCAB, *clean()[0].token_ids[1:]]
    assert not audited(traces_of(rows, [tokens])).passed
