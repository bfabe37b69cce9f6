"""`specproof generate`: a file of prompts in, a file of continuations out."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from specproof.cli.exits import clear_exits
from specproof.config import EngineConfig, Method
from specproof.errors import ConfigError
from specproof.jobs.job import Job
from specproof.request import Request

_method, _model, _row, _output = (
    partial(typer.Option, rich_help_panel=panel)
    for panel in ("Method", "Models and machine", "Rows (a row may say otherwise)", "Output")
)


def generate(
    input_: Annotated[str, typer.Argument(metavar="INPUT", help="Prompts: text (one a line), JSONL, or - for stdin.")],
    out: Annotated[str, typer.Option("--out", "-o", help="Results, a JSON line per row; - for standard output.")],
    method: Annotated[str, _method(help="See `specproof methods`.")] = "specproof",
    draft: Annotated[str | None, _method(help="Draft model: folder or hub name.")] = None,
    drafter: Annotated[str | None, _method(help="prompt-lookup (default), suffix, model, cascade or none.")] = None,
    corpus: Annotated[Path | None, _method(help="Text that suffix and cascade may draft from.")] = None,
    adaptive: Annotated[
        bool | None, _method(help="Draft only what is expected to pay. (default: yes where rows lie in slots)")
    ] = None,
    draft_head: Annotated[
        int | None, _method(min=1, help="Ids that a draft model chooses among, the most frequent. (default: all)")
    ] = None,
    draft_bits: Annotated[
        int | None, _method(help="4: a draft model drafts with weights of four bits, on a CPU. (default: its own)")
    ] = None,
    batch_size: Annotated[int, _method(min=1, help="Rows decoded together.")] = 8,
    num_draft_tokens: Annotated[
        int | None, _method(min=0, help="Most drafts per row and step. (default 16 if adaptive, else 5)")
    ] = None,
    layout: Annotated[str | None, _method(help="slotted or left-padded.")] = None,
    scheduler: Annotated[str | None, _method(help="continuous, static or same-length.")] = None,
    commit: Annotated[str | None, _method(help="per-row or batch-min.")] = None,
    window: Annotated[int | None, _method(min=1, help="Rows in the pool of same-length. (default 32)")] = None,
    sort_by_length: Annotated[bool, _method("--sort-by-length", help="Short prompts first.")] = False,
    no_share_prefixes: Annotated[
        bool, _method("--no-share-prefixes", help="Compute each prompt anew, also what another row has.")
    ] = False,
    prefill_chunk: Annotated[int, _method(min=1, help="Most prompt tokens per forward.")] = 256,
    target: Annotated[str | None, _model(help="Folder or hub name. (default: the embedded SmolLM2)")] = None,
    dtype: Annotated[str, _model(help="float32, bfloat16, float16, float64 or auto.")] = "float32",
    device: Annotated[str | None, _model(help="cpu (default), cuda, cuda:1 ...")] = None,
    device_map: Annotated[str | None, _model(help="Spread over devices: auto ...")] = None,
    attention: Annotated[str, _model(help="sdpa or eager.")] = "sdpa",
    numerics: Annotated[str, _model(help="auto, invariant (the same bits in any batch) or fast.")] = "auto",
    no_pack: Annotated[bool, _model("--no-pack", help="Leave weights as they are; slower on a CPU.")] = False,
    compile_: Annotated[
        bool, _model("--compile", help="Compile the models' layers; pays in long runs (needs a C++ compiler).")
    ] = False,
    threads: Annotated[int | None, _model(min=1, max=1024, help="CPU threads.")] = None,
    trust_remote_code: Annotated[bool, _model("--trust-remote-code", help="Run code that comes with a model.")] = False,
    allow_pickle: Annotated[bool, _model("--allow-pickle", help="Load pickled weights; they can run code.")] = False,
    max_new_tokens: Annotated[int, _row(min=1, help="Most tokens per row.")] = 128,
    min_new_tokens: Annotated[int, _row(min=0, help="Tokens before a row may stop.")] = 0,
    stop: Annotated[list[str] | None, _row(help="Text that ends a row; may be repeated.")] = None,
    ignore_eos: Annotated[bool, _row("--ignore-eos", help="Go on past EOS.")] = False,
    chat: Annotated[bool, _row("--chat", help="Prompts are user messages in the chat template.")] = False,
    resume: Annotated[bool, _output("--resume", help="Go on after the rows that OUT has.")] = False,
    overwrite: Annotated[bool, _output("--overwrite", help="Begin anew; what OUT has is lost.")] = False,
    as_json: Annotated[bool, _output("--json", help="Print one JSON document at the end.")] = False,
) -> None:
    """Continue the prompts of INPUT.

    INPUT is text with a prompt a line (blank lines are skipped), or JSONL with `prompt`, `messages` or `token_ids`, an
    `id`, and `max_new_tokens`, `min_new_tokens`, `stop`, `stop_token_ids`, `ignore_eos` where a row differs; or
    Spec-Bench's JSONL, of which the first turn is decoded. A bad line is an error of that row only.

    Killed or interrupted, the same command with --resume goes on and decodes no finished row again. A row that is an
    error counts as finished. Exit status: 0, 1 if some rows are errors, 2 for bad input or options.
    """
    with clear_exits():
        config = EngineConfig(
            method=method,
            batch_size=batch_size,
            draft_head=draft_head,
            draft_bits=draft_bits,
            layout=layout,
            scheduler=scheduler,
            commit=commit,
            window=max(32, batch_size) if window is None else window,
            sort_by_length=sort_by_length,
            prefill_chunk=prefill_chunk,
            attention=attention,
            numerics=numerics,
            share_prefixes=not no_share_prefixes,
            pack=not no_pack,
            compile=compile_,
        )
        can_share = replace(config, share_prefixes=True).shares_prefixes
        paced = drafter != "none" and _pays(config.parts)
        config = replace(config, adaptive=paced if adaptive is None else adaptive)
        most = (16 if config.adaptive else 5) if num_draft_tokens is None else num_draft_tokens
        config = replace(config, num_draft_tokens=most)
        has_drafts, has_pool = config.parts.drafts, config.parts.scheduler == "same-length"
        for option, given in (
            ("--draft", draft),
            ("--drafter", drafter not in (None, "none")),
            ("--corpus", corpus is not None),
            ("--draft-head", draft_head is not None),
            ("--draft-bits", draft_bits is not None),
        ):
            _refuse(f"{option} with method {method}", given and not has_drafts, "it does not draft")
        nothing_drafts = not has_drafts or drafter == "none"
        _refuse("--num-draft-tokens", num_draft_tokens is not None and nothing_drafts, "nothing drafts here")
        _refuse("--adaptive", adaptive and (nothing_drafts or num_draft_tokens == 0), "nothing drafts here")
        _refuse("--window", window is not None and not has_pool, "only the same-length scheduler has one")
        _refuse(
            "--no-share-prefixes", no_share_prefixes and not can_share, "only rows that are refilled in slots share"
        )
        _refuse("--device and --device-map", device and device_map, "choose one")
        _refuse("--resume and --overwrite", resume and overwrite, "choose one")
        _refuse("--resume", resume and out == "-", "standard output cannot be resumed; name a file with -o")
        _refuse("--overwrite", overwrite and out == "-", "standard output has nothing to overwrite")
        _refuse("--json", as_json and out == "-", "the results go to standard output already; name a file with -o")
        job = Job(
            input=input_,
            out=None if out == "-" else Path(out),
            config=config,
            defaults=Request(
                prompt_ids=(),
                max_new_tokens=max_new_tokens,
                min_new_tokens=min_new_tokens,
                stop=tuple(stop or ()),
                ignore_eos=ignore_eos,
            ),
            target=target,
            draft=draft,
            drafter=drafter or ("model" if draft else "prompt-lookup"),
            corpus=corpus,
            dtype=dtype,
            device=device or "cpu",
            device_map=device_map,
            threads=threads,
            chat=chat,
            trust_remote_code=trust_remote_code,
            allow_pickle=allow_pickle,
        )
        from specproof.cli.run import run  # here, because it imports PyTorch

        raise typer.Exit(run(job, resume, overwrite, as_json))


def _pays(parts: Method) -> bool:
    """Where a draft has a price of its own: in a rectangle, or with rows cut to the batch, it depends on the others."""
    return parts.drafts and parts.layout == "slotted" and parts.commit == "per-row"


def _refuse(options: str, is_given: object, why: str) -> None:
    """Raises ConfigError where an option would be ignored: it is meant, or it is a mistake."""
    if is_given:
        raise ConfigError(f"{options}: {why}")
