"""Run a job: rows in, results out, as they finish."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from specproof.drafters import Cascade, PromptLookup, Suffix
from specproof.embedded import default_model_folder
from specproof.engine import Engine
from specproof.errors import ConfigError, RequestError
from specproof.jobs.clock import RowClock
from specproof.jobs.in_order import StreamResults
from specproof.jobs.inputs import InputFile, to_request
from specproof.jobs.job import Job
from specproof.jobs.result import refusal_of, result_of
from specproof.jobs.results import FileResults
from specproof.jobs.tally import Tally
from specproof.lm import LM, load_model
from specproof.request import Request
from specproof.tokenizer import Tokenizer

CASCADE_MATCH = 3  # tokens that must match before a cascade trusts them more than its model
MOST_CORPUS = 500_000  # tokens of a corpus that are indexed, about 100 bytes of memory each


def load_engine(job: Job, report: Callable[[str], None]) -> Engine:
    """Load the models that `job` names; `report` is told what takes time.

    Raises SpecproofError if one cannot be loaded, or if target and draft do not go together.
    """
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    text = _read_corpus(job)  # before the models: a bad file is told at once

    def load(name: str) -> tuple[LM, Tokenizer]:
        lm = load_model(
            name,
            dtype=job.dtype,
            device=job.device,
            device_map=job.device_map,
            trust_remote_code=job.trust_remote_code,
            allow_pickle=job.allow_pickle,
        )
        return lm, Tokenizer.load(name, trust_remote_code=job.trust_remote_code)

    target, tokenizer = load(job.target or str(default_model_folder(report)))
    if job.drafter_name is None:
        return Engine(target, None, job.config, tokenizer)
    if job.draft is None:
        drafter = PromptLookup() if job.drafter == "prompt-lookup" else Suffix(_tokens(text, tokenizer, report))
        return Engine(target, drafter, job.config, tokenizer)
    draft, draft_tokenizer = load(job.draft)
    if job.drafter == "cascade":
        cascade = Cascade(Suffix(_tokens(text, tokenizer, report), size=CASCADE_MATCH), draft)
        return Engine(target, cascade, job.config, tokenizer, draft_tokenizer)
    return Engine(target, draft, job.config, tokenizer, draft_tokenizer)


def _read_corpus(job: Job) -> str | None:
    """Raises ConfigError if it is no text."""
    if job.corpus is None:
        return None
    try:
        text = job.corpus.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the corpus {job.corpus}: {error}; name a UTF-8 text file") from error
    if not text.strip():
        raise ConfigError(f"the corpus {job.corpus} has no text; leave --corpus out")
    return text


def _tokens(corpus: str | None, tokenizer: Tokenizer, report: Callable[[str], None]) -> list[list[int]]:
    if corpus is None:
        return []
    tokens = tokenizer.encode(corpus)
    if len(tokens) > MOST_CORPUS:
        report(f"the corpus has {len(tokens)} tokens; the first {MOST_CORPUS} are used")
    return [tokens[:MOST_CORPUS]]


def run_job(job: Job, engine: Engine, source: InputFile, results: FileResults | StreamResults, tally: Tally) -> None:
    """Decode the rows that are not done yet. A row that cannot be served ends as an error; the others go on.

    Raises what `results.add` raises. However this ends, by Ctrl-C too, the rows told to `results` have finished.
    """
    tokenizer = engine.tokenizer
    assert tokenizer is not None, "load_engine gives every engine one"
    clock = RowClock()
    engine.observers.append(clock)
    ids: dict[str, str | int | None] = {}

    def requests() -> Iterator[Request]:
        for row in source.rows():
            if results.is_done(row.index):
                continue
            try:
                request = to_request(row, tokenizer, job.defaults, job.chat)
            except RequestError as error:
                refusal = refusal_of(row, str(error))
                results.add(row.index, refusal)
                tally.add(refusal)
                continue
            ids[str(row.index)] = row.id
            yield request
        clock.start()

    with _settled():
        for output in engine.stream(requests()):
            result = result_of(ids.pop(output.request_id), output, clock.take(output.request_id))
            results.add(int(output.request_id), result)
            tally.add(result)


@contextmanager
def _settled() -> Iterator[None]:
    """What was loaded stays: the garbage collector need not look through it, which takes it a quarter of a second."""
    mine = not gc.get_freeze_count()  # else somebody has done it already
    if mine:
        gc.freeze()
    try:
        yield
    finally:
        if mine:
            gc.unfreeze()
