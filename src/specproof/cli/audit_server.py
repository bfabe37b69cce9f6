"""Conduct `specproof audit server`: ask one row at a time and many at once, judge both, say what was found."""

import asyncio
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from specproof.audit.agreement import Agreement, agree
from specproof.audit.junit import junit_suites
from specproof.audit.trace import audit_traces
from specproof.audit.trace_row import Trace
from specproof.audit.traces import read_traces
from specproof.audit.verdict import Outcome, Verdict, overall
from specproof.cli.exits import AUDIT_EXITS
from specproof.cli.judge import find_target
from specproof.cli.progress import progress
from specproof.cli.report_file import ReportFile
from specproof.cli.say import say
from specproof.cli.verdict import counted, print_verdict, shown_rate, unjudged_notes
from specproof.errors import ServerError
from specproof.jobs.provenance import machine, versions
from specproof.request import Request
from specproof.served.modes import Source, ask_in_both_modes, trace_folder
from specproof.served.prompts import read_asks
from specproof.served.server import Server, base_url
from specproof.tokenizer import Tokenizer

Traces = dict[str, list[Trace]]


@dataclass(frozen=True, slots=True)
class ServerAudit:
    """The options of the command, as they were given. save: None for a new temporary folder."""

    url: str
    plain_url: str | None
    prompts: str
    model: str | None
    plain_model: str | None
    target: str | None
    concurrency: int
    defaults: Request
    timeout: float
    save: Path | None
    chat: bool
    dtype: str
    device: str
    threads: int | None
    num_draft_tokens: int
    plain_rows: int
    trust_remote_code: bool

    @property
    def sources(self) -> dict[str, Source]:
        found = {"server": Source("", self.url, self.model)}
        if self.plain_url is not None:
            found["plain"] = Source("plain-", self.plain_url, self.plain_model)
        return found


def run_server_audit(job: ServerAudit, as_json: bool, junit: Path | None) -> int:
    """Ask, audit and report; returns the exit status. Raises SpecproofError for bad input or an unusable server."""
    if junit is None:
        return _run(job, as_json, None)
    with ReportFile(junit, "--junit", {"the prompts": Path(job.prompts)}) as report:
        return _run(job, as_json, report)


def _run(job: ServerAudit, as_json: bool, junit: ReportFile | None) -> int:
    for source in job.sources.values():
        base_url(source.url)  # a bad one is told before anything is loaded
    target = find_target(  # before hours of asking
        job.target, dtype=job.dtype, device=job.device, threads=job.threads, trust_remote_code=job.trust_remote_code
    )
    asks = read_asks(job.prompts, target.tokenizer, job.defaults, job.chat)

    def folder() -> Path:
        found = trace_folder(job.save)
        say(f"answers are kept in {found}; specproof audit trace judges them again")
        return found

    asking = ask_in_both_modes(job.sources, asks, job.concurrency, job.timeout, folder, progress)
    servers, saved = asyncio.run(asking)
    traces = _read(saved, asks.order, target.tokenizer)
    lm = target.load()
    verdicts = {}
    for mode in ("alone", "concurrent"):
        verdict = audit_traces(
            lm,
            traces[mode],
            target.tokenizer,
            reference=traces.get("plain-alone"),
            num_draft_tokens=job.num_draft_tokens,
            plain_rows=0 if verdicts else job.plain_rows,  # the prompts are the same: measured once
        )
        verdicts[mode] = replace(verdict, floor=verdicts["alone"].floor) if verdicts else verdict
    agreements = {"alone_against_concurrent": agree(traces["alone"], traces["concurrent"])}
    if job.plain_url is not None:
        agreements["plain_alone_against_concurrent"] = agree(traces["plain-alone"], traces["plain-concurrent"])
    if junit is not None:
        junit.write(junit_suites(verdicts))
    if as_json:
        where = {"saved": str(saved), "target": target.name}
        print(json.dumps({**_document(job, servers, verdicts, agreements), **where}, indent=2))
    else:
        _print(job, servers, verdicts, agreements, Console())
    for mode, verdict in verdicts.items():
        for note in unjudged_notes(verdict):
            say(f"{mode}: {note}")
    if len(asks.asked) < job.concurrency:
        say(f"{counted(len(asks.asked), 'prompt')}: no more than that were ever asked at once")
    return AUDIT_EXITS[_overall(verdicts)]


def _read(folder: Path, order: Any, tokenizer: Tokenizer) -> Traces:
    """The traces that were written, each in the order of the prompts. Raises ServerError for one without any answer."""
    place = {name: index for index, name in enumerate(order)}
    found: Traces = {}
    for path in folder.glob("*.jsonl"):
        rows = sorted(read_traces(path, tokenizer), key=lambda trace: place[trace.id])
        if all(trace.error is not None for trace in rows):
            raise ServerError(f"{path.stem}: not one prompt was answered; the first: {rows[0].error}")
        found[path.stem] = rows
    return found


def _overall(verdicts: dict[str, Verdict]) -> Outcome:
    return overall(verdict.outcome for verdict in verdicts.values())


def _document(
    job: ServerAudit, servers: dict[str, Server], verdicts: dict[str, Verdict], agreements: dict[str, Agreement]
) -> dict[str, Any]:
    return {
        "verdict": _overall(verdicts),
        "concurrency": job.concurrency,
        "servers": {
            name: {"url": server.url, "model": server.model, "form": server.form.name}
            for name, server in servers.items()
        },
        **{mode: verdict.to_dict() for mode, verdict in verdicts.items()},
        **{name: agreement.to_dict() for name, agreement in agreements.items()},
        "versions": versions(),
        "machine": machine(),
    }


def _print(
    job: ServerAudit, servers: dict[str, Server], verdicts: dict[str, Verdict], agreements: dict[str, Agreement],
    console: Console,
) -> None:  # fmt: skip
    for name, server in servers.items():
        line = f"{name}: {server.url}, model {server.model}, asked by: {server.form.name}"
        console.print(line, highlight=False, markup=False)
    names = {"alone": "one at a time: ", "concurrent": f"{job.concurrency} at once: "}
    for mode, verdict in verdicts.items():
        print_verdict(verdict, console, names[mode])
    for name, found in agreements.items():
        whose = "the plain server's rows" if name.startswith("plain") else "its rows"
        equal = f"{whose} alone and {job.concurrency} at once: {shown_rate(found.equal, found.rows)} equal"
        console.print(equal, highlight=False)
