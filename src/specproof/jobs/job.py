"""A job as data: what to decode, with what, and where the results go."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specproof.config import EngineConfig
from specproof.errors import ConfigError
from specproof.jobs.inputs import InputFile
from specproof.jobs.results import journal_path
from specproof.jobs.sidecar import sidecar_path
from specproof.request import Request

EMBEDDED = "embedded:SmolLM2-135M-Instruct"
DRAFTERS = {
    "model": "a smaller model with the target's tokenizer (--draft FOLDER or hub name; default if one is named)",
    "prompt-lookup": "the tokens that followed the row's last few tokens when they occurred before (default)",
    "suffix": "the same at greatest length, in finished outputs and a corpus (--corpus FILE) too",
    "cascade": "suffix first, the model (--draft) where it has nothing",
    "none": "no drafts: one token per row and step",
}


_SAMPLE = 1 << 20  # bytes at either end of a file that tell one set of weights from another


@dataclass(frozen=True, slots=True)
class Job:
    """Raises ConfigError for options that contradict each other.

    input: a path, or - for standard input. out: None for standard output.
    target, draft: folder or hub name; no target: the embedded model. drafter: a name from DRAFTERS. corpus: a text file
    that a suffix drafter may draft from.
    defaults: what holds for each row that does not say otherwise. chat: prompts are user messages in the chat template.
    """

    input: str
    out: Path | None
    config: EngineConfig
    defaults: Request
    target: str | None = None
    draft: str | None = None
    drafter: str = "prompt-lookup"
    dtype: str = "float32"
    device: str = "cpu"
    device_map: str | None = None
    threads: int | None = None
    chat: bool = False
    trust_remote_code: bool = False
    allow_pickle: bool = False
    corpus: Path | None = None

    def __post_init__(self) -> None:
        if self.drafter not in DRAFTERS:
            raise ConfigError(f"drafter is {self.drafter!r}; known: {', '.join(DRAFTERS)} (a draft model: --draft D)")
        has_model = self.drafter in ("model", "cascade")
        if has_model and self.draft is None:
            raise ConfigError(f"drafter {self.drafter!r} needs a draft model: name one with --draft")
        if self.draft is not None and not has_model:
            raise ConfigError(
                f"drafter {self.drafter!r} uses no draft model; leave --draft out, or take model or cascade"
            )
        if self.corpus is not None and self.drafter not in ("suffix", "cascade"):
            raise ConfigError(f"drafter {self.drafter!r} uses no corpus; take suffix or cascade")
        if self.corpus is not None and not self.corpus.is_file():
            raise ConfigError(f"there is no file {self.corpus} for a corpus; name a UTF-8 text file")
        if self.config.draft_head is not None and not has_model:
            raise ConfigError(f"drafter {self.drafter!r} has no head to cut; draft_head is for model and cascade")
        if self.config.draft_bits is not None and not has_model:
            raise ConfigError(f"drafter {self.drafter!r} has no weights; draft_bits is for model and cascade")
        least, most = self.defaults.min_new_tokens, self.defaults.max_new_tokens
        if least > most:
            raise ConfigError(f"min_new_tokens is {least}, more than max_new_tokens {most}")
        if "" in self.defaults.stop:
            raise ConfigError("a stop string is empty, which would match everywhere; leave it out")
        if self.out is not None:
            if self.out.exists() and not self.out.is_file():
                raise ConfigError(
                    f"{self.out} is no ordinary file, so it cannot be resumed; name one, or - and a redirection"
                )
            if not self.out.parent.is_dir():
                raise ConfigError(f"there is no folder {self.out.parent} for the results; make it first")
            written = [path.resolve() for path in (self.out, journal_path(self.out), sidecar_path(self.out))]
            if self.input != "-" and Path(self.input).resolve() in written:
                raise ConfigError(f"the results would overwrite the input {self.input}; name another file")

    @property
    def target_name(self) -> str:
        return self.target or EMBEDDED

    @property
    def drafter_name(self) -> str | None:
        """The draft model's or drafter's name; None if nothing drafts."""
        if not self.config.parts.drafts:
            return None
        if self.drafter == "cascade":
            return f"cascade:{self.draft}"
        return self.draft or (None if self.drafter == "none" else self.drafter)

    @property
    def _drafter_identity(self) -> str | None:
        if self.draft is None or self.drafter_name is None:
            return self.drafter_name
        return ("cascade:" if self.drafter == "cascade" else "") + _model(self.draft)

    def identity(self, source: InputFile) -> dict[str, Any]:
        """What the results depend on: the arithmetic too, since rounding chooses between near-ties.

        So is what drafts: mixed acceptance counts would describe neither draft.
        """
        defaults, config = self.defaults, self.config
        return {
            "input_sha256": source.sha256,
            "target": _model(self.target_name),
            "drafter": self._drafter_identity,
            "draft_head": config.draft_head,
            "draft_bits": config.draft_bits,
            "corpus_sha256": None if self.corpus is None else hashlib.sha256(self.corpus.read_bytes()).hexdigest(),
            "dtype": self.dtype,
            "numerics": config.numerics,
            "attention": config.attention,
            "pack": config.pack,
            "compile": config.compile,
            "chat": self.chat,
            "max_new_tokens": defaults.max_new_tokens,
            "min_new_tokens": defaults.min_new_tokens,
            "stop": list(defaults.stop),
            "ignore_eos": defaults.ignore_eos,
        }


def _model(name: str) -> str:
    """What a model is: a hub name as it is, a folder by its files. Large files count by size, beginning and end."""
    folder = Path(name)
    if not folder.is_dir():
        return name
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLE))
            file.seek(max(0, size - _SAMPLE))
            digest.update(file.read(_SAMPLE))
    return f"{folder.resolve()} (files {digest.hexdigest()[:16]})"
