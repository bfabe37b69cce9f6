"""A saved finding put to the target again, with every control: does it come out as it did?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specproof.audit.controls import Controls
from specproof.audit.diagnose import BENIGN, Evidence, decide, is_large
from specproof.audit.judge import Judge
from specproof.audit.noise import ScoredRow, last_place
from specproof.audit.saved import SavedFinding
from specproof.audit.signature import Signature, find_signature
from specproof.audit.trace_row import UNSTATED, Trace
from specproof.lm import LM
from specproof.request import Request
from specproof.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Replayed:
    """saved: what was found then. The rest: what is found now; see Finding. Units: logits.

    choice: the target's in the judging pass; where that is the candidate's own token the class is `exact`.
    """

    saved: SavedFinding
    choice: int
    margin: float
    step: float
    controls: Mapping[str, float | None]
    signature: Signature | None
    cls: str
    why: str
    token_text: str | None
    choice_text: str | None

    @property
    def reproduced(self) -> bool:
        """Whether the target makes the same choice, and the difference is of the same class, or still a benign one."""
        same = self.cls == self.saved.cls or {self.cls, self.saved.cls} <= BENIGN - {"exact"}
        return self.choice == self.saved.choice and same

    @property
    def benign(self) -> bool:
        return self.cls in BENIGN

    def to_dict(self) -> dict[str, Any]:
        saved = self.saved
        return {
            "id": saved.id,
            "reproduced": self.reproduced,
            "index": saved.index,
            "token": saved.token,
            "token_text": self.token_text,
            "choice": self.choice,
            "choice_text": self.choice_text,
            "margin": self.margin,
            "noise": saved.noise,
            "step": self.step,
            "controls": dict(self.controls),
            "signature": self.signature and self.signature.name,
            "detail": self.signature and self.signature.detail,
            "class": self.cls,
            "why": self.why,
            "saved": {"choice": saved.choice, "margin": saved.margin, "class": saved.cls, "dtype": saved.replay.dtype},
        }


def replay_finding(lm: LM, tokenizer: Tokenizer | None, saved: SavedFinding) -> Replayed:
    """Score the row again, run every control, decide anew.

    The noise is the saved one: it was measured on the whole run. The row's neighbours in the batch control are its own
    prefixes, since the run's other rows are not at hand.

    Raises InputError for ids that the target does not have.
    """
    judge, index, kept = Judge(lm, tokenizer), saved.index, saved.replay
    output = (*saved.prefix_ids[len(saved.prefix_ids) - index :], *kept.rest)
    trace = _trace(saved, saved.prefix_ids[: len(saved.prefix_ids) - index], output)
    row = judge.score(trace)
    rows = [row]
    if kept.other_ids is not None:
        at = len(kept.other_ids) - index
        rows.append(judge.score(_trace(saved, kept.other_ids[:at], kept.other_ids[at:])))
    score = row.score
    margin, step = score.margins[index], last_place(lm, score.tops[index])
    controls = dict(Controls(lm, kept.width).run(row, index, [row]))
    signature = _signature(judge, rows, saved, trace) if is_large(margin, saved.noise) else None
    if score.choices[index] == saved.token:
        cls, why = "exact", "the target now takes the candidate's token"
    else:
        cls, why = decide(Evidence(margin, saved.noise, controls, signature and signature.name, step))
    decode = tokenizer.decode if tokenizer else None
    return Replayed(
        saved=saved,
        choice=score.choices[index],
        margin=margin,
        step=step,
        controls=controls,
        signature=signature,
        cls=cls,
        why=why,
        token_text=decode and decode([saved.token]),
        choice_text=decode and decode([score.choices[index]]),
    )


def _signature(judge: Judge, rows: Sequence[ScoredRow], saved: SavedFinding, trace: Trace) -> Signature:
    return find_signature(judge.lm, rows, 0, saved.index, saved.noise, judge.ends(trace), judge.symbols)


def _trace(saved: SavedFinding, prompt: Sequence[int], output: Sequence[int]) -> Trace:
    """A row under the rules of the saved one: exactly its ending ids end it."""
    request = Request(
        tuple(prompt),
        max_new_tokens=UNSTATED,
        min_new_tokens=saved.replay.min_new_tokens,
        stop_token_ids=saved.replay.end_ids,
        ignore_eos=True,
    )
    return Trace(0, saved.id, request, tuple(output), limit_known=False)
