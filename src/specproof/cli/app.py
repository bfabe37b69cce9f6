"""`specproof`: the commands."""

import os
import sys

import typer

from specproof.cli.audit import audit
from specproof.cli.env import env
from specproof.cli.exits import clear_exits
from specproof.cli.generate import generate
from specproof.cli.methods import methods

app = typer.Typer(
    help="Decode batches of prompts speculatively, token for token as the target model alone would.",
    rich_markup_mode="markdown",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(generate)
app.command()(methods)
app.command()(env)
app.add_typer(audit, name="audit")


@app.command()
def demo(
    batch_size: int = typer.Option(8, min=1, help="Rows decoded together."),
    max_new_tokens: int = typer.Option(20, min=1, help="Most tokens per prompt."),
    dtype: str = typer.Option("float32", help="Number format of the weights."),
    threads: int = typer.Option(0, min=0, help="CPU threads; 0: as many as PyTorch picks."),
) -> None:
    """Decode a dozen built-in prompts with the embedded model, beside target-only and Transformers' generate."""
    with clear_exits():
        from specproof.cli.demo import demo as run_demo

        run_demo(batch_size=batch_size, max_new_tokens=max_new_tokens, dtype=dtype, threads=threads)


def main() -> None:
    if not sys.stderr.isatty():
        # Bars of model loading; read by Transformers when it is imported.
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    app()
