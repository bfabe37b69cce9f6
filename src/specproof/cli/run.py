"""Conduct a job from the command line: open its files, run it, say how it went."""

import json
import shlex
import sys
from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

from rich.console import Console

from specproof.cli.exits import INTERRUPTED, SOME_ROWS_FAILED
from specproof.cli.progress import RowProgress, print_summary
from specproof.cli.say import say
from specproof.engine import Engine
from specproof.errors import ResultsError
from specproof.jobs.in_order import StreamResults
from specproof.jobs.inputs import InputFile, open_input
from specproof.jobs.job import Job
from specproof.jobs.provenance import machine, versions
from specproof.jobs.results import FileResults, discard_results, has_results, only_writer
from specproof.jobs.run import load_engine, run_job
from specproof.jobs.sidecar import append_to_sidecar, begin_sidecar, check_identity
from specproof.jobs.tally import Tally
from specproof.lm import hide_loading_bars
from specproof.statistics import Statistics


def run(job: Job, resume: bool, overwrite: bool, as_json: bool) -> int:
    """Run `job` and report; returns the exit status. Raises SpecproofError for a bad input, OUT or model."""
    hide_loading_bars()
    with open_input(job.input) as source, only_writer(job.out) if job.out else nullcontext():
        if not source.num_rows:
            say(f"{job.input} has no rows")
        resumed = _results_to_resume(job, source, resume, overwrite)
        is_complete = resumed is not None and resumed.num_done == source.num_rows
        # Loaded before anything is written, so that a wrong model name leaves nothing behind.
        engine = None if is_complete else load_engine(job, say)
        if engine is not None and job.config.numerics == "auto" and not engine.numerics.invariant:
            say(f"numerics are fast, not invariant: {engine.numerics.reason}")
        if engine is not None and engine.compilation is not None:
            say(str(engine.compilation))
        results = resumed or _new_results(job, source)
        statistics = Statistics() if engine is None else engine.statistics
        tally = Tally()
        for result in results.earlier():
            tally.add(result, resumed=True)
        started = perf_counter()
        try:
            with RowProgress(statistics, lambda: results.num_done, source.num_rows, job.out is None) as progress:
                if engine is not None:
                    engine.observers.append(progress)
                    run_job(job, engine, source, results, tally)
        except KeyboardInterrupt:
            kept = f", kept in {job.out}; the same command with --resume goes on" if job.out else ""
            say(f"interrupted: {results.num_done} of {source.num_rows} rows are finished{kept}")
            return INTERRUPTED
        finally:
            results.close()
        summary = tally.summary(statistics, perf_counter() - started)
        summary["numerics_used"] = None if engine is None else engine.numerics.kind
        summary["compilation"] = None if engine is None else _compilation(engine)
    if job.out is not None:
        append_to_sidecar(job.out, "end", summary)
    return _report(job, summary, as_json)


def _results_to_resume(job: Job, source: InputFile, resume: bool, overwrite: bool) -> FileResults | None:
    """What an earlier run left, if this one goes on after it. Raises ResultsError if that does not fit."""
    if job.out is None or overwrite or not has_results(job.out):
        return None
    if not resume:
        raise ResultsError(f"{job.out} has results already; --resume goes on after them, --overwrite begins anew")
    check_identity(job.out, job.identity(source))
    results = FileResults(job.out, source)
    append_to_sidecar(job.out, "start", _start(job, source))
    return results


def _new_results(job: Job, source: InputFile) -> FileResults | StreamResults:
    if job.out is None:
        return StreamResults(sys.stdout.buffer)
    discard_results(job.out)
    begin_sidecar(job.out, _start(job, source))  # before OUT, so that whatever stands in OUT can be resumed
    return FileResults(job.out, source)


def _start(job: Job, source: InputFile) -> dict[str, Any]:
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "command": shlex.join(["specproof", *sys.argv[1:]]),
        "identity": job.identity(source),
        "rows": source.num_rows,
        **_setting(job),
        "machine": machine(),
    }


def _setting(job: Job) -> dict[str, Any]:
    return {
        "target": job.target_name,
        "drafter": job.drafter_name,
        "dtype": job.dtype,
        "device": job.device_map or job.device,
        **asdict(job.config),
        **{part: getattr(job.config.parts, part) for part in ("layout", "scheduler", "commit")},
    }


def _compilation(engine: Engine) -> dict[str, Any] | None:
    """None if nothing was compiled. paid: whether the tokens of this run reach the break-even."""
    compilation = engine.compilation
    if compilation is None:
        return None
    tokens = compilation.break_even_tokens
    paid = tokens is not None and engine.statistics.emitted >= tokens
    return {**asdict(compilation), "break_even_tokens": tokens, "paid": paid}


def _report(job: Job, summary: dict[str, Any], as_json: bool) -> int:
    if as_json:
        print(json.dumps({**summary, **_setting(job), "versions": versions(), "machine": machine()}, indent=2))
    else:
        print_summary(summary, Console(stderr=job.out is None))
    if summary["errors"]:
        say(f'{summary["errors"]} of {summary["rows"]} rows are errors; their results say why, under "error"')
        return SOME_ROWS_FAILED
    return 0
