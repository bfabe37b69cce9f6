"""From a row that differs to its finding: controls are run, the signature is sought, the decision is made."""

from collections.abc import Sequence

from specproof.audit.controls import Controls
from specproof.audit.diagnose import BENIGN, Evidence, decide
from specproof.audit.finding import Finding, Replay
from specproof.audit.group import JudgedRow
from specproof.audit.noise import last_place
from specproof.audit.signature import find_signature, large_indices
from specproof.lm import LM
from specproof.tokenizer import Tokenizer

TEXT_AROUND = 12  # tokens shown before and after a divergence


class Explainer:
    """symbols: pad, unk and BOS ids, named. width: K + 1 of the audited engine."""

    def __init__(self, lm: LM, tokenizer: Tokenizer | None, width: int, symbols: dict[int, str]) -> None:
        self._lm, self._tokenizer, self._symbols = lm, tokenizer, symbols
        self._controls, self._width = Controls(lm, width), width

    def explain(
        self, judged: Sequence[JudgedRow], names: Sequence[str], me: int, noise: float, end_ids: frozenset[int],
        min_new_tokens: int = 0,
    ) -> Finding | None:  # fmt: skip
        """The gravest divergence of row `me`: its first large margin, else its largest one; None if there is none."""
        rows = [one.row for one in judged]
        row, score = rows[me], rows[me].score
        if not score.differing:
            return None
        large = large_indices(score, noise)
        index = large[0] if large else max(score.differing, key=lambda i: (score.margins[i], -i))
        margin, step = score.margins[index], last_place(self._lm, score.tops[index])
        known = margin and index == judged[me].place  # equal logits need no control
        controls: dict[str, float | None] = dict(judged[me].controls) if known else {}
        signature = find_signature(self._lm, rows, me, index, noise, end_ids, self._symbols) if large else None
        other = None if signature is None or signature.row is None else rows[signature.row]
        cls, why = decide(Evidence(margin, noise, controls, signature and signature.name, step))
        if cls not in BENIGN:  # only then are the dear controls worth their price
            controls |= self._controls.run(row, index, rows)
            cls, why = decide(Evidence(margin, noise, controls, signature and signature.name, step))
        return Finding(
            index=index,
            token=score.tokens[index],
            choice=score.choices[index],
            margin=margin,
            noise=noise,
            cls=cls,
            why=why,
            differing=len(score.differing),
            first=score.differing[0],
            step=step,
            controls=controls,
            signature=signature and signature.name,
            detail=signature and signature.detail,
            other_row=None if signature is None or signature.row is None else names[signature.row],
            **self._texts(score.tokens, index, score.choices[index]),
            prefix_ids=row.ids[: row.prompt_len + index],
            replay=Replay(
                dtype=self._lm.dtype_name,
                width=self._width,
                rest=score.tokens[index:],
                end_ids=tuple(sorted(end_ids)),
                min_new_tokens=min_new_tokens,
                other_ids=None if other is None else other.ids[: other.prompt_len + index],
            ),
        )

    def _texts(self, tokens: Sequence[int], index: int, choice: int) -> dict[str, str]:
        if self._tokenizer is None:
            return {}
        decode, behind = self._tokenizer.decode, index + 1
        return {
            "token_text": decode([tokens[index]]),
            "choice_text": decode([choice]),
            "before": decode(tokens[max(0, index - TEXT_AROUND) : index]),
            "after": decode(tokens[behind : behind + TEXT_AROUND]),
        }
