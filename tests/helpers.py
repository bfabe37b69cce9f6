"""What several test files share: a ragged batch, its reference, drafters of known quality, and the comparison."""

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import cache

import torch
from families import VOCAB, tiny_lm

from specproof import Engine, EngineConfig, Output, Request
from specproof.drafters import DraftRow, PromptLookup, Scripted
from specproof.lm import LM
from specproof.reference import Reference, decode_reference
from specproof.step import StepRecord

CHUNK = 8  # prefill chunk: shorter than two of the prompts
# (prompt, limit): one token, longer than a chunk and every window, ordinary, two repetitive, ending at once.
RAGGED = (
    ([5], 16),
    ([(7 * i + 3) % VOCAB for i in range(23)], 9),
    ([9, 8, 7], 21),
    ([4, 5, 6, 4, 5, 6, 4, 5, 6, 4, 5], 12),
    ([30, 30, 30, 30], 15),
    ([2, 1], 1),
)
REQUESTS = tuple(
    Request(prompt, max_new_tokens=limit, request_id=f"row{i}") for i, (prompt, limit) in enumerate(RAGGED)
)


@cache
def target(family: str) -> LM:
    return tiny_lm(family, seed=1)


@cache
def smaller_draft() -> LM:
    """One layer, another family than most, another seed: nearly nothing it drafts is right."""
    return tiny_lm("llama", seed=0, num_hidden_layers=1)


@cache
def noisy_copy(family: str) -> LM:
    """The target with noise on its weights: right often, but not always, so that a batch gets ragged."""
    model = copy.deepcopy(target(family).model)
    torch.manual_seed(2)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data += 0.1 * parameter.data.std() * torch.randn_like(parameter)
    return LM(model)


@cache
def references(family: str) -> tuple[Reference, ...]:
    """What the target alone gives for REQUESTS."""
    return vary([decode_reference(target(family), request) for request in REQUESTS])


def vary(found: Iterable[Reference]) -> tuple[Reference, ...]:
    """The references, if their tokens vary: a model that repeats one token would make any comparison pass."""
    found = tuple(found)
    for reference in found:
        ids = reference.token_ids
        assert len(ids) < 9 or len(set(ids)) > 1, f"a reference repeats one token: {ids}"
    different = {token for reference in found for token in reference.token_ids}
    assert len(different) >= 12, f"the references hold only {len(different)} different tokens"
    return found


def scripted(requests: Sequence[Request], truth: Sequence[Reference], right: Callable[[DraftRow], int]) -> Scripted:
    """Drafts as many as it may; the first `right(row)` of them are what the target will choose, the rest is not."""
    known = {
        request.request_id: (len(request.prompt_ids), ref.token_ids)
        for request, ref in zip(requests, truth, strict=True)
    }

    def script(row: DraftRow, max_tokens: int) -> list[int]:
        prompt_len, ids = known[row.request_id]
        at = len(row.token_ids) - prompt_len
        return [token if j < right(row) else (token + 1) % VOCAB for j, token in enumerate(ids[at : at + max_tokens])]

    return Scripted(script)


def uneven(row: DraftRow) -> int:
    """0 to 4 right drafts, different from row to row and from step to step."""
    return (3 * len(row.token_ids) + int(row.request_id.removeprefix("row"))) % 5


def drafter(name: str, family: str) -> object:
    """One of DRAFTERS for a tiny target."""
    match name:
        case "none":
            return None
        case "prompt-lookup":
            return PromptLookup()
        case "smaller-draft":
            return smaller_draft()
        case "noisy-copy":
            return noisy_copy(family)
        case "target-itself":
            return target(family)
        case "scripted":
            return scripted(REQUESTS, references(family), uneven)
    raise ValueError(name)


DRAFTERS = ("none", "prompt-lookup", "smaller-draft", "noisy-copy", "target-itself", "scripted")


def decode(
    lm: LM, drafts: object, config: EngineConfig, requests: Sequence[Request]
) -> tuple[list[Output], list[StepRecord], Engine]:
    """Outputs, the record of every step, and the engine."""
    engine = Engine(lm, drafts, config)  # type: ignore[arg-type]
    records: list[StepRecord] = []
    engine.observers.append(records.append)
    return engine.generate(requests), records, engine


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """Index of the first difference, the shorter's length if one ends early, None if they are equal."""
    if tuple(ours) == tuple(theirs):
        return None
    return next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))


def assert_equal(outputs: Sequence[Output], truth: Sequence[Reference], where: object) -> None:
    """Every row is its reference, ids and ending; where: what decoded it, for the message."""
    assert len(outputs) == len(truth)
    for output, reference in zip(outputs, truth, strict=True):
        at = first_difference(output.token_ids, reference.token_ids)
        assert at is None, describe(output, reference, at, where)
        ours, theirs = (output.finish_reason, output.stop), (reference.finish_reason, reference.stop)
        assert ours == theirs, f"{output.request_id} ended by {ours}, not {theirs}; {where}"
        if output.text is not None and reference.text is not None:
            assert output.text == reference.text, (
                f"{output.request_id}: {output.text!r}, not {reference.text!r}; {where}"
            )


def describe(output: Output, reference: Reference, at: int, where: object) -> str:
    """The first difference of a row in words: token, margin, and what decoded it."""
    ours, theirs = (ids[at] if at < len(ids) else "nothing" for ids in (output.token_ids, reference.token_ids))
    margin = f"{reference.margins[at]:.3g}" if at < len(reference.margins) else "none"
    return (
        f"{output.request_id} ({output.prompt_len} prompt tokens) token {at}: {ours}, the reference has {theirs} "
        f"with margin {margin}; {where}"
    )


def ragged_steps(records: Iterable[StepRecord]) -> int:
    """Steps in which rows kept different numbers of drafts."""
    return sum(len({row.num_accepted for row in record.rows}) > 1 for record in records)
