"""Controls: one divergence put to the target again, in other shapes and in one precision up."""

from collections.abc import Iterator, Sequence

from specproof.audit.group import BATCH
from specproof.audit.noise import ScoredRow
from specproof.audit.score import pair_margin
from specproof.audit.shapes import in_batch, in_blocks, one_precision_up, prefix_alone
from specproof.lm import LM

SPAN = 256  # most tokens of output that are fed in the control's own shape; what lies before is prefilled


class Controls:
    """The dear ones, each with a prefix computed anew; a group's second look gives the cheap ones (see group).

    All of them run where a margin is not large; where it is, none makes it benign, and `run_alone` is evidence enough.

    The wider copy of the model is made when it is first asked for, and kept.
    """

    def __init__(self, lm: LM, width: int) -> None:
        self.lm, self.width = lm, width
        self._wider: LM | None = None

    def run(self, row: ScoredRow, index: int, neighbours: Sequence[ScoredRow]) -> Iterator[tuple[str, float | None]]:
        """Control, and logit of the target's choice minus logit of the candidate's token at output index `index`.

        0 or less: in that shape the target takes the candidate's token. None: the control cannot be run here. The
        likelier and cheaper ones come first, each is run when it is asked for.
        """
        choice, token = row.score.choices[index], row.score.tokens[index]
        last = row.prompt_len - 1 + index  # the position whose logits judge
        start = max(row.prompt_len - 1, last - SPAN + 1)
        count = last - start + 1

        def in_width(width: int) -> float:
            return pair_margin(in_blocks(self.lm, row.ids, start, count, width)[-1], choice, token)

        yield f"width-{self.width}", in_width(self.width)
        yield from self.run_alone(row, index)
        yield "width-1", in_width(1)
        yield "batch-anew", self._in_batch(row, last, min(count, last), choice, token, neighbours)

    def run_alone(self, row: ScoredRow, index: int) -> Iterator[tuple[str, float | None]]:
        """As `run`, the two that take one forward each: the prefix alone, as it is and one precision up."""
        choice, token = row.score.choices[index], row.score.tokens[index]
        last = row.prompt_len - 1 + index
        yield "alone", pair_margin(prefix_alone(self.lm, row.ids[: last + 1]), choice, token)
        yield "precision-up", self._one_up(row, last, choice, token)

    def _in_batch(
        self, row: ScoredRow, last: int, count: int, choice: int, token: int, neighbours: Sequence[ScoredRow]
    ) -> float | None:
        """Among neighbours; where the run has too few, the row's own prefixes sit beside it."""
        if count < 1:
            return None
        others = [other for other in neighbours if other is not row and len(other.ids) > count][: BATCH - 1]
        rows = [row.ids, *(other.ids for other in others)]
        starts = [last + 1 - count, *(min(other.prompt_len, len(other.ids) - count) for other in others)]
        for k in range(BATCH - len(rows)):
            rows.append(row.ids)
            starts.append(max(1, last + 1 - count - k))
        return pair_margin(in_batch(self.lm, rows, starts, count)[0, -1], choice, token)

    def _one_up(self, row: ScoredRow, last: int, choice: int, token: int) -> float | None:
        self._wider = self._wider or one_precision_up(self.lm)
        if self._wider is None:
            return None
        return pair_margin(prefix_alone(self._wider, row.ids[: last + 1]), choice, token)
