"""Conduct `specproof audit trace`: load, judge, say what was found."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from specproof.audit.compare import wilson
from specproof.audit.junit import describe, junit_xml
from specproof.audit.trace import audit_traces
from specproof.audit.trace_row import Trace
from specproof.audit.traces import read_traces
from specproof.audit.verdict import Verdict
from specproof.cli.exits import AUDIT_EXITS
from specproof.cli.report_file import ReportFile
from specproof.embedded import default_model_folder
from specproof.errors import InputError
from specproof.jobs.provenance import machine, versions
from specproof.lm import check_loadable, hide_loading_bars, load_model
from specproof.printable import printable
from specproof.report.page import verdict_page
from specproof.tokenizer import Tokenizer

HEADLINES = {"pass": "PASS", "fail": "FAIL", "unjudged": "NOTHING JUDGED"}
SHOWN = 20  # rows with findings that the text report lists


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
        _say(note)
    return AUDIT_EXITS[verdict.outcome]


def _inputs(job: AuditJob) -> dict[str, str | Path]:
    """The files that the audit reads, those that were given."""
    given = {"candidate": job.candidate, "reference": job.reference, "prompts": job.prompts}
    return {name: path for name, path in given.items() if path is not None}


def _judge(job: AuditJob) -> tuple[Verdict, dict[str, Any]]:
    """The verdict, and what it is about: the model, the options, the machine, and what the reader must know."""
    hide_loading_bars()
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    name = job.target or str(default_model_folder(_say))
    check_loadable(name, job.dtype, job.device)
    tokenizer = Tokenizer.load(name, trust_remote_code=job.trust_remote_code)

    def read(path: Path):
        return read_traces(path, tokenizer, job.prompts, max_new_tokens=job.max_new_tokens, chat=job.chat)

    traces = read(job.candidate)  # before the model: a bad line is told at once
    reference = None if job.reference is None else read(job.reference)
    notes = [] if reference is None else _in_reference(job, traces, reference)
    target = load_model(name, dtype=job.dtype, device=job.device, trust_remote_code=job.trust_remote_code)
    verdict = audit_traces(
        target,
        traces,
        tokenizer,
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
        "target": name,
        "options": {**asdict(job), **files},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "machine": machine(),
        "notes": notes,
    }


def _in_reference(job: AuditJob, traces: Sequence[Trace], reference: Sequence[Trace]) -> list[str]:
    """A note where not every row has its reference. Raises InputError if none has."""
    theirs = {trace.id for trace in reference if trace.error is None}
    shared = sum(trace.id in theirs for trace in traces)
    if not shared:
        raise InputError(f"no row of {job.candidate} has an output in {job.reference}; rows are matched by id")
    if shared == len(traces):
        return []
    return [f"{shared} of {counted(len(traces), 'row')} have their reference in {job.reference}"]


def unjudged_notes(verdict: Verdict) -> list[str]:
    """What the reader must know of rows without a firm verdict."""
    unjudged = verdict.counts["unjudged"]
    if not unjudged:
        return []
    notes = [f"{unjudged} of {counted(len(verdict.rows), 'row')} got no firm verdict (text only, or no output)"]
    if verdict.outcome == "unjudged":
        notes.append("nothing could be judged, so this is no pass; give the engine's own token ids")
    return notes


def print_verdict(verdict: Verdict, console: Console, name: str = "") -> None:
    """The verdict as text. name: what was audited and a colon, where there is more than one verdict."""
    counts = ", ".join(f"{count} {status}" for status, count in verdict.counts.items() if count)
    console.print(f"{name}{HEADLINES[verdict.outcome]}: {counted(len(verdict.rows), 'row')}: {counts}", highlight=False)
    if (noise := verdict.noise) is not None:
        console.print(
            f"noise ({verdict.dtype}): {noise.threshold:.3g} logits, from {sum(map(len, noise.samples.values()))} "
            f"samples; {noise.near_ties} of {noise.positions} positions are near-ties",
            highlight=False,
        )
    if (floor := verdict.floor) is not None:
        console.print(
            f"plain against plain (batch 1 and {floor.batch_size}): {shown_rate(floor.equal, floor.rows)} rows equal",
            highlight=False,
        )
    against = [row.against for row in verdict.rows if row.against is not None]
    if against:
        exact = shown_rate(sum(row.exact for row in against), len(against))
        partial = shown_rate(sum(row.matched for row in against), sum(row.length for row in against))
        rouge = sum(row.rouge_l for row in against) / len(against)
        console.print(
            f"against the reference: exact {exact} rows, partial {partial} tokens, ROUGE-L {rouge:.3f}",
            highlight=False,
        )
    told = [row for row in verdict.rows if row.finding or row.termination or row.error]
    if told:
        table = Table("row", "verdict", "class", "what was found")
        for row in told[:SHOWN]:
            cls = "" if row.error is not None else row.cls
            table.add_row(escape(printable(row.id)), row.status, cls, escape(printable(describe(row))))
        console.print(table)
    if len(told) > SHOWN:
        console.print(f"and {len(told) - SHOWN} more; --json has them all", highlight=False)


def counted(count: int, noun: str) -> str:
    """A number and its noun."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def shown_rate(hits: int, trials: int) -> str:
    """With its denominator, in percent, and its interval."""
    interval = wilson(hits, trials)
    if interval is None:
        return "0 of 0"
    return f"{hits} of {trials} ({100 * hits / trials:.1f} %, {100 * interval[0]:.1f} to {100 * interval[1]:.1f})"


def _say(sentence: str) -> None:
    typer.echo(f"specproof: {sentence}", err=True)
