"""What an audit of a trace says about one row."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from specproof.audit.diagnose import BENIGN
from specproof.audit.structure import Termination

STATUSES = ("exact", "benign", "faulty", "unexplained", "unjudged")


@dataclass(frozen=True, slots=True)
class Replay:
    """What it takes, beside prefix_ids, to find a finding again (`specproof audit explain`).

    dtype: the target's. width: K + 1. rest: the row's tokens from the divergence on. end_ids: those that end the row,
    not before min_new_tokens. other_ids: of a foreign row, its prompt and as much output as the row has before index.
    """

    dtype: str
    width: int
    rest: tuple[int, ...]
    end_ids: tuple[int, ...]
    min_new_tokens: int = 0
    other_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A divergence explained: the row's gravest one. index: of the output token, from 0. Units: logits.

    token, choice: the candidate's and the target's. before, after: the text around, None without a tokenizer.
    margin: logit of choice minus logit of token. step: a unit in the last place of the choice's logit.
    controls: the same margin in other shapes and one precision up.
    differing, first: how many of the row's tokens are not the target's choice, and the index of the first.
    prefix_ids: prompt and output before `index`: feed them, and the target chooses again.
    """

    index: int
    token: int
    choice: int
    margin: float
    noise: float
    cls: str
    why: str
    differing: int
    first: int
    step: float
    controls: Mapping[str, float | None] = field(default_factory=dict)
    signature: str | None = None
    detail: str | None = None
    other_row: str | None = None
    token_text: str | None = None
    choice_text: str | None = None
    before: str | None = None
    after: str | None = None
    prefix_ids: tuple[int, ...] = ()
    replay: Replay | None = None

    def to_dict(self) -> dict[str, Any]:
        return {"class": self.cls, **{key: value for key, value in asdict(self).items() if key != "cls"}}


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """id: the row's. num_tokens: those judged. confident: False for a row made from text: it is `unjudged`, whatever
    its finding. finding: None where every token is the target's choice. termination: None where the end is right.
    against: the comparison with the reference, if there is one. symptoms: what the text shows, named even where the
    target itself chose it."""

    id: str
    num_tokens: int
    confident: bool
    finding: Finding | None = None
    termination: Termination | None = None
    symptoms: tuple[str, ...] = ()
    padded: int = 0
    error: str | None = None
    against: "Against | None" = None

    @property
    def cls(self) -> str:
        """The row's class: its finding's, unless that is benign and the end is wrong."""
        if self.finding is not None and (self.finding.cls not in BENIGN or self.termination is None):
            return self.finding.cls
        return "exact" if self.termination is None else "termination"

    @property
    def status(self) -> str:
        """One of STATUSES."""
        if not self.confident or self.error is not None:
            return "unjudged"
        if self.cls in ("exact", "unexplained"):
            return self.cls
        return "benign" if self.cls in BENIGN else "faulty"

    def summary(self) -> dict[str, Any]:
        """What every row has."""
        return {
            "id": self.id,
            "status": self.status,
            "class": self.cls if self.error is None else None,
            "tokens": self.num_tokens,
            "reference": asdict(self.against) if self.against else None,
        }

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.summary(),
            "confidence": "firm" if self.confident else "low",
            "finding": self.finding.to_dict() if self.finding else None,
            "termination": asdict(self.termination) if self.termination else None,
            "symptoms": list(self.symptoms),
            "padding_after_stop": self.padded,
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class Against:
    """A row beside its reference, both cut at their own stop.

    first: first differing index, None if equal. matched, length: tokens before it, tokens of the reference.
    target_takes: whose token there the target chooses: candidate, reference, neither; None if equal or one ends.
    rouge_l: F-measure of ROUGE-L on the texts (on ids as words where there is no tokenizer).
    """

    exact: bool
    first: int | None
    matched: int
    length: int
    target_takes: str | None
    rouge_l: float
    same_end: bool
