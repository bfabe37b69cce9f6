"""What a step made final, against what the target chose: I5, I6 and conservation, from logits and records alone."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from specproof.audit.truth import Decode, TrueRow
from specproof.kv.layout import Feed
from specproof.request import Output
from specproof.step import RowStep, StepRecord

# Margins up to which a self-draft may lose to rounding, in standard deviations of the logits.
SELF_DRAFT_MARGIN = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.05}

Report = Callable[[str, str, object, object, str], None]


class StepAudit:
    """Checks commitment, termination, conserved, and that a self-draft is accepted always.

    commit_rule: the engine's, by name: "per-row" or "batch-min". self_draft: target and draft are one model.
    """

    def __init__(
        self, rows: dict[str, TrueRow], commit_rule: str, self_draft: bool, decode: Decode | None, report: Report
    ) -> None:
        self._rows, self._report, self._decode = rows, report, decode
        self._batch_min = commit_rule == "batch-min"
        self._self_draft = self_draft
        self._choices: dict[str, list[int]] = {}  # row -> the target's choices in this step
        self._drafts: dict[str, list[int]] = {}
        self._running: set[str] = set()

    def target_chose(self, feeds: Sequence[Feed], logits: Tensor) -> None:
        """logits: (sum of num_logits, V) in feed order."""
        at = 0
        for feed in feeds:
            if feed.num_logits:
                row = self._rows[feed.row]
                scores = logits[at : at + feed.num_logits]
                self._choices[feed.row] = first_best(scores, row)
                self._drafts[feed.row] = list(row.ahead["target"])
                if self._self_draft:
                    self._check_self_draft(feed.row, scores)
                at += feed.num_logits

    def check(self, record: StepRecord) -> None:
        accepted = {name: _agreeing(self._drafts[name], choices) for name, choices in self._choices.items()}
        least = min(accepted.values(), default=0)
        if {step.request_id for step in record.rows} != set(self._choices):
            self._report(
                "conserved", "all", sorted(self._choices), [s.request_id for s in record.rows], "rows of the step"
            )
        for name in record.admitted:
            if name in self._running or self._rows[name].finished:
                self._report("conserved", name, "waiting", "running or finished", "a row entered twice")
            self._running.add(name)
        ended = {output.request_id: output for output in record.finished}
        for step in record.rows:
            if step.request_id in accepted:
                kept = least if self._batch_min else accepted[step.request_id]
                self._check_row(step, kept, ended.get(step.request_id))
        for output in record.finished:
            self._check_output(output)
        self._choices, self._drafts = {}, {}

    def _check_row(self, step: RowStep, kept: int, output: Output | None) -> None:
        name, row = step.request_id, self._rows[step.request_id]
        choices = self._choices[name]
        emitted = row.committed[row.prompt_len :]
        block = choices[: kept + 1]
        length, reason = row.allowed_end(emitted, block, self._decode)
        expected, found = block[:length], list(step.emitted)
        if found != expected:
            same = found[: len(expected)] == expected[: len(found)]
            ends = reason is not None or output is not None
            self._report(
                "termination" if same and ends else "commitment",
                name, expected, found, "emitted tokens",
            )  # fmt: skip
        elif step.num_accepted != min(kept, length):
            self._report("commitment", name, min(kept, length), step.num_accepted, "accepted drafts")
        if (output.finish_reason if output else None) != reason and found == expected:
            self._report("termination", name, reason, output.finish_reason if output else None, "finish reason")
        row.committed += found

    def _check_self_draft(self, name: str, scores: Tensor) -> None:
        """A self-draft is the target's choice, or as good as it: its forward has another width, and may round apart."""
        drafts, choices = self._drafts[name], self._choices[name]
        at = _agreeing(drafts, choices)
        if at < len(drafts):
            margin = float((scores[at, choices[at]] - scores[at, drafts[at]]) / scores[at].std())
            if abs(margin) > SELF_DRAFT_MARGIN.get(scores.dtype, 0.1):
                message = f"a self-draft was rejected by {margin:.2g} standard deviations of the logits"
                self._report("draft-in-sync", name, choices[at], drafts[at], message)

    def _check_output(self, output: Output) -> None:
        row = self._rows[output.request_id]
        if row.finished or output.request_id not in self._running:
            self._report(
                "conserved", output.request_id, "running", "not running", "a row finished that was not running"
            )
        row.finished = True
        self._running.discard(output.request_id)
        emitted = row.committed[row.prompt_len :]
        if list(output.token_ids) != emitted:
            self._report(
                "commitment", output.request_id, emitted, list(output.token_ids), "output is not what was emitted"
            )
        if output.text is not None and self._decode is not None:
            stops = [stop for stop in row.request.stop if output.stop == stop]
            least = len(self._decode(emitted[: row.request.min_new_tokens]))
            if any(output.text.find(stop, max(0, least - len(stop) + 1)) >= 0 for stop in stops):
                self._report(
                    "termination", output.request_id, "text before the stop", output.text, "text goes on after its stop"
                )

    def check_outputs(self, names: Sequence[str], outputs: Sequence[Output]) -> None:
        """All outputs of the run, in input order, each once."""
        found = [output.request_id for output in outputs]
        if found != list(names):
            self._report(
                "conserved", "all", list(names), found, "outputs are not the requests, once each in input order"
            )


def first_best(logits: Tensor, row: TrueRow) -> list[int]:
    """The lowest id among the largest logits at each position, end ids left out while the row is too short."""
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32)).cpu().numpy().copy()
    for i in range(len(scores)):
        if len(row.committed) + i < row.prompt_len + row.request.min_new_tokens:
            scores[i, list(row.end_ids)] = -np.inf
    return scores.argmax(-1).tolist()


def _agreeing(drafts: Sequence[int], choices: Sequence[int]) -> int:
    for i, draft in enumerate(drafts):
        if draft != choices[i]:
            return i
    return len(drafts)
