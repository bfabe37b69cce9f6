"""A report's file: refused before the work where it cannot be written, and never left half written."""

import os
import xml.etree.ElementTree as ElementTree

import pytest
from page_subject import ODD_ID

from specproof.cli.report_file import ReportFile
from specproof.errors import ResultsError
from specproof.printable import printable


@pytest.fixture
def no_model(monkeypatch):
    """Loading anything is a failure: the report's file comes first."""

    def load(*_, **__):
        raise AssertionError("the model was loaded before the report's file was tried")

    monkeypatch.setattr("specproof.cli.judge.load_model", load)
    monkeypatch.setattr("specproof.cli.judge.Tokenizer.load", load)


@pytest.mark.parametrize("option", ["--html", "--junit"])
@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("no/such/folder/report", "No such file or directory"),
        (".", "it is a folder; name a file"),
        ("file/report", "Not a directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_told_before_the_audit(audit, no_model, tmp_path, option, place, said):
    (tmp_path / "file").touch()
    result = audit(option, tmp_path / place)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"specproof: cannot write {option} {tmp_path / place}: {said}\n"


def test_a_report_never_takes_the_place_of_what_is_read_or_of_the_other_report(audit, no_model, tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text("kept")
    same = audit("--html", trace, trace=trace)
    assert (same.exit_code, trace.read_text()) == (2, "kept")
    assert "is also the candidate" in same.stderr
    both = audit("--html", tmp_path / "r", "--junit", tmp_path / "x" / ".." / "r")
    assert both.exit_code == 2
    assert "is also --junit" in both.stderr
    assert os.listdir(tmp_path) == ["trace.jsonl"]


def test_where_the_audit_fails_an_older_report_stays_and_nothing_else_does(audit, tmp_path):
    page, trace = tmp_path / "page.html", tmp_path / "trace.jsonl"
    page.write_text("older")
    trace.write_text("oops\n")
    assert audit("--html", page, trace=trace).exit_code == 2
    assert page.read_text() == "older"
    assert sorted(os.listdir(tmp_path)) == ["page.html", "trace.jsonl"]


def test_a_written_report_keeps_the_links_and_the_mode_of_the_file_that_it_replaces(tmp_path):
    page, link = tmp_path / "page.html", tmp_path / "link.html"
    page.write_text("older")
    page.chmod(0o640)
    link.symlink_to(page)
    with ReportFile(link, "--html", {}) as file:
        assert page.read_text() == "older"
        file.write("newer")
    assert (link.is_symlink(), page.read_text(), page.stat().st_mode & 0o777) == (True, "newer", 0o640)
    assert sorted(os.listdir(tmp_path)) == ["link.html", "page.html"]


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with ReportFile(pipe, "--html", {}) as file:
        file.write("whole")
    assert os.read(reader, 99) == b"whole"
    os.close(reader)
    assert pipe.is_fifo()


def test_a_disk_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    page = tmp_path / "page.html"
    page.write_text("older")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(ResultsError, match="No space left"), ReportFile(page, "--html", {}) as file:
        file.write("newer")
    assert page.read_text() == "older"
    assert os.listdir(tmp_path) == ["page.html"]


def test_junit_of_hostile_ids_and_texts_is_xml(audit, tmp_path):
    path = tmp_path / "junit.xml"
    assert audit("--junit", path).exit_code == 1
    suite = ElementTree.parse(path).getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("8", "4", "1")
    assert suite.find(f"testcase[@name='{printable(ODD_ID)}']/failure") is not None
