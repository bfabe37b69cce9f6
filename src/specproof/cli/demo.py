"""`specproof demo`: a dozen built-in prompts, decoded, timed and checked against the reference."""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from specproof.config import EngineConfig
from specproof.drafters import PromptLookup
from specproof.embedded import default_model_folder
from specproof.engine import Engine
from specproof.lm import LM, hide_loading_bars, load_model
from specproof.prompts import DEMO_PROMPTS
from specproof.reference import Reference, decode_reference
from specproof.request import Output, Request
from specproof.tokenizer import Tokenizer

T = TypeVar("T")


def demo(batch_size: int, max_new_tokens: int, dtype: str, threads: int) -> None:
    """Decode the demo prompts with the embedded model, time it, and check every row. threads 0: PyTorch's default."""
    console = Console()
    hide_loading_bars()
    if threads:
        torch.set_num_threads(threads)
    folder = default_model_folder(console.print)
    lm, tokenizer = load_model(folder, dtype=dtype), Tokenizer.load(folder)
    requests = [
        Request(tokenizer.encode_chat([{"role": "user", "content": prompt}]), max_new_tokens=max_new_tokens)
        for prompt in DEMO_PROMPTS
    ]
    engine = Engine(lm, PromptLookup(), EngineConfig(batch_size=batch_size), tokenizer=tokenizer)
    plain = Engine(lm, None, EngineConfig(method="target-only", batch_size=batch_size), tokenizer=tokenizer)

    console.print(f"{len(requests)} prompts, batch {batch_size}, {dtype}, {torch.get_num_threads()} threads\n")
    with console.status("Decoding ..."):
        generate_with_transformers(lm, requests[:1], 1)  # the first forwards of a process are slow
        outputs, speculative = _timed(lambda: engine.generate(requests))
        plain_outputs, target_only = _timed(lambda: plain.generate(requests))
        counts, transformers = _timed(lambda: generate_with_transformers(lm, requests, batch_size))
    console.print(_rows(outputs, console.width))
    console.print(
        _speeds(
            ("specproof, prompt lookup", sum(len(output.token_ids) for output in outputs), speculative),
            ("specproof, target only", sum(len(output.token_ids) for output in plain_outputs), target_only),
            ("Transformers generate", sum(counts), transformers),
        )
    )
    with console.status("Decoding the reference: one row, one token at a time ..."):
        references = [decode_reference(lm, request) for request in requests]
    equal = 0
    for number, (request, output, reference) in enumerate(zip(requests, outputs, references, strict=True)):
        if (output.token_ids, output.finish_reason) == (reference.token_ids, reference.finish_reason):
            equal += 1
        else:
            console.print(escape(f"Row {number} differs: {_why(lm, tokenizer, request, output, reference)}"))
    console.print(f"{equal} of {len(outputs)} rows equal the reference (the target alone, a token at a time).")


def generate_with_transformers(
    lm: LM, requests: Sequence[Request], batch_size: int, *stopping_criteria: Any
) -> list[int]:
    """Decode with the model's own greedy `generate`, left-padded batch by batch; the number of tokens of each row."""
    lm.unpack()  # as it came
    model: Any = lm.model  # its `generate` comes from a mixin that type checkers do not see
    counts = []
    for start in range(0, len(requests), batch_size):
        batch = requests[start : start + batch_size]
        width = max(len(request.prompt_ids) for request in batch)
        pads = [width - len(request.prompt_ids) for request in batch]
        filler = next(iter(lm.eos_ids))  # masked: which id it is does not matter
        ids = [[filler] * pad + list(request.prompt_ids) for pad, request in zip(pads, batch, strict=True)]
        mask = [[0] * pad + [1] * (width - pad) for pad in pads]
        out = model.generate(
            input_ids=torch.tensor(ids, device=lm.device),
            attention_mask=torch.tensor(mask, device=lm.device),
            max_new_tokens=max(request.max_new_tokens for request in batch),
            do_sample=False,
            pad_token_id=filler,
            stopping_criteria=list(stopping_criteria),
        )
        for row in out[:, width:].tolist():
            ends = (index for index, token in enumerate(row) if token in lm.eos_ids)
            counts.append(next(ends, len(row) - 1) + 1)
    return counts


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    started = perf_counter()
    return work(), perf_counter() - started


def _rows(outputs: Sequence[Output], width: int) -> Table:
    room = max(10, (width - 52) // 2)  # what the numbers leave to each of the two texts
    table = Table("row", "prompt", "text", "prompt\ntokens", "tokens", "accepted\n/ drafted", "finish", title="Rows")
    for column in table.columns[3:6]:
        column.justify = "right"
    for number, (prompt, output) in enumerate(zip(DEMO_PROMPTS, outputs, strict=True)):
        table.add_row(
            str(number),
            escape(_start(prompt, room)),
            escape(_start(output.text or output.error or "", room)),
            str(output.prompt_len),
            str(len(output.token_ids)),
            f"{output.num_accepted} / {output.num_drafted}",
            output.finish_reason,
        )
    return table


def _speeds(*runs: tuple[str, int, float]) -> Table:
    table = Table("run", "tokens", "seconds", "tokens per second", title="Speed")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, tokens, seconds in runs:
        table.add_row(name, str(tokens), f"{seconds:.1f}", f"{tokens / seconds:.1f}")
    return table


def _why(lm: LM, tokenizer: Tokenizer, request: Request, output: Output, reference: Reference) -> str:
    """Where a row leaves the reference, and how close the two tokens are there: evidence of a near-tie, or of none."""
    ours, theirs = output.token_ids, reference.token_ids
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    if at is None:
        return (
            f"it ends after {len(ours)} tokens ({output.finish_reason}), not {len(theirs)} ({reference.finish_reason})"
        )
    prefix = torch.tensor([[*request.prompt_ids, *ours[:at]]], device=lm.device)
    logits = lm.plain_forward(prefix)[0][0, -1].double()
    again = (logits[theirs[at]] - logits[ours[at]]).item()
    return (
        f"token {at} is {tokenizer.decode(ours[at : at + 1])!r}, not {tokenizer.decode(theirs[at : at + 1])!r}. "
        f"The reference chose by a margin of {reference.margins[at]:.2g}; "
        f"with the prefix in one forward its token leads by {again:.2g}."
    )


def _start(text: str, length: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"
