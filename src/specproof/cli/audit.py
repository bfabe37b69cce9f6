"""`specproof audit`: judge output that is there already, whatever made it."""

from pathlib import Path
from typing import Annotated

import typer

from specproof.cli.audit_engine import engine, faults
from specproof.cli.audit_explain import explain
from specproof.cli.exits import clear_exits
from specproof.cli.options import AsJson, Chat, Device, Junit, PlainRows, Target, Threads, TrustRemoteCode
from specproof.request import Request

audit = typer.Typer(help="Judge output by its target, and explain every difference.", no_args_is_help=True)


@audit.callback()
def _commands() -> None:
    """Judge output by its target, and explain every difference."""


audit.command()(engine)
audit.command()(faults)
audit.command()(explain)


@audit.command()
def trace(
    candidate: Annotated[Path, typer.Argument(metavar="CANDIDATE", help="Output of any engine, a JSON line per row.")],
    target: Target = None,
    reference: Annotated[Path | None, typer.Option(help="Output of a reference run, to compare with.")] = None,
    prompts: Annotated[str | None, typer.Option(help="The input, where CANDIDATE holds no prompts.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="The limit, where no row states it.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Prompts were user messages in the chat template.")] = False,
    dtype: Annotated[str, typer.Option(help="The audited engine's: float32, bfloat16, float16, float64.")] = "float32",
    device: Device = "cpu",
    threads: Threads = None,
    num_draft_tokens: Annotated[int, typer.Option(min=0, max=64, help="K of the audited engine.")] = 5,
    plain_rows: PlainRows = 8,
    as_json: AsJson = False,
    junit: Junit = None,
    html: Annotated[Path | None, typer.Option(help="Write a page of the verdict here too, in one file.")] = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Judge the rows of CANDIDATE by the target, one teacher-forced pass each.

    CANDIDATE is what `generate` wrote (give its input as --prompts), lines of vLLM or SGLang (`prompt_token_ids`,
    `token_ids`), Spec-Bench answers, or lines with `prompt` and `text`. Rows that are text only get no firm verdict.

    Exit status: 0 if no row is faulty or unexplained, 1 if one is, 2 for bad input or options, or if no row at all
    could be judged.
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


@audit.command()
def server(
    url: Annotated[str, typer.Argument(metavar="URL", help="An OpenAI-compatible server: http://localhost:8000")],
    prompts: Annotated[str, typer.Option(help="Prompts, as for `specproof generate`.")],
    target: Target = None,
    plain_url: Annotated[str | None, typer.Option(help="The same engine without speculation: the reference.")] = None,
    model: Annotated[str | None, typer.Option(help="Its name there. (default: the only one served)")] = None,
    plain_model: Annotated[str | None, typer.Option(help="The same at the plain server. (default: --model)")] = None,
    concurrency: Annotated[int, typer.Option(min=2, help="Rows asked at once in the second mode.")] = 8,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens per row.")] = 64,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past EOS.")] = False,
    chat: Chat = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one answer.")] = 600.0,
    save: Annotated[Path | None, typer.Option(help="Folder for the answers. (default: a temporary one, kept)")] = None,
    dtype: Annotated[str, typer.Option(help="The server's: float32, bfloat16, float16, float64.")] = "float32",
    device: Device = "cpu",
    threads: Threads = None,
    num_draft_tokens: Annotated[int, typer.Option(min=0, max=64, help="K of the server.")] = 5,
    plain_rows: PlainRows = 8,
    as_json: AsJson = False,
    junit: Junit = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Ask a server for greedy tokens, one row at a time and then many at once, and judge both by the target.

    URL is the base of any server that has /v1/completions (vLLM, SGLang, llama.cpp, OpenVINO). Its key, if it wants
    one, is taken from the environment variable SPECPROOF_API_KEY. A row that fails is an error of that row only. The
    answers are traces that `audit trace` reads.

    Exit status: 0 if no row is faulty or unexplained in either mode, 1 if one is, 2 for bad input, a
    server that cannot be used, or a mode in which no row at all could be judged.
    """
    with clear_exits():
        from specproof.cli.audit_server import ServerAudit, run_server_audit  # here, because it imports PyTorch

        job = ServerAudit(
            url=url,
            plain_url=plain_url,
            prompts=prompts,
            model=model,
            plain_model=plain_model or model,
            target=target,
            concurrency=concurrency,
            defaults=Request((), max_new_tokens=max_new_tokens, ignore_eos=ignore_eos),
            timeout=timeout,
            save=save,
            chat=chat,
            dtype=dtype,
            device=device,
            threads=threads,
            num_draft_tokens=num_draft_tokens,
            plain_rows=plain_rows,
            trust_remote_code=trust_remote_code,
        )
        raise typer.Exit(run_server_audit(job, as_json, junit))
