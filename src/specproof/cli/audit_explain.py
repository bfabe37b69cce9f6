"""`specproof audit explain`: a saved finding replayed, with every control."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specproof.cli.exits import clear_exits
from specproof.cli.options import AsJson, Device, Threads, TrustRemoteCode
from specproof.cli.say import say

if TYPE_CHECKING:
    from specproof.audit.replay import Replayed

NOT_BENIGN = 1  # exit status
FROM_SCRATCH = {"alone": "alone, fresh cache", "batch-anew": "in a batch", "precision-up": "one precision up"}


def explain(
    finding: Annotated[Path, typer.Argument(metavar="FINDING", help="What --json printed: a verdict, row or finding.")],
    row: Annotated[str | None, typer.Option(help="The row's id, where FINDING has several.")] = None,
    target: Annotated[str | None, typer.Option(help="Folder or hub name. (default: as FINDING says)")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 ... (default: as FINDING says)")] = None,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: AsJson = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Put a finding of `audit trace` or `audit server` to the target again, with every control, and decide anew.

    Exit status: 0 if it comes out the same and benign, 1 if faulty, unexplained or not the same, 2 for bad input.
    """
    with clear_exits():
        from specproof.audit.saved import read_saved

        saved = read_saved(finding, row)
        from specproof.audit.replay import replay_finding  # from here on, because these take seconds to import
        from specproof.cli.judge import find_target
        from specproof.jobs.provenance import machine, versions

        named = find_target(
            target or saved.target,
            dtype=dtype or saved.replay.dtype,
            device=device,
            threads=threads,
            trust_remote_code=trust_remote_code,
        )
        if dtype not in (None, saved.replay.dtype):
            say(f"the noise was measured in {saved.replay.dtype}; in {dtype} it may be another")
        lm = named.load()
        found = replay_finding(lm, named.tokenizer, saved)
        if as_json:
            about = {"target": named.name, "dtype": lm.dtype_name, "versions": versions(), "machine": machine()}
            print(json.dumps({**found.to_dict(), **about}, indent=2))
        else:
            _print(found, lm.dtype_name)
        raise typer.Exit(0 if found.reproduced and found.benign else NOT_BENIGN)


def _print(found: "Replayed", dtype: str) -> None:
    from rich.console import Console
    from rich.table import Table

    saved, console = found.saved, Console(highlight=False, markup=False)
    row = f"row {saved.id}, " if saved.id else ""
    token, choice = _token(saved.token, found.token_text), _token(found.choice, found.choice_text)
    console.print(f"{row}token {saved.index}: the candidate has {token}, the target takes {choice}")
    table = Table("control", f"margin ({dtype})", "of the two, the target prefers")
    table.add_row("judging pass", f"{found.margin:.3g}", choice)
    for name, margin in found.controls.items():
        takes = "-" if margin is None else token if margin <= 0 else choice
        table.add_row(FROM_SCRATCH.get(name, name), "-" if margin is None else f"{margin:.3g}", takes)
    console.print(table)
    console.print(f"noise {saved.noise:.3g}; a unit in the last place {found.step:.3g}")
    console.print(f"{found.cls}: {found.why}")
    if found.signature is not None:
        console.print(found.signature.detail)
    if found.reproduced:
        console.print("reproduced: the same choice, the same class")
    else:
        console.print(f"NOT reproduced: it was {saved.cls}, the target took {saved.choice}, margin {saved.margin:.3g}")


def _token(token: int, text: str | None) -> str:
    return str(token) if text is None else f"{token} {text!r}"
