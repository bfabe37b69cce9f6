"""What the probes of this folder share: the row alone as the judge, forced acceptance, and a toy tokenizer."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from families import VOCAB
from helpers import target

from specproof import EngineConfig, Request
from specproof.drafters import DraftRow, Scripted
from specproof.lm import LM
from specproof.reference import Reference, decode_reference

SPECULATIVE = ("specproof", "eqspec", "exspec", "rollback")
PER_ROW = ("specproof", "eqspec", "exspec")  # each row keeps all that it accepts


def prompt(length: int, seed: int = 0) -> list[int]:
    """Ids that look random and do not depend on the library's generator."""
    return [(17 * seed + 7 * i * i + 13 * i + 3) % (VOCAB - 1) + 1 for i in range(length)]


def rows(lengths: Iterable[int], limit: int = 16, **options) -> list[Request]:
    return [
        Request(prompt(n, seed), max_new_tokens=limit, request_id=f"row{seed}", **options)
        for seed, n in enumerate(lengths)
    ]


def config(method: str, **options) -> EngineConfig:
    return EngineConfig(method=method, **{"batch_size": 4, "window": 8, "prefill_chunk": 9, **options})


def solo(lm: LM, requests: Sequence[Request], decode: Callable[[Sequence[int]], str] | None = None) -> list[Reference]:
    """Each row alone, one token at a time. The rows must differ, and the longest must vary in itself."""
    found = [decode_reference(lm, request, decode) for request in requests]
    longest = max((reference.token_ids for reference in found), key=len)
    assert len(longest) < 6 or len(set(longest)) > 2, f"a reference repeats itself: {longest}"
    firsts = {reference.token_ids for reference in found}
    assert len({tuple(request.prompt_ids) for request in requests}) == 1 or len(firsts) > 1, "all references are equal"
    return found


@cache
def free_run(prompt_ids: tuple[int, ...], length: int = 40) -> tuple[int, ...]:
    """What the tiny Llama gives if nothing stops it. The probes place their stops on it."""
    ids = decode_reference(target("llama"), Request(list(prompt_ids), max_new_tokens=length)).token_ids
    assert len(set(ids)) >= length // 4, f"the run repeats itself: {ids}"
    return ids


def right(count: int | Callable[[DraftRow], int], wrong: bool = True) -> Scripted:
    """Drafts the tiny Llama's own next `count` tokens, past any stop; then wrong ones up to K, if `wrong`.

    Works for rows whose prompt is named in `request_id` as "row<seed>" by `rows`, with free runs of 40 tokens.
    """

    def script(row: DraftRow, max_tokens: int) -> list[int]:
        n = count if isinstance(count, int) else count(row)
        ahead = list(_next(row.token_ids, max_tokens))
        drafts = [token if j < n else (token + 1) % VOCAB for j, token in enumerate(ahead)]
        return drafts if wrong else drafts[:n]

    return Scripted(script)


@cache
def _next(ids: tuple[int, ...], length: int) -> tuple[int, ...]:
    return decode_reference(target("llama"), Request(list(ids), max_new_tokens=length)).token_ids


@dataclass(frozen=True)
class Toy:
    """A tokenizer for ids 0 .. VOCAB - 1: each has its own bytes. Enough of one for the engine."""

    pieces: dict[int, bytes]
    bos_id: int | None = None

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self.pieces[token] for token in ids).decode("utf-8", errors="replace")

    def having(self, pieces: dict[int, bytes]) -> "Toy":
        return replace(self, pieces={**self.pieces, **pieces})


# Two letters each: no piece occurs in another, so that a text shows which tokens it came from.
TOY = Toy({token: bytes([97 + token // 26, 65 + token % 26]) for token in range(VOCAB)})


def with_eos(lm: LM, eos: Iterable[int]) -> LM:
    """The same model with other EOS ids."""
    other = LM(lm.model)
    other.eos_ids, other.checked = frozenset(eos), lm.checked
    return other
