"""Conduct `specproof audit trace`: load, judge, say what was found."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from specproof.audit.junit import junit_xml
from specproof.audit.trace import audit_traces
from specproof.audit.trace_row import Trace
from specproof.audit.traces import read_traces
from specproof.audit.verdict import Verdict
from specproof.cli.exits import AUDIT_EXITS
from specproof.cli.judge import find_target
from specproof.cli.report_file import ReportFile
from specproof.cli.say import say
from specproof.cli.verdict import counted, print_verdict, unjudged_notes
from specproof.errors import InputError
from specproof.jobs.inputs import open_input
from specproof.jobs.provenance import machine, versions
from specproof.report.page import verdict_page


@dataclass(frozen=True, slots=True)
class AuditJob:
    """The options of the command, as they were given."""

    candidate: Path
    target: str | None
    reference: Path | None
    prompts: str | None
    max_new_tokens: int | None
    chat: bool
    dtype: str
    device: str
    threads: int | None
    num_draft_tokens: int
    plain_rows: int
    trust_remote_code: bool


def run_audit(job: AuditJob, as_json: bool, junit: Path | None, html: Path | None) -> int:
    """Audit and report; returns the exit status. Raises SpecproofError for bad input."""
    with ExitStack() as stack:  # before the work: a report that cannot be written is told at once
        others = {f"the {name}": Path(path) for name, path in _inputs(job).items()}
        pages = {}
        for option, path in (("--junit", junit), ("--html", html)):
            if path is not None:
                pages[option] = stack.enter_context(ReportFile(path, option, others))
                others[option] = path
        verdict, about = _judge(job)
        document = {**verdict.to_dict(), **about}
        if "--junit" in pages:
            pages["--junit"].write(junit_xml(verdict))
        if "--html" in pages:
            pages["--html"].write(verdict_page(document))
    if as_json:
        print(json.dumps(document, indent=2))
    else:
        print_verdict(verdict, Console())
    for note in about["notes"]:
        say(note)
    return AUDIT_EXITS[verdict.outcome]


def _inputs(job: AuditJob) -> dict[str, str | Path]:
    """The files that the audit reads, those that were given."""
    given = {"candidate": job.candidate, "reference": job.reference, "prompts": job.prompts}
    return {name: path for name, path in given.items() if path is not None}


def _judge(job: AuditJob) -> tuple[Verdict, dict[str, Any]]:
    """The verdict, and what it is about: the model, the options, the machine, and what the reader must know."""
    target = find_target(
        job.target, dtype=job.dtype, device=job.device, threads=job.threads, trust_remote_code=job.trust_remote_code
    )

    def read(path: Path):
        return read_traces(path, target.tokenizer, job.prompts, max_new_tokens=job.max_new_tokens, chat=job.chat)

    traces = read(job.candidate)  # before the model: a bad line is told at once
    reference = None if job.reference is None else read(job.reference)
    notes = [] if reference is None else _in_reference(job, traces, reference)
    notes += [] if job.prompts is None else _without_row(job, job.prompts, traces)
    verdict = audit_traces(
        target.load(),
        traces,
        target.tokenizer,
        reference=reference,
        num_draft_tokens=job.num_draft_tokens,
        plain_rows=job.plain_rows,
    )
    notes += unjudged_notes(verdict)
    if not all(trace.limit_known for trace in traces):
        notes.append("no limit is stated: a row that was cut short cannot be told; give --max-new-tokens")
    files = {given: str(path) for given, path in _inputs(job).items()}
    return verdict, {
        "candidate": str(job.candidate),
        "target": target.name,
        "options": {**asdict(job), **files},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "machine": machine(),
        "notes": notes,
    }


def _without_row(job: AuditJob, prompts: str, traces: Sequence[Trace]) -> list[str]:
    """A note where a prompt has no row: the engine may have lost it, or the run was broken off."""
    with open_input(prompts) as source:
        asked = [str(row.id) for row in source.rows() if row.id is not None]
    found = {trace.id for trace in traces}
    missing = [name for name in asked if name not in found]
    if not missing:
        return []
    return [f"{len(missing)} of {counted(len(asked), 'prompt')} have no row in {job.candidate}, {missing[0]!r} first"]


def _in_reference(job: AuditJob, traces: Sequence[Trace], reference: Sequence[Trace]) -> list[str]:
    """A note where not every row has its reference. Raises InputError if none has."""
    theirs = {trace.id for trace in reference if trace.error is None}
    shared = sum(trace.id in theirs for trace in traces)
    if not shared:
        raise InputError(f"no row of {job.candidate} has an output in {job.reference}; rows are matched by id")
    if shared == len(traces):
        return []
    return [f"{shared} of {counted(len(traces), 'row')} have their reference in {job.reference}"]
