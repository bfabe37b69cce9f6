"""Audit a trace of any engine: the target judges each row, and each divergence becomes a finding."""

from collections.abc import Sequence

from specproof.audit.explain import Explainer
from specproof.audit.finding import RowVerdict
from specproof.audit.group import BATCH, JudgedRow, judge_again
from specproof.audit.judge import Judge
from specproof.audit.noise import Noise, noise_of
from specproof.audit.plain import measure_floor
from specproof.audit.trace_row import Trace
from specproof.audit.verdict import Verdict
from specproof.kv.transformers_cache import growing_cache
from specproof.lm import LM
from specproof.tokenizer import Tokenizer


def audit_traces(
    lm: LM,
    traces: Sequence[Trace],
    tokenizer: Tokenizer | None = None,
    *,
    reference: Sequence[Trace] | None = None,
    num_draft_tokens: int = 5,
    plain_rows: int = BATCH,
) -> Verdict:
    """Judge every row by one teacher-forced pass of the target, and explain what differs.

    reference: rows of a reference run, matched by id. num_draft_tokens: K of the audited engine, for the controls at
    width K + 1. plain_rows: rows decoded anew for plain against plain, 0 for none: it costs as much as decoding them.

    Raises InputError for a row that the target cannot read (ids outside its vocabulary, longer than its context).
    """
    judge = Judge(lm, tokenizer)
    judged = [trace for trace in traces if trace.error is None]
    width, names = num_draft_tokens + 1, [trace.id for trace in judged]
    rows, noise = _judge(judge, judged, width)
    threshold = noise.threshold if noise else 0.0
    explainer = Explainer(judge, rows, names, threshold, width)
    references = {trace.id: trace for trace in reference or () if trace.error is None}
    verdicts = []
    for k, (trace, row) in enumerate(zip(judged, rows, strict=True)):
        termination, theirs = judge.check_end(trace, row.row, threshold), references.get(trace.id)
        verdicts.append(
            RowVerdict(
                id=trace.id,
                num_tokens=len(row.row.score.tokens),
                confident=not trace.from_text,
                finding=explainer.explain(k, trace),
                termination=termination,
                symptoms=judge.symptoms(row.row),
                padded=0 if termination else len(trace.token_ids) - len(row.row.score.tokens),
                against=None if theirs is None else judge.compare(trace, row.row, theirs),
            )
        )
    firm = [k for k, trace in enumerate(judged) if not trace.from_text][:plain_rows]
    floor = measure_floor(lm, [judged[k] for k in firm], [len(rows[k].row.score.tokens) for k in firm], BATCH)
    in_turn = iter(verdicts)
    told = (RowVerdict(t.id, 0, True, error=t.error) if t.error is not None else next(in_turn) for t in traces)
    return Verdict(tuple(told), noise, floor, lm.dtype_name, num_draft_tokens)


def _judge(judge: Judge, traces: Sequence[Trace], width: int) -> tuple[list[JudgedRow], Noise | None]:
    """All rows, a group at a time, and the noise that their groups have sampled; None without rows."""
    rows: list[JudgedRow] = []
    samples: dict[str, tuple[float, ...]] = {}
    for at in range(0, len(traces), BATCH):
        states = [growing_cache() for _ in traces[at : at + BATCH]]
        scored = [judge.score(trace, state) for trace, state in zip(traces[at : at + BATCH], states, strict=True)]
        group, found = judge_again(judge.lm, scored, states, at, width)
        rows += group
        samples |= {name: (*samples.get(name, ()), *moves) for name, moves in found.items()}
    return rows, noise_of(judge.lm, [one.row for one in rows], samples) if rows else None
