"""`specproof env`: what it runs on."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from specproof.cli.exits import clear_exits


def env(
    numerics: Annotated[
        bool, typer.Option("--numerics", help="Probe what the bits of results depend on here, op by op.")
    ] = False,
    target: Annotated[str | None, typer.Option(help="Model to probe. (default: the embedded SmolLM2)")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16, float64 or auto.")] = "float32",
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="CPU threads.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show versions, CPU, threads, number formats, CUDA devices, and where the embedded model is."""
    with clear_exits():
        facts = _facts(threads)
        probed = _probe(target, dtype) if numerics else None
        if as_json:
            print(json.dumps({**facts, "numerics": probed} if probed else facts, indent=2))
            return
        table = Table("what", "value", show_header=False)
        for name, value in facts.items():
            table.add_row(name.replace("_", " "), ", ".join(map(str, value)) if isinstance(value, list) else str(value))
        Console().print(table)
        if probed:
            _print_probe(probed)


def _facts(threads: int | None) -> dict[str, Any]:
    import torch

    from specproof.embedded import embedded_folder
    from specproof.jobs.provenance import machine, versions
    from specproof.lm import DTYPES

    if threads is not None:
        torch.set_num_threads(threads)
    folder = embedded_folder()
    return {
        **versions(),
        **machine(),
        "dtypes": list(DTYPES),
        "cuda_devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "cache_folder": str(folder.parent),
        "embedded_model_ready": folder.is_dir(),
    }


def _probe(target: str | None, dtype: str) -> dict[str, Any]:
    """What an engine would choose for this model, and the findings."""
    from specproof.config import EngineConfig
    from specproof.embedded import default_model_folder
    from specproof.lm import hide_loading_bars, load_model
    from specproof.numerics.choose import compare

    hide_loading_bars()
    lm = load_model(target or default_model_folder(), dtype=dtype)
    return {"model": target or "embedded", "dtype": lm.dtype_name, **compare(lm, EngineConfig())}


def _print_probe(probed: dict[str, Any]) -> None:
    table = Table(
        "operation", "ordinary shapes", "the rule's shapes", "tried", title=f"{probed['model']}, {probed['dtype']}"
    )
    rule = {finding["op"]: finding for finding in probed["rule"] or ()}
    for ordinary in probed["ordinary"]:
        ruled = rule.get(ordinary["op"])
        table.add_row(ordinary["op"], _said(ordinary), _said(ruled) if ruled else "-", (ruled or ordinary)["tried"])
    console = Console()
    console.print(table)
    console.print(f"numerics: {probed['kind']} ({probed['reason']})", soft_wrap=True, highlight=False)


def _said(finding: dict[str, Any]) -> str:
    said = "depends on " + "; ".join(finding["depends_on"]) if finding["depends_on"] else "same bits"
    return said + (", and on the number of threads" if finding["threads"] else "")
