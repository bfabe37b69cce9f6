"""What README tells people to type works."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    return [block for name, block in fenced if name == language]


def run(arguments: list[str], cwd: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(arguments, cwd=cwd, capture_output=True, text=True, env={**os.environ, "PATH": path})
    assert done.returncode == 0, f"{arguments[-1]}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path, smollm2_folder: Path) -> Path:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    return tmp_path


def test_shell_commands_of_the_readme_run_and_give_what_they_promise(folder):
    commands = blocks("sh")
    assert len(commands) >= 2
    printed = [run(["bash", "-euo", "pipefail", "-c", block], folder) for block in commands]
    assert len((folder / "out.jsonl").read_text().splitlines()) == 2
    assert "accepted 5 of 5 drafts" in printed[1]


def test_python_of_the_readme_runs(folder):
    (block,) = blocks("python")
    printed = run([sys.executable, "-c", block], folder)
    assert len(printed.splitlines()) == 3


def test_the_two_commands_are_targets_of_the_makefile():
    (block,) = blocks("")
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert [line.removeprefix("make ") for line in block.splitlines()] == ["demo", "test"]
    assert {"demo", "test"} <= set(targets)


def test_files_that_the_documentation_links_to_exist():
    for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name} links to {link}"
