"""From evidence to a class: one pure function, held to a table of cases in its test.

A large margin is never called rounding. What no rule explains is `unexplained`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

PLAIN_BATCH = frozenset({"batch", "batch-anew"})  # controls that feed one token of each of several rows
LARGE = 4  # times the measured noise: beyond it no control can make a divergence benign
VARIANCE = frozenset({"width-variance", "batch-variance"})  # the target itself takes the token in another shape
BENIGN = frozenset({"exact", "tie", "near-tie", "width-variance", "batch-variance"})
CLASSES = (
    "exact", "tie", "near-tie", "width-variance", "batch-variance", "foreign-row", "accept-rule", "lost-sync",
    "termination", "text-symptom", "unexplained",
)  # fmt: skip
# What the structure of a row with a large margin says -> class.
SIGNATURES = {
    "foreign": ("foreign-row", "from here on it is what the target gives for another row"),
    "stop": ("termination", "the target stops here and the row does not, or the other way round, by a large margin"),
    "symbol": ("text-symptom", "a padding, unknown or BOS id inside, which the target does not choose"),
    "close": (
        "unexplained",
        "every wrong choice is a close one: arithmetic other than the target's (a lower precision?), or unchecked "
        "tokens of a draft much like it",
    ),
    "token-changed": (
        "accept-rule",
        "with the target's token here the rest is the target's: what was committed changed",
    ),
    "token-missing": ("accept-rule", "with the target's token put in here the rest is the target's: one was dropped"),
    "token-extra": ("accept-rule", "without this token the rest is the target's: one too many was committed"),
    "unchecked": ("accept-rule", "a token that the target does not choose, and after it all is the target's choice"),
    "last": (
        "accept-rule",
        "the last token is not the target's choice; nothing follows it, so that the cause cannot be told",
    ),
    "loop": ("text-symptom", "the row leaves the target's choices and ends in a loop"),
    "many": ("lost-sync", "several tokens by large margins: positions, mask or KV are not those of this row's tokens"),
    "few": (
        "lost-sync",
        "several tokens by large margins; so few are left that another row's tokens cannot be ruled out",
    ),
}


@dataclass(frozen=True, slots=True)
class Evidence:
    """Of one divergence. Units: logits.

    margin: logit of the target's choice minus that of the candidate's token. noise: the measured threshold.
    controls: see judge_again and Controls.run; empty where none were needed. signature: a key of SIGNATURES; None
    where the margin is not large. step: one unit in the last place of the choice's logit.
    """

    margin: float
    noise: float
    controls: Mapping[str, float | None]
    signature: str | None = None
    step: float = 0.0

    @property
    def spread(self) -> float:
        """The most that the margin moves at this very place, from shape to shape and one precision up."""
        return max((abs(margin - self.margin) for margin in self.controls.values() if margin is not None), default=0.0)

    @property
    def is_large(self) -> bool:
        return is_large(self.margin, self.noise)

    @property
    def flips(self) -> tuple[str, ...]:
        """Controls in which the target itself takes the candidate's token."""
        return tuple(name for name, margin in self.controls.items() if margin is not None and margin <= 0)


def is_large(margin: float, noise: float) -> bool:
    """Whether a margin is out of reach of rounding as measured."""
    return margin > LARGE * noise


def decide(evidence: Evidence) -> tuple[str, str]:
    """(class, why). Cheapest evidence first."""
    if evidence.margin == 0:
        return "tie", "both tokens have the same logit; the target takes the first"
    if evidence.is_large:
        if evidence.signature is None:
            return "unexplained", f"the margin is more than {LARGE} times the noise, and nothing explains it"
        return SIGNATURES[evidence.signature]
    flips = evidence.flips
    if not PLAIN_BATCH.isdisjoint(flips):
        return "batch-variance", "decoding plainly in a batch, the target takes the candidate's token"
    shapes = [name for name in flips if name != "precision-up"]
    if shapes:
        return (
            "width-variance",
            f"without a draft the target takes the candidate's token in another shape ({', '.join(shapes)})",
        )
    if evidence.margin <= evidence.noise and evidence.margin <= max(evidence.step, LARGE * evidence.spread):
        return "near-tie", "the margin is not above the measured noise, and it moves at this place too"
    if "precision-up" in flips:
        return "near-tie", "computed one precision up the target takes the candidate's token: this dtype rounds it away"
    if evidence.margin <= evidence.noise:
        return "unexplained", f"the margin is more than {LARGE} times what it moves by at this place, in any control"
    return "unexplained", "the margin is above the measured noise, and no control gives the candidate's token"
