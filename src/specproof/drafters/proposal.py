"""What was proposed in a step, checked: on the host, or still on the device."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from numbers import Real
from operator import index as as_int
from typing import Any

import torch
from torch import Tensor

from specproof.drafters.drafter import Confidence, DeviceDrafts, DraftRow, HostDrafts
from specproof.errors import DrafterError


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafts by request_id. counts: how many each row has.

    on_host: the ids, empty for rows whose ids are on the device. on_device: the device ids of all rows, one row after
    another in the order of `counts`; None if all are on the host. confidence: of rows whose drafter says so. expected:
    how many of the drafts are expected to be accepted; price: seconds that drafting took, and that the forward should
    take longer for them; None if nobody estimates it.
    """

    on_host: dict[str, Sequence[int]]
    counts: dict[str, int]
    on_device: Tensor | None = None
    confidence: Mapping[str, Confidence] = field(default_factory=dict)
    expected: float | None = None
    price: float | None = None

    def cut(self, counts: Mapping[str, int], expected: float, price: float) -> "Proposal":
        """The first `counts[row]` drafts of each row, of which `expected` should be accepted, for `price` seconds."""
        return replace(self, expected=expected, price=price)._first(counts)

    def without(self, rows: Container[str]) -> "Proposal":
        """No drafts for these rows."""
        return self._first({row: 0 if row in rows else count for row, count in self.counts.items()})

    def _first(self, counts: Mapping[str, int]) -> "Proposal":
        """The first `counts[row]` drafts of each row."""
        if counts == self.counts:
            return self
        ids = self.on_device
        if ids is not None:
            ends = accumulate(self.counts.values())
            starts = {row: end - count for (row, count), end in zip(self.counts.items(), ends, strict=True)}
            ids = _select(ids, [starts[row] + j for row, count in counts.items() for j in range(count)])
        on_host = {row: drafts[: counts[row]] for row, drafts in self.on_host.items()}
        return replace(self, on_host=on_host, counts=dict(counts), on_device=ids)


NO_DRAFTS = Proposal({}, {})


def check_proposal(
    proposed: Sequence[Sequence[int]] | HostDrafts | DeviceDrafts,
    rows: Sequence[DraftRow],
    max_tokens: int,
    vocab_size: int,
) -> Proposal:
    """Cut each row's drafts to what it can use. Raises DrafterError, naming the row, for anything that is no draft."""
    if isinstance(proposed, DeviceDrafts):
        if len(proposed.counts) != len(rows):
            raise DrafterError(
                f"the drafter answered {len(proposed.counts)} rows of {len(rows)}; one answer a row is needed"
            )
        counts = proposed.counts
        for row, count in zip(rows, counts, strict=True):
            most = min(max_tokens, row.max_tokens, proposed.ids.shape[1])
            if not 0 <= count <= most:
                raise DrafterError(f"row {row.request_id}: {count} drafts on the device, at most {most} can be used")
        if proposed.ids.shape[0] != len(rows) or proposed.ids.dtype != torch.long:
            shape = tuple(proposed.ids.shape)
            raise DrafterError(f"drafts on the device must be long, one row each, not {proposed.ids.dtype} {shape}")
        width = proposed.ids.shape[1]
        index = [i * width + j for i, count in enumerate(counts) for j in range(count)]
        ids = _select(proposed.ids.flatten(), index)
        by_name = {row.request_id: count for row, count in zip(rows, counts, strict=True)}
        return Proposal({}, by_name, ids, _confidence(proposed.confidence, rows))
    confidence = {}
    if isinstance(proposed, HostDrafts):
        confidence, proposed = _confidence(proposed.confidence, rows), proposed.ids
    answers = _listed(proposed, "the drafter")
    if len(answers) != len(rows):
        raise DrafterError(f"the drafter answered {len(answers)} rows of {len(rows)}; one list of ids a row is needed")
    drafts = {}
    for row, answer in zip(rows, answers, strict=True):
        ids = _listed(answer, f"row {row.request_id}: the drafter")
        if len(ids) > max_tokens:
            raise DrafterError(f"row {row.request_id}: {len(ids)} drafts proposed, at most {max_tokens} were asked for")
        for token in ids:
            if isinstance(token, torch.Tensor) or not hasattr(token, "__index__") or not 0 <= token < vocab_size:
                raise DrafterError(
                    f"row {row.request_id}: draft {token!r} is no id of the target's vocabulary (0 to {vocab_size - 1})"
                )
        drafts[row.request_id] = [as_int(token) for token in ids[: row.max_tokens]]
    return Proposal(drafts, {request_id: len(ids) for request_id, ids in drafts.items()}, None, confidence)


def _select(ids: Tensor, index: Sequence[int]) -> Tensor:
    """ids[index] of rising indices, without making the host wait."""
    if len(index) == len(ids):
        return ids
    return ids.index_select(0, torch.tensor(index, dtype=torch.long).to(ids.device, non_blocking=True))


def _confidence(given: Sequence[Confidence] | None, rows: Sequence[DraftRow]) -> dict[str, Confidence]:
    if given is None:
        return {}
    if len(given) != len(rows):
        raise DrafterError(f"the drafter gave its confidence in {len(given)} rows of {len(rows)}")
    for row, confidence in zip(rows, given, strict=True):
        if not isinstance(confidence, Confidence) or not isinstance(confidence.source, str):
            raise DrafterError(f"row {row.request_id}: {confidence!r} is no Confidence with a name as its source")
        for chance in confidence.chances:
            if not isinstance(chance, Real) or not 0 <= chance <= 1:
                raise DrafterError(f"row {row.request_id}: confidence {chance!r} is no chance from 0 to 1")
    return {row.request_id: confidence for row, confidence in zip(rows, given, strict=True)}


def _listed(answer: Any, who: str) -> list:
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        raise DrafterError(f"{who} answered {answer!r}; a list of ids for each row is needed")
    return list(answer)
