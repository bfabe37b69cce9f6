"""From a row that differs to its finding: controls are run, the signature is sought, the decision is made."""

from collections.abc import Sequence

from specproof.audit.controls import Controls
from specproof.audit.diagnose import BENIGN, VARIANCE, Evidence, decide
from specproof.audit.finding import Finding, Replay
from specproof.audit.group import JudgedRow
from specproof.audit.judge import Judge
from specproof.audit.noise import last_place
from specproof.audit.signature import find_signature, large_indices
from specproof.audit.trace_row import Trace

TEXT_AROUND = 12  # tokens shown before and after a divergence


class Explainer:
    """Of one run. judged, names: its rows. noise: its threshold, in logits. width: K + 1 of the audited engine."""

    def __init__(
        self, judge: Judge, judged: Sequence[JudgedRow], names: Sequence[str], noise: float, width: int
    ) -> None:
        self._judge, self._judged, self._names, self._noise, self._width = judge, judged, names, noise, width
        self._rows = [one.row for one in judged]
        self._controls, self._symbols = Controls(judge.lm, width), judge.symbols

    def explain(self, me: int, trace: Trace) -> Finding | None:
        """The gravest divergence of row `me`: its first large margin, else its largest one; None if there is none."""
        lm, noise, end_ids = self._judge.lm, self._noise, self._judge.ends(trace)
        row, score = self._rows[me], self._rows[me].score
        differing, large = score.differing, large_indices(score, noise)
        place = self._judged[me].place  # of the largest, if there is any
        if not differing or place is None:
            return None
        index = large[0] if large else place
        margin, step = score.margins[index], last_place(lm, score.tops[index])
        # Equal logits need no control.
        controls: dict[str, float | None] = dict(self._judged[me].controls) if margin and index == place else {}
        signature = find_signature(lm, self._rows, me, index, noise, end_ids, self._symbols) if large else None

        def decided() -> tuple[str, str]:
            return decide(Evidence(margin, noise, controls, signature and signature.name, step))

        cls, why = decided()
        if cls not in BENIGN:  # only then are the dear controls worth their price, and only until one of them flips
            more = self._controls.run_alone(row, index) if large else self._controls.run(row, index, self._rows)
            for name, found in more:
                controls[name] = found
                cls, why = decided()
                if cls in VARIANCE:
                    break
        return Finding(
            index=index,
            token=score.tokens[index],
            choice=score.choices[index],
            margin=margin,
            noise=noise,
            cls=cls,
            why=why,
            differing=len(differing),
            first=differing[0],
            step=step,
            controls=controls,
            signature=signature and signature.name,
            detail=signature and signature.detail,
            other_row=None if signature is None or signature.row is None else self._names[signature.row],
            **self._texts(score.tokens, index, score.choices[index]),
            prefix_ids=row.ids[: row.prompt_len + index],
            replay=Replay(
                dtype=lm.dtype_name,
                width=self._width,
                rest=score.tokens[index:],
                end_ids=tuple(sorted(end_ids)),
                min_new_tokens=trace.request.min_new_tokens,
                other_ids=signature and signature.prefix,
            ),
        )

    def _texts(self, tokens: Sequence[int], index: int, choice: int) -> dict[str, str]:
        if self._judge.tokenizer is None:
            return {}
        decode, behind = self._judge.tokenizer.decode, index + 1
        return {
            "token_text": decode([tokens[index]]),
            "choice_text": decode([choice]),
            "before": decode(tokens[max(0, index - TEXT_AROUND) : index]),
            "after": decode(tokens[behind : behind + TEXT_AROUND]),
        }
