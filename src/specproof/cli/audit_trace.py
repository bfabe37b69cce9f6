"""Conduct `specproof audit trace`: load, judge, say what was found."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import typer
from rich.console import Console

from specproof.audit.trace import audit_traces
from specproof.audit.traces import read_traces
from specproof.cli.exits import SOME_ROWS_FAILED
from specproof.cli.verdict import print_verdict, say_unjudged, write_reports
from specproof.embedded import default_model_folder
from specproof.jobs.provenance import machine, versions
from specproof.lm import hide_loading_bars, load_model
from specproof.tokenizer import Tokenizer


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
    noise_positions: int
    trust_remote_code: bool


def run_audit(job: AuditJob, as_json: bool, junit: Path | None) -> int:
    """Audit and report; returns the exit status. Raises SpecproofError for bad input."""
    hide_loading_bars()
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    name = job.target or str(default_model_folder(_say))
    tokenizer = Tokenizer.load(name, trust_remote_code=job.trust_remote_code)

    def read(path: Path):
        return read_traces(path, tokenizer, job.prompts, max_new_tokens=job.max_new_tokens, chat=job.chat)

    traces = read(job.candidate)  # before the model: a bad line is told at once
    reference = None if job.reference is None else read(job.reference)
    target = load_model(name, dtype=job.dtype, device=job.device, trust_remote_code=job.trust_remote_code)
    verdict = audit_traces(
        target,
        traces,
        tokenizer,
        reference=reference,
        num_draft_tokens=job.num_draft_tokens,
        plain_rows=job.plain_rows,
        noise_positions=job.noise_positions,
    )
    write_reports({"trace": verdict}, junit)
    if as_json:
        about = {"candidate": str(job.candidate), "target": name, "versions": versions(), "machine": machine()}
        print(json.dumps({**verdict.to_dict(), **about}, indent=2))
    else:
        print_verdict(verdict, Console())
    say_unjudged(verdict, _say)
    if not all(trace.limit_known for trace in traces):
        _say("no limit is stated: a row that was cut short cannot be told; give --max-new-tokens")
    return 0 if verdict.passed else SOME_ROWS_FAILED


def _say(sentence: str) -> None:
    typer.echo(f"specproof: {sentence}", err=True)
