"""A real audit with its page, made once."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from page_subject import write_subject
from typer.testing import CliRunner

from specproof.cli.app import app


@pytest.fixture(scope="session")
def audit(tmp_path_factory) -> Callable[..., Result]:
    """`specproof audit trace` with these further options, on the subject's trace unless another is given."""
    folder = tmp_path_factory.mktemp("subject")
    model, subject, reference = write_subject(folder)

    def run(*options: object, trace: Path = subject) -> Result:
        given = ("--target", model, "--reference", reference, "--dtype", "float64")
        return CliRunner().invoke(app, [str(each) for each in ("audit", "trace", trace, *given, *options)])

    return run


@pytest.fixture(scope="session")
def audited(audit, tmp_path_factory) -> tuple[dict[str, Any], Path]:
    """The document that --json printed, and the page of the same run."""
    page = tmp_path_factory.mktemp("page") / "audit.html"
    result = audit("--json", "--html", page)
    assert result.exit_code == 1, result.output
    return json.loads(result.stdout), page


@pytest.fixture
def document(audited) -> dict[str, Any]:
    """A copy that a test may change."""
    return json.loads(json.dumps(audited[0]))
