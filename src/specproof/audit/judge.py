"""One row of a trace before the target: cut at its own stop, scored, its end checked, compared with its reference."""

from collections.abc import Sequence
from dataclasses import dataclass

from specproof.audit.compare import compare
from specproof.audit.finding import Against
from specproof.audit.noise import ScoredRow
from specproof.audit.score import score_row
from specproof.audit.structure import Termination, check_end, find_loop, judged_length
from specproof.audit.trace_row import Trace
from specproof.errors import InputError
from specproof.jobs.checks import brief
from specproof.lm import LM
from specproof.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Judge:
    """The target, and the tokenizer if there is one."""

    lm: LM
    tokenizer: Tokenizer | None

    @property
    def symbols(self) -> dict[int, str]:
        """pad, unk and BOS ids, named; those that do not end a row."""
        named = {} if self.tokenizer is None else self.tokenizer.named_ids
        pad = getattr(self.lm.model.config.get_text_config(decoder=True), "pad_token_id", None)
        named = {**named, **({} if pad is None else {"pad": pad})}
        return {index: name for name, index in named.items() if index not in self.lm.eos_ids}

    def ends(self, trace: Trace) -> frozenset[int]:
        """The ids that end this row."""
        own = frozenset(trace.request.stop_token_ids)
        return own if trace.request.ignore_eos else own | self.lm.eos_ids

    def cut(self, trace: Trace, tokens: Sequence[int]) -> tuple[int, ...]:
        """`tokens` up to the row's own first stop, which is included."""
        return tuple(tokens[: judged_length(tokens, self.ends(trace), trace.request.min_new_tokens)])

    def score(self, trace: Trace, state: object = None) -> ScoredRow:
        """state: an empty cache that is to hold the row's KV.

        Raises InputError for a row that the target cannot read.
        """
        self._check(trace)
        tokens, prompt = self.cut(trace, trace.token_ids), trace.prompt_ids
        score = score_row(self.lm, prompt, tokens, self.ends(trace), trace.request.min_new_tokens, state)
        return ScoredRow((*prompt, *tokens), len(prompt), score)

    def check_end(self, trace: Trace, row: ScoredRow, noise: float) -> Termination | None:
        """What is wrong with its end, if anything. A stop within the noise of the target's choice is right."""
        wants_end = row.score.end_margin is not None and row.score.end_margin <= noise
        # Engines pad a finished row of a batch with one special id or another.
        filler = self.lm.eos_ids | set(self.symbols) | (self.tokenizer.special_ids if self.tokenizer else set())
        return check_end(
            trace, len(row.score.tokens), self.ends(trace), filler, self.lm.context, wants_end,
            self.tokenizer.decode if self.tokenizer else None,
        )  # fmt: skip

    def compare(self, trace: Trace, row: ScoredRow, reference: Trace) -> Against:
        """Beside its reference, both cut at their own stop."""
        ours, theirs, ends = row.score.tokens, self.cut(trace, reference.token_ids), self.ends(trace)
        stops = set(ours[-1:] + theirs[-1:]) & ends
        same_end = ours[-1:] == theirs[-1:] if stops else len(ours) == len(theirs)
        return compare(ours, theirs, row.score.choices, same_end, self.tokenizer.decode if self.tokenizer else None)

    def symptoms(self, row: ScoredRow) -> tuple[str, ...]:
        """What the text shows, whoever chose it."""
        found = [f"{name} id {token} inside" for token, name in self.symbols.items() if token in row.score.tokens]
        loop = find_loop(row.score.tokens)
        if loop is not None:
            found.append(f"ends in a loop: {loop[0]} tokens {loop[1]} times")
        return tuple(found)

    def _check(self, trace: Trace) -> None:
        top = self.lm.vocab_size - 1
        named = {"prompt": trace.prompt_ids, "output": trace.token_ids, "stop": trace.request.stop_token_ids}
        for name, ids in named.items():
            bad = next((token for token in ids if not 0 <= token <= top), None)
            if bad is not None:
                raise InputError(f"row {trace.id}: its {name} has id {brief(bad)}; the target has 0 to {top}")
        length = len(trace.prompt_ids) + len(trace.token_ids)
        if self.lm.context is not None and length > self.lm.context:
            raise InputError(f"row {trace.id} has {length} tokens, the target's context holds {self.lm.context}")
