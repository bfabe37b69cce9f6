"""`specproof audit`: judge output that is there already, whatever made it."""

from pathlib import Path
from typing import Annotated

import typer

from specproof.cli.audit_engine import engine, faults
from specproof.cli.exits import clear_exits

audit = typer.Typer(help="Judge output by its target, and explain every difference.", no_args_is_help=True)


@audit.callback()
def _commands() -> None:
    """Judge output by its target, and explain every difference."""


audit.command()(engine)
audit.command()(faults)


@audit.command()
def trace(
    candidate: Annotated[Path, typer.Argument(metavar="CANDIDATE", help="Output of any engine, a JSON line per row.")],
    target: Annotated[str | None, typer.Option(help="Folder or hub name. (default: the embedded SmolLM2)")] = None,
    reference: Annotated[Path | None, typer.Option(help="Output of a reference run, to compare with.")] = None,
    prompts: Annotated[str | None, typer.Option(help="The input, where CANDIDATE holds no prompts.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="The limit, where no row states it.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Prompts were user messages in the chat template.")] = False,
    dtype: Annotated[str, typer.Option(help="The audited engine's: float32, bfloat16, float16, float64.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 ...")] = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    num_draft_tokens: Annotated[int, typer.Option(min=0, help="K of the audited engine.")] = 5,
    plain_rows: Annotated[int, typer.Option(min=0, help="Rows decoded anew at batch 1 and 8; 0: none.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML here too.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page of the verdict here too, in one file.")] = None,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="Run a model's own code.")] = False,
) -> None:
    """Judge the rows of CANDIDATE by the target, one teacher-forced pass each.

    CANDIDATE is what `generate` wrote (give its input as --prompts), lines of vLLM or SGLang (`prompt_token_ids`,
    `token_ids`), Spec-Bench answers, or lines with `prompt` and `text`. Rows that are text only get no firm verdict.

    Exit status: 0 if no row is faulty or unexplained, 1 if one is, 2 for bad input or options.
    """
    with clear_exits():
        from specproof.cli.audit_trace import AuditJob, run_audit  # here, because it imports PyTorch

        job = AuditJob(
            candidate=candidate,
            target=target,
            reference=reference,
            prompts=prompts,
            max_new_tokens=max_new_tokens,
            chat=chat,
            dtype=dtype,
            device=device,
            threads=threads,
            num_draft_tokens=num_draft_tokens,
            plain_rows=plain_rows,
            trust_remote_code=trust_remote_code,
        )
        raise typer.Exit(run_audit(job, as_json, junit, html))
