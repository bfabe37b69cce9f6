"""Options that several commands of `audit` share, with one meaning and one help text."""

from pathlib import Path
from typing import Annotated

import typer

Target = Annotated[str | None, typer.Option(help="Folder or hub name. (default: the embedded SmolLM2)")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 ...")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads.")]
PlainRows = Annotated[int, typer.Option(min=0, help="Rows decoded anew at batch 1 and 8; 0: none.")]
Chat = Annotated[bool, typer.Option("--chat", help="Prompts are user messages in the chat template.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Junit = Annotated[Path | None, typer.Option(help="Write JUnit XML here too.")]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run a model's own code.")]
