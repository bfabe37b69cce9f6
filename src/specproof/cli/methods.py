"""`specproof methods`: what can be combined."""

import json
from dataclasses import asdict

import typer
from rich.console import Console
from rich.table import Table

from specproof.cli.exits import clear_exits
from specproof.config import ATTENTION_NAMES, COMMIT_NAMES, LAYOUT_NAMES, METHODS, NUMERICS_NAMES, SCHEDULER_NAMES
from specproof.jobs.job import DRAFTERS


def methods(as_json: bool = typer.Option(False, "--json", help="Print one JSON document.")) -> None:
    """List the methods, the parts they combine, and the drafters."""
    parts = {
        "layout": LAYOUT_NAMES,
        "scheduler": SCHEDULER_NAMES,
        "commit": COMMIT_NAMES,
        "attention": ATTENTION_NAMES,
        "numerics": NUMERICS_NAMES,
    }
    with clear_exits():
        if as_json:
            listed = {name: asdict(method) for name, method in METHODS.items()}
            print(json.dumps({"methods": listed, "drafters": DRAFTERS, "parts": parts}, indent=2))
            return
        console = Console()
        console.print(_methods_table(), _drafters_table(DRAFTERS))
        console.print("The parts of a method can be chosen one by one:")
        for name, known in parts.items():
            console.print(f"  --{name}: {', '.join(known)}", highlight=False)


def _methods_table() -> Table:
    table = Table("method", "layout", "scheduler", "commit", "what it is")
    for name, method in METHODS.items():
        table.add_row(name, method.layout, method.scheduler, method.commit, method.summary)
    return table


def _drafters_table(drafters: dict[str, str]) -> Table:
    table = Table("drafter", "what it proposes")
    for name, summary in drafters.items():
        table.add_row(name, summary)
    return table
