"""`specproof audit engine` and `specproof audit faults`: our own engine under audit, and the audit itself."""

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from specproof.cli.exits import clear_exits
from specproof.cli.options import AsJson, Chat, Target
from specproof.config import EngineConfig
from specproof.errors import InputError

FOUND = 1  # exit status where something is wrong


def engine(
    input_: Annotated[str, typer.Argument(metavar="INPUT", help="Prompts, as for `specproof generate`.")],
    method: Annotated[str, typer.Option(help="See `specproof methods`.")] = "specproof",
    level: Annotated[str, typer.Option(help="light (integers) or full (KV computed again, rows alone).")] = "light",
    target: Target = None,
    draft: Annotated[str | None, typer.Option(help="Draft model. (default: prompt lookup)")] = None,
    drafter: Annotated[
        str | None, typer.Option(help="prompt-lookup, suffix, model, cascade or none. (default: as for generate)")
    ] = None,
    adaptive: Annotated[bool, typer.Option("--adaptive", help="Draft only what is expected to pay.")] = False,
    batch_size: Annotated[int, typer.Option(min=1)] = 8,
    draft_bits: Annotated[int | None, typer.Option(help="4: the draft model drafts with weights of four bits.")] = None,
    num_draft_tokens: Annotated[int, typer.Option(min=0)] = 5,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 64,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16, float64.")] = "float32",
    chat: Chat = False,
    as_json: AsJson = False,
) -> None:
    """Decode INPUT with every invariant checked at every step.

    Exit status: 0 if all hold, 1 if one does not, 2 for bad input or options.
    """
    with clear_exits():
        config = EngineConfig(
            method=method,
            batch_size=batch_size,
            num_draft_tokens=num_draft_tokens,
            adaptive=adaptive,
            draft_bits=draft_bits,
        )
        from specproof.audit.auditor import audit_engine  # here, because they import PyTorch
        from specproof.jobs.inputs import open_input, to_request
        from specproof.jobs.job import Job
        from specproof.jobs.run import load_engine
        from specproof.lm import hide_loading_bars
        from specproof.request import Request

        hide_loading_bars()
        defaults = Request((), max_new_tokens=max_new_tokens)
        drafter = drafter or ("none" if not config.parts.drafts else "model" if draft else "prompt-lookup")
        job = Job(
            input=input_, out=None, config=config, defaults=defaults, target=target, draft=draft, drafter=drafter,
            dtype=dtype, device="cpu", device_map=None, threads=None, chat=chat, trust_remote_code=False,
            allow_pickle=False,
        )  # fmt: skip
        with open_input(input_) as source:
            loaded = load_engine(job, lambda sentence: typer.echo(sentence, err=True))
            assert loaded.tokenizer is not None
            requests = [to_request(row, loaded.tokenizer, defaults, chat) for row in source.rows()]
        if not requests:
            raise InputError(f"{input_} has no rows; give at least one prompt to decode")
        found = audit_engine(loaded, requests, level)
        if as_json:
            violations = [asdict(violation) for violation in found.violations]
            about = {"rows": len(requests), "steps": found.num_steps, "level": level, "method": method, "dtype": dtype}
            print(json.dumps({**about, "violations": violations, "crash": found.crash}, indent=2, default=str))
        else:
            for violation in found.first:
                print(violation)
            broke = f", the run broke off: {found.crash}" if found.crash else ""
            print(f"{len(found.violations)} violations in {found.num_steps} steps, {len(requests)} rows{broke}")
        raise typer.Exit(0 if found.clean else FOUND)


def faults(
    clean_runs: Annotated[int, typer.Option(min=0, help="Runs without a fault, to count false alarms.")] = 24,
    as_json: AsJson = False,
) -> None:
    """Plant each fault of the catalogue in turn and print what caught it.

    Exit status: 0 if every fault is caught by its own name and no clean run raises an alarm, 1 otherwise.
    """
    with clear_exits():
        from specproof.audit.matrix import detect, false_alarms, places  # here, because they import PyTorch
        from specproof.cli.progress import progress

        found, alarms = [], []
        with progress("planted faults", len(places()), "runs") as told:
            for name, method in places():
                found.append(detect(name, method))
                told()
        with progress("clean runs", clean_runs, "runs") as told:
            for alarm in false_alarms(clean_runs):
                alarms += [alarm] if alarm else []
                told()
        if as_json:
            rows: list[dict[str, Any]] = [{**asdict(d), "caught_by_name": d.caught_by_name} for d in found]
            print(json.dumps({"faults": rows, "clean_runs": clean_runs, "false_alarms": alarms}, indent=2))
        else:
            _print_matrix(found)
            print(f"{sum(d.caught_by_name for d in found)} of {len(found)} planted faults caught by name; ", end="")
            print(f"{len(alarms)} false alarms in {clean_runs} clean runs")
            for alarm in alarms:
                print(alarm)
        raise typer.Exit(0 if all(d.caught_by_name for d in found) and not alarms else FOUND)


def _print_matrix(found: list) -> None:
    from rich.console import Console
    from rich.table import Table

    from specproof.audit.faults import FAULTS

    table = Table("fault", "method", "breaks", "level", "caught by", "", title="Faults")
    for d in found:
        table.add_row(
            FAULTS[d.name].summary, d.method, d.invariant, d.level, ", ".join(d.caught_by) or "nothing",
            "by name" if d.caught_by_name else "NOT by name",
        )  # fmt: skip
    Console().print(table)
