"""Every fault of the catalogue is caught by its own name, and runs without one raise no alarm."""

import pytest
import torch

from specproof.audit.auditor import audit_engine
from specproof.audit.faults import FAULTS
from specproof.audit.invariants import INVARIANTS
from specproof.audit.matrix import detect, false_alarms
from specproof.audit.subjects import NEEDS, subject
from specproof.reference import decode_reference

PLANTED = [(name, method) for name, fault in FAULTS.items() for method in fault.methods]


@pytest.mark.parametrize(("name", "method"), PLANTED)
def test_a_planted_fault_is_caught_by_its_own_name_in_the_first_step_that_shows_anything(name, method):
    detection = detect(name, method)
    assert detection.caught_by_name, (
        f"{detection.invariant} expected, {detection.caught_by or 'nothing'}: {detection.first}"
    )


def test_every_invariant_has_a_fault_that_breaks_it_and_most_show_at_level_light():
    assert {fault.invariant for fault in FAULTS.values()} == set(INVARIANTS)
    assert len(FAULTS) >= 24
    full = {name for name, fault in FAULTS.items() if fault.level == "full"}
    assert full == {"ledger-bypassed", "neighbours-mixed"}, "integers do not suffice for these"


@pytest.mark.parametrize("name", ["ledger-bypassed", "neighbours-mixed"])
def test_faults_of_level_full_go_unseen_at_level_light(name):
    parts = subject(FAULTS[name].needs)
    engine = parts.engine("specproof")
    with FAULTS[name].plant(engine):
        found = audit_engine(engine, parts.requests, "light")
    assert FAULTS[name].invariant not in {violation.invariant for violation in found.violations}


def test_runs_without_a_fault_raise_no_alarm():
    assert set(false_alarms(24)) == {None}


@pytest.mark.parametrize("needs", NEEDS)
def test_the_subjects_decode_rows_that_vary_and_end_in_more_than_one_way(needs):
    parts = subject(needs)
    outputs = parts.engine("specproof").generate(parts.requests)
    assert len({token for output in outputs for token in output.token_ids}) > 10
    assert {output.finish_reason for output in outputs} == {"stop", "length"}
    decode = parts.tokenizer and parts.tokenizer.decode
    for request, output in zip(parts.requests, outputs, strict=True):
        assert output.token_ids == decode_reference(parts.target, request, decode).token_ids
    histogram = {j for output in outputs for j, count in enumerate(output.acceptance_histogram) if count}
    assert len(histogram) >= (2 if needs == "self-draft" else 3), "acceptance is ragged"


def test_an_audited_run_gives_the_same_outputs_as_one_that_is_not():
    parts = subject("", dtype=torch.float32)
    audited = audit_engine(parts.engine("exspec"), parts.requests, "full")
    assert audited.clean
    assert list(audited.outputs) == parts.engine("exspec").generate(parts.requests)


def test_an_audit_of_a_run_that_breaks_off_tells_what_was_seen_before():
    parts = subject("")
    engine = parts.engine("specproof")
    engine.drafter.propose = lambda rows, k: [[10_000]] * len(rows)
    found = audit_engine(engine, parts.requests)
    assert found.crash is not None
    assert "10000" in found.crash
    assert not found.clean
