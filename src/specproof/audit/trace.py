"""Audit a trace of any engine: `audit_traces`. The target judges each row; each divergence becomes a finding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specproof.audit.compare import compare
from specproof.audit.controls import Controls
from specproof.audit.diagnose import Evidence, decide
from specproof.audit.finding import Finding, RowVerdict
from specproof.audit.noise import BATCH, NUM_POSITIONS, Noise, ScoredRow, measure_noise
from specproof.audit.plain import measure_floor
from specproof.audit.score import score_row
from specproof.audit.signature import Signature, find_signature, large_indices
from specproof.audit.structure import check_end, find_loop, judged_length
from specproof.audit.traces import Trace
from specproof.audit.verdict import Verdict
from specproof.errors import InputError
from specproof.lm import LM
from specproof.tokenizer import Tokenizer

TEXT_AROUND = 12  # tokens shown before and after a divergence


def audit_traces(
    lm: LM,
    traces: Sequence[Trace],
    tokenizer: Tokenizer | None = None,
    *,
    reference: Sequence[Trace] | None = None,
    num_draft_tokens: int = 5,
    plain_rows: int = BATCH,
    noise_positions: int = NUM_POSITIONS,
) -> Verdict:
    """Judge every row by one teacher-forced pass of the target, and explain what differs.

    reference: rows of a reference run, matched by id. num_draft_tokens: K of the audited engine, for the controls at
    width K + 1. plain_rows: rows decoded anew for plain against plain, 0 for none: it costs as much as decoding them.
    noise_positions: positions whose noise is sampled.

    Raises InputError for a row that the target cannot read (ids outside its vocabulary, longer than its context).
    """
    audit = _Audit(lm, tokenizer, num_draft_tokens + 1)
    judged = [audit.score(trace) for trace in traces]
    rows = [row.scored for row in judged if row.scored is not None]
    noise = measure_noise(lm, rows, num_draft_tokens + 1, noise_positions) if rows else None
    references = {trace.id: trace for trace in reference or ()}
    verdicts = tuple(audit.verdict(row, rows, judged, noise, references.get(row.trace.id)) for row in judged)
    firm = [row for row in judged if row.scored is not None and not row.trace.from_text][:plain_rows]
    floor = measure_floor(
        lm, [row.trace for row in firm], [row.num_tokens for row in firm], min(BATCH, max(1, len(firm)))
    )
    return Verdict(verdicts, noise, floor, lm.dtype_name, num_draft_tokens)


class _Judged(NamedTuple):
    trace: Trace
    scored: ScoredRow | None  # None for a row that is an error
    num_tokens: int


@dataclass(slots=True)
class _Audit:
    lm: LM
    tokenizer: Tokenizer | None
    width: int
    controls: Controls | None = None

    def ends(self, trace: Trace) -> frozenset[int]:
        own = frozenset(trace.request.stop_token_ids)
        return own if trace.request.ignore_eos else own | self.lm.eos_ids

    def score(self, trace: Trace) -> _Judged:
        if trace.error is not None:
            return _Judged(trace, None, 0)
        _check_row(trace, self.lm)
        length = judged_length(trace.token_ids, self.ends(trace), trace.request.min_new_tokens)
        tokens, prompt = trace.token_ids[:length], trace.prompt_ids
        score = score_row(self.lm, prompt, tokens, self.ends(trace), trace.request.min_new_tokens)
        return _Judged(trace, ScoredRow((*prompt, *tokens), len(prompt), score), length)

    def verdict(
        self, judged: _Judged, rows: Sequence[ScoredRow], all_judged: Sequence[_Judged], noise: Noise | None,
        reference: Trace | None,
    ) -> RowVerdict:  # fmt: skip
        trace, row, length = judged
        if row is None or noise is None:
            return RowVerdict(trace.id, 0, confident=True, error=trace.error)
        threshold = noise.threshold
        end_margin = row.score.end_margin
        filler = frozenset(self.symbols()) | self.lm.eos_ids
        decode = self.tokenizer.decode if self.tokenizer else None
        termination = check_end(
            trace, length, self.ends(trace), filler, self.lm.context,
            end_margin is not None and end_margin <= threshold, decode,
        )  # fmt: skip
        against = None
        if reference is not None:
            ends = self.ends(trace)
            theirs = reference.token_ids
            theirs = theirs[: judged_length(theirs, ends, trace.request.min_new_tokens)]
            ours = row.score.tokens
            same_end = (ours[-1:] == theirs[-1:]) if set(ours[-1:] + theirs[-1:]) & ends else len(ours) == len(theirs)
            against = compare(ours, theirs, row.score.choices, same_end, decode)
        return RowVerdict(
            id=trace.id,
            num_tokens=length,
            confident=not trace.from_text,
            finding=self.finding(row, rows, all_judged, threshold),
            termination=termination,
            symptoms=self.symptoms(row),
            padded=0 if termination else len(trace.token_ids) - length,
            against=against,
        )

    def finding(
        self, row: ScoredRow, rows: Sequence[ScoredRow], all_judged: Sequence[_Judged], noise: float
    ) -> Finding | None:
        """The gravest divergence of the row: its first large margin, else its largest one."""
        score = row.score
        if not score.differing:
            return None
        large = large_indices(score, noise)
        index = large[0] if large else max(score.differing, key=lambda i: (score.margins[i], -i))
        margin = score.margins[index]
        signature: Signature | None = None
        controls: dict[str, float | None] = {}
        if margin != 0:
            self.controls = self.controls or Controls(self.lm, self.width)
            controls = self.controls.run(row, index, rows)
        if large:
            me = next(k for k, other in enumerate(rows) if other is row)
            trace = next(j.trace for j in all_judged if j.scored is row)
            signature = find_signature(self.lm, rows, me, index, noise, self.ends(trace), self.symbols())
        cls, why = decide(Evidence(margin, noise, controls, signature.name if signature else None))
        other = None if signature is None or signature.row is None else rows[signature.row]
        return Finding(
            index=index,
            token=score.tokens[index],
            choice=score.choices[index],
            margin=margin,
            noise=noise,
            cls=cls,
            why=why,
            differing=len(score.differing),
            controls=controls,
            signature=signature.name if signature else None,
            detail=signature.detail if signature else None,
            other_row=next((j.trace.id for j in all_judged if j.scored is other), None) if other else None,
            **self.texts(score.tokens, index, score.choices[index]),
            prefix_ids=row.ids[: row.prompt_len + index],
        )

    def texts(self, tokens: Sequence[int], index: int, choice: int) -> dict[str, str]:
        if self.tokenizer is None:
            return {}
        decode, behind = self.tokenizer.decode, index + 1
        return {
            "token_text": decode([tokens[index]]),
            "choice_text": decode([choice]),
            "before": decode(tokens[max(0, index - TEXT_AROUND) : index]),
            "after": decode(tokens[behind : behind + TEXT_AROUND]),
        }

    def symbols(self) -> dict[int, str]:
        """pad, unk and BOS ids, those that do not end a row."""
        named = {} if self.tokenizer is None else self.tokenizer.named_ids
        pad = getattr(self.lm.model.config.get_text_config(decoder=True), "pad_token_id", None)
        named = {**named, **({} if pad is None else {"pad": pad})}
        return {index: name for name, index in named.items() if index not in self.lm.eos_ids}

    def symptoms(self, row: ScoredRow) -> tuple[str, ...]:
        found = [f"{name} id {token} inside" for token, name in self.symbols().items() if token in row.score.tokens]
        loop = find_loop(row.score.tokens)
        if loop is not None:
            found.append(f"ends in a loop: {loop[0]} tokens {loop[1]} times")
        return tuple(found)


def _check_row(trace: Trace, lm: LM) -> None:
    for name, ids in (
        ("prompt", trace.prompt_ids),
        ("output", trace.token_ids),
        ("stop", trace.request.stop_token_ids),
    ):
        bad = next((token for token in ids if not 0 <= token < lm.vocab_size), None)
        if bad is not None:
            raise InputError(f"row {trace.id}: its {name} has id {bad}; the target has 0 to {lm.vocab_size - 1}")
    length = len(trace.prompt_ids) + len(trace.token_ids)
    if lm.context is not None and length > lm.context:
        raise InputError(f"row {trace.id} has {length} tokens, the target's context holds {lm.context}")
