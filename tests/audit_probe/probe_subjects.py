"""The loops under test, their models and prompts, and what one run of a loop gave under the probe."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from families import VOCAB, tiny_lm
from helpers import first_difference, vary

from specproof.audit.probe import Probe, ProbeReport
from specproof.audit.violation import Violation
from specproof.baselines import Bsp, Dsd, MaskedHoles
from specproof.lm import LM
from specproof.reference import Reference, decode_reference
from specproof.request import Request

LIMIT = 16
PROMPTS = (
    [5, 17],
    [(7 * i + 3) % VOCAB for i in range(23)],
    [9, 8, 7],
    [4, 5, 6, 4, 5, 6, 4, 5, 6, 4, 5],
    [31],
    [(11 * i + 2) % VOCAB for i in range(14)],
    [30, 30, 30, 30],
    [1, 2, 3, 5, 8, 13, 21],
)
BATCHES = (1, 4)

Loop = Bsp | Dsd | MaskedHoles
LOOPS: dict[str, Loop] = {
    "masked holes": MaskedHoles(),
    "BSP, no defect": Bsp(),
    "BSP, no position ids": Bsp(implicit_positions=True),
    "BSP, rejected KV visible": Bsp(rejected_visible=True),
    "BSP, no mask": Bsp(padding_visible=True),
    "BSP, bonus from the draft": Bsp(draft_bonus=True),
    "BSP as in the paper": Bsp(implicit_positions=True, no_stop=True),
    "DSD, no defect": Dsd(),
    "DSD, no KV kept": Dsd(recompute=True),
    "DSD, bonus from the draft": Dsd(draft_bonus=True),
    "DSD, no position ids": Dsd(implicit_positions=True),
    "DSD, no KV kept, no position ids": Dsd(recompute=True, implicit_positions=True),
    "DSD, no mask": Dsd(no_mask=True),
    "DSD, KV not realigned": Dsd(not_realigned=True),
    "DSD, repad without unpad": Dsd(not_unpadded=True),
    "DSD, 0 is padding by value": Dsd(mask_by_value=True),
    "DSD, ends with the fastest row": Dsd(early_stop=True),
    "DSD as in the paper": Dsd(draft_bonus=True, no_mask=True, implicit_positions=True, not_unpadded=True),
}


@cache
def target(family: str) -> LM:
    return tiny_lm(family, seed=1)


@cache
def draft(family: str):
    """The target with noise on its weights: right often, not always, so that a batch gets ragged."""
    return noisy(target(family).model)


def noisy(model, amount: float = 0.1):
    model = copy.deepcopy(model)
    torch.manual_seed(2)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data += amount * parameter.data.std() * torch.randn_like(parameter)
    return model


@cache
def references(family: str) -> tuple[Reference, ...]:
    return vary([decode_reference(target(family), Request(prompt, max_new_tokens=LIMIT)) for prompt in PROMPTS])


@dataclass(frozen=True)
class Run:
    """diverged: per row, the index of its first wrong token, None if it is exact. reports: one per batch."""

    diverged: tuple[int | None, ...]
    reports: tuple[ProbeReport, ...]

    @property
    def exact(self) -> int:
        return sum(at is None for at in self.diverged)

    @property
    def named(self) -> tuple[str, ...]:
        """The first violated invariant of each batch, "" where there is none."""
        return tuple(report.first.invariant if report.first else "" for report in self.reports)

    @property
    def first(self) -> Violation | None:
        return next((report.first for report in self.reports if report.first), None)


def watch(loop: Loop, lm: LM, drafter, prompts: Sequence[list[int]], truth: Sequence[Sequence[int]], batch: int) -> Run:
    """Run a loop over the prompts in batches, each under a probe of its own."""
    limit = len(truth[0])
    loop = replace(loop, max_new_tokens=limit)
    diverged: list[int | None] = []
    reports = []
    for start in range(0, len(prompts), batch):
        rows = prompts[start : start + batch]
        with Probe(lm.model, rows, max_new_tokens=limit) as probe:
            outputs = loop.generate(lm.model, drafter, rows)
        reports.append(probe.report(outputs))
        diverged += [first_difference(out, ref) for out, ref in zip(outputs, truth[start : start + batch], strict=True)]
    return Run(tuple(diverged), tuple(reports))


@cache
def run(name: str, family: str, batch: int) -> Run:
    truth = [reference.token_ids for reference in references(family)]
    return watch(LOOPS[name], target(family), draft(family), list(PROMPTS), truth, batch)
