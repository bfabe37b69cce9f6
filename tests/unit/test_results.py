"""Writing results: in input order whatever the order of finishing, and whole whatever kills the writer."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specproof.config import EngineConfig
from specproof.errors import ResultsError
from specproof.jobs.in_order import InOrder, StreamResults
from specproof.jobs.inputs import InputFile, open_input
from specproof.jobs.job import Job
from specproof.jobs.result import refusal_of, result_of, to_line
from specproof.jobs.results import (
    FileResults,
    discard_results,
    has_results,
    journal_path,
    only_writer,
)
from specproof.jobs.row import InputRow
from specproof.jobs.sidecar import append_to_sidecar, begin_sidecar, check_identity, sidecar_path
from specproof.request import Output, Request

NUM_ROWS = 6


def result(index: int) -> dict:
    text = f"row {index}: ä\u2028\n" * index
    return result_of(f"id-{index}", Output(str(index), 3, (index,) * index, text, "length", None), seconds=None)


EXPECTED = "".join(to_line(result(index)) + "\n" for index in range(NUM_ROWS)).encode()


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("input") / "input.jsonl"
    path.write_text("".join(f'{{"id": "id-{index}", "prompt": "x"}}\n' for index in range(NUM_ROWS)))
    with open_input(str(path)) as scanned:
        yield scanned


def whole_lines(out: Path) -> dict[Path, bytes]:
    """What stands on disk, torn last lines aside."""
    files = {path: path.read_bytes() if path.exists() else b"" for path in (journal_path(out), out)}
    return {path: content[: content.rfind(b"\n") + 1] for path, content in files.items()}


def undo_all_but(before: dict[Path, bytes], written: int) -> None:
    """Leave what a kill leaves after `written` bytes of an operation, which appends to the journal, then to OUT."""
    for path, content in before.items():
        appended = path.read_bytes()[len(content) :]
        path.write_bytes(content + appended[:written])
        written -= min(written, len(appended))


@given(order=st.permutations(range(NUM_ROWS)))
def test_results_come_out_in_input_order_whatever_the_order_of_finishing(order):
    lines, written = InOrder(), ""
    for index in order:
        written += lines.put(index, str(index))
    assert written == "".join(f"{index}\n" for index in range(NUM_ROWS))


@settings(deadline=None, max_examples=200)
@given(
    order=st.permutations(range(NUM_ROWS)),
    kills=st.lists(st.tuples(st.integers(0, NUM_ROWS), st.integers(0, 400)), max_size=4),
)
def test_kills_at_any_byte_lose_no_finished_row_and_repeat_none(tmp_path_factory, source, order, kills):
    """A kill: at the n-th operation of a run (opening the files is the first), after so many bytes of it."""
    out = tmp_path_factory.mktemp("kills") / "out.jsonl"
    finished: set[int] = set()
    for operation, written in [*kills, (NUM_ROWS + 1, 0)]:
        before = whole_lines(out)
        results = FileResults(out, source)
        done = {index for index in range(NUM_ROWS) if results.is_done(index)}
        assert done >= finished, f"lost {finished - done}"
        assert results.num_done == len(done)
        assert sorted(earlier["id"] for earlier in results.earlier()) == [f"id-{index}" for index in sorted(done)]
        for index in [index for index in order if index not in done][:operation]:
            finished |= done
            before = whole_lines(out)
            results.add(index, result(index))
            done.add(index)
        assert EXPECTED.startswith(out.read_bytes())
        if operation <= NUM_ROWS:
            undo_all_but(before, written)
    results.close()
    assert out.read_bytes() == EXPECTED
    assert not journal_path(out).exists()


@settings(deadline=None)
@given(order=st.permutations(range(NUM_ROWS)), cut=st.integers(0, len(EXPECTED)))
def test_even_bytes_lost_from_the_end_of_out_are_only_done_again(tmp_path_factory, source, order, cut):
    out = tmp_path_factory.mktemp("power") / "out.jsonl"
    results = FileResults(out, source)
    for index in order:
        results.add(index, result(index))
    out.write_bytes(EXPECTED[:cut])  # as after a power failure; the journal was not closed
    results = FileResults(out, source)
    for index in range(NUM_ROWS):
        if not results.is_done(index):
            results.add(index, result(index))
    results.close()
    assert out.read_bytes() == EXPECTED


def test_a_kill_before_the_journal_is_removed_leaves_a_complete_run(tmp_path, source):
    out = tmp_path / "out.jsonl"
    results = FileResults(out, source)
    for index in reversed(range(NUM_ROWS)):
        results.add(index, result(index))
    assert journal_path(out).exists()  # not closed: this is where it was killed
    results = FileResults(out, source)
    assert results.num_done == NUM_ROWS
    results.close()
    assert out.read_bytes() == EXPECTED
    assert not journal_path(out).exists()


def test_the_journal_stays_when_rows_are_missing(tmp_path, source):
    results = FileResults(tmp_path / "out.jsonl", source)
    results.add(3, result(3))
    results.close()
    assert (tmp_path / "out.jsonl").read_bytes() == b""
    assert journal_path(tmp_path / "out.jsonl").read_text(encoding="utf-8") == f"3\t{to_line(result(3))}\n"


class FullDisk:
    """A file that takes a few bytes and then no more."""

    name = "out.jsonl"

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, data):
        if not self.room:
            raise OSError(28, "No space left on device")
        written = self.file.write(data[: self.room])
        self.room -= written
        return written

    def fileno(self):
        return self.file.fileno()

    def close(self):
        self.file.close()


def test_a_full_disk_is_told_and_what_was_finished_is_kept(tmp_path, source):
    out = tmp_path / "out.jsonl"
    results = FileResults(out, source)
    for index in range(1, NUM_ROWS):
        results.add(index, result(index))
    results._out = FullDisk(results._out, room=40)
    with pytest.raises(
        ResultsError, match=r"cannot write out\.jsonl: No space left on device; the finished rows are kept"
    ):
        results.add(0, result(0))
    results.close()
    results = FileResults(out, source)
    assert [results.is_done(index) for index in range(NUM_ROWS)] == [False] + [True] * (NUM_ROWS - 1)
    results.add(0, result(0))
    results.close()
    assert out.read_bytes() == EXPECTED


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (EXPECTED.splitlines(keepends=True)[1], 1),
        (b"".join(EXPECTED.splitlines(keepends=True)[i] for i in (0, 2)), 2),
        (EXPECTED + EXPECTED, NUM_ROWS + 1),
        (b"my notes\n", 1),
        (b"7\n", 1),
        (b"\0\0\0\n", 1),
    ],
)
def test_a_file_that_is_not_the_beginning_of_the_results_is_not_touched(tmp_path, source, content, line):
    out = tmp_path / "out.jsonl"
    out.write_bytes(content)
    with pytest.raises(ResultsError, match=rf"line {line} is not the result of row {line} "):
        FileResults(out, source)
    assert out.read_bytes() == content


@pytest.mark.parametrize("record", ["no tab", "x\t{}", "3\t{"])
def test_a_damaged_journal_is_refused(tmp_path, source, record):
    journal_path(tmp_path / "out.jsonl").write_text(record + "\n")
    with pytest.raises(ResultsError, match=r"out.jsonl.partial: line 1 is damaged"):
        FileResults(tmp_path / "out.jsonl", source)


def test_discarded_results_leave_nothing(tmp_path, source):
    out = tmp_path / "out.jsonl"
    FileResults(out, source).add(1, result(1))
    assert has_results(out)
    discard_results(out)
    assert not has_results(out)


def test_a_stream_gets_each_line_as_soon_as_its_turn_comes(tmp_path):
    with (tmp_path / "stream").open("wb") as file:
        stream = StreamResults(file)
        for index, written in [(1, 0), (0, 2), (3, 2), (2, 4)]:
            stream.add(index, result(index))
            assert (tmp_path / "stream").read_bytes().count(b"\n") == written
    assert EXPECTED.startswith((tmp_path / "stream").read_bytes())


def test_a_line_is_one_line_to_every_reader():
    line = to_line({"text": "a\nb\u2028c\u2029d\x85e\x0bf\rä"})
    assert line.splitlines() == [line]
    assert json.loads(line) == {"text": "a\nb\u2028c\u2029d\x85e\x0bf\rä"}
    assert "ä" in line


def test_a_refused_row_has_an_error_and_no_made_up_numbers():
    refusal = refusal_of(InputRow(4, 5, "x"), "line 5: bad")
    assert (refusal["id"], refusal["finish_reason"], refusal["error"]) == ("x", "error", "line 5: bad")
    assert (refusal["text"], refusal["prompt_len"], refusal["seconds"], refusal["token_ids"]) == (None, None, None, [])
    assert list(refusal) == list(result(1))


def test_the_sidecar_tells_what_differs_and_survives_a_torn_line(tmp_path):
    out = tmp_path / "out.jsonl"
    begin_sidecar(out, {"identity": {"target": "a", "stop": ["x"]}})
    append_to_sidecar(out, "end", {"rows": 3})
    with sidecar_path(out).open("a") as file:
        file.write('{"event": "sta')
    check_identity(out, {"target": "a", "stop": ["x"]})
    append_to_sidecar(out, "start", {})
    lines = sidecar_path(out).read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["start", "end", "start"]
    with pytest.raises(
        ResultsError, match=r'begun differently: target was "a" and is "b"; stop was \["x"\] and is \[\]'
    ):
        check_identity(out, {"target": "b", "stop": []})


def test_without_its_sidecar_a_file_cannot_be_resumed(tmp_path):
    with pytest.raises(ResultsError, match=r"does not say how .* was begun"):
        check_identity(tmp_path / "out.jsonl", {})


def test_the_fixture_is_what_it_says(source: InputFile):
    assert source.num_rows == NUM_ROWS
    assert [row.id for row in source.rows()] == [f"id-{index}" for index in range(NUM_ROWS)]


def test_two_processes_cannot_write_the_same_results(tmp_path):
    out = tmp_path / "out.jsonl"
    with only_writer(out), pytest.raises(ResultsError, match="another specproof"), only_writer(out):
        pass
    assert not list(tmp_path.iterdir()), "the lock goes with its writer"
    with only_writer(out):
        pass


def test_a_folder_is_another_model_once_its_weights_are_others(tmp_path):
    weights = tmp_path / "model.safetensors"
    big = bytes(3 << 20)
    seen = []
    for content in (big, b"x" + big[1:], big[:-1] + b"x", big[:-1]):
        weights.write_bytes(content)
        job = Job(input="-", out=None, config=EngineConfig(), defaults=Request(()), target=str(tmp_path))
        seen.append(job.identity(Source())["target"])
    assert len(set(seen)) == 4
    assert all(str(tmp_path) in name for name in seen)


class Source:
    """An input that is nobody's concern here."""

    sha256 = "none"
