"""`specproof env`: what it runs on."""

import json
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from specproof.cli.exits import clear_exits


def env(as_json: bool = typer.Option(False, "--json", help="Print one JSON document.")) -> None:
    """Show versions, CPU, threads, number formats, CUDA devices, and where the embedded model is."""
    with clear_exits():
        facts = _facts()
        if as_json:
            print(json.dumps(facts, indent=2))
            return
        table = Table("what", "value", show_header=False)
        for name, value in facts.items():
            table.add_row(name.replace("_", " "), ", ".join(map(str, value)) if isinstance(value, list) else str(value))
        Console().print(table)


def _facts() -> dict[str, Any]:
    import torch

    from specproof.embedded import embedded_folder
    from specproof.jobs.provenance import machine, versions
    from specproof.lm import DTYPES

    folder = embedded_folder()
    return {
        **versions(),
        **machine(),
        "dtypes": list(DTYPES),
        "cuda_devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "cache_folder": str(folder.parent),
        "embedded_model_ready": folder.is_dir(),
    }
