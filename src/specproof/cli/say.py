"""A sentence to the user, beside the results."""

import typer


def say(sentence: str) -> None:
    """On standard error."""
    typer.echo(f"specproof: {sentence}", err=True)
