"""Teacher forcing: one plain forward of the target over prompt and output judges every output token.

Each token is judged on the candidate's own prefix, so one flip does not condemn what follows it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specproof.errors import UnsupportedModelError
from specproof.lm import LM

LOGITS_AT_ONCE = 256  # positions whose logits are held together: 256 x 152k x 4 bytes are 156 MB


@dataclass(frozen=True, slots=True)
class Score:
    """What the target says about n output tokens, and about what comes behind them. Units: logits.

    choices (n + 1): its own choices, first argmax. others (n + 1): the runners-up. gaps (n + 1): top-1 minus top-2.
    margins (n): logit of the choice minus logit of the candidate's token; 0 where they are equal (a tie included).
    end_margin: behind the last token, logit of the choice minus that of the best ending id; None without such ids.
    tops (n + 1): the logits of the choices.
    """

    tokens: tuple[int, ...]
    choices: tuple[int, ...]
    others: tuple[int, ...]
    gaps: tuple[float, ...]
    margins: tuple[float, ...]
    end_margin: float | None
    tops: tuple[float, ...]

    @property
    def differing(self) -> tuple[int, ...]:
        """Indices of tokens that are not the target's choice."""
        return tuple(i for i, token in enumerate(self.tokens) if token != self.choices[i])


def score_row(
    lm: LM, prompt: Sequence[int], output: Sequence[int], end_ids: frozenset[int] = frozenset(),
    min_new_tokens: int = 0, state: object = None,
) -> Score:  # fmt: skip
    """Judge `output` behind a prompt of at least one token. end_ids cannot be chosen before min_new_tokens.

    state: an empty cache, which holds the row's KV afterwards; None: one that is forgotten. Logits are computed for
    the output's positions only, at most LOGITS_AT_ONCE at a time; a longer output goes through the model's own cache in
    that many pieces. Raises UnsupportedModelError for logits that are no numbers.
    """
    ids, first = [*prompt, *output], len(prompt) - 1
    judged = [*output, output[-1] if output else prompt[-1]]  # the last one only fills the place behind the end
    ends = sorted(end_ids)
    parts: list[Tensor] = []
    end_margin = None
    for at, logits in row_logits(lm, ids, first, LOGITS_AT_ONCE, state):
        for index in range(at, min(at + len(logits), min_new_tokens)):
            logits[index - at, ends] = -torch.inf
        wanted = torch.tensor(judged[at : at + len(logits)], device=logits.device)
        parts.append(_judge(logits, wanted))
        if ends:
            end_margin = float(logits[-1].max().double() - logits[-1, ends].max().double())
    choice, other, top, second, given = torch.cat(parts, dim=1).tolist()
    n = len(output)
    return Score(
        tokens=tuple(output),
        choices=tuple(map(int, choice)),
        others=tuple(map(int, other)),
        gaps=tuple(a - b for a, b in zip(top, second, strict=True)),
        margins=tuple(a - b for a, b in zip(top[:n], given[:n], strict=True)),
        end_margin=end_margin,
        tops=tuple(top),
    )


def row_logits(
    lm: LM, ids: Sequence[int], first: int, at_once: int, state: object = None
) -> Iterator[tuple[int, Tensor]]:
    """Yield (index, logits (m, V)): index 0 is what follows ids[first]; pieces of at most `at_once` positions."""
    begin = 0
    for start in range(first, len(ids), at_once):
        end = min(start + at_once, len(ids))
        columns = torch.arange(start - begin, end - begin, device=lm.device)
        logits, state = lm.plain_forward(torch.tensor([ids[begin:end]], device=lm.device), state, columns)
        yield start - first, logits[0].clone()
        begin = end


def first_choice(logits: Tensor) -> Tensor:
    """(..., V) -> (...,): the first argmax, whichever one the device's argmax would take."""
    tokens = torch.arange(logits.shape[-1], device=logits.device)
    return torch.where(logits == logits.amax(-1, keepdim=True), tokens, logits.shape[-1]).amin(-1)


def pair_margin(logits: Tensor, a: int, b: int) -> float:
    """logits (V,): logit of a minus logit of b, the subtraction itself in float64."""
    return float(logits[a].double() - logits[b].double())


def _judge(logits: Tensor, wanted: Tensor) -> Tensor:
    """logits (m, V), wanted (m,) -> (5, m) float64 on the CPU: choice, runner-up, and the three logits."""
    choice = first_choice(logits)
    if int(choice.max()) >= logits.shape[-1]:
        raise UnsupportedModelError("the target's logits are not numbers (NaN) here: it cannot judge in this dtype")
    top, given = (logits.gather(1, tokens[:, None])[:, 0] for tokens in (choice, wanted))
    rest = logits.scatter(1, choice[:, None], -torch.inf)
    other = first_choice(rest)
    second = rest.gather(1, other[:, None])[:, 0]
    return torch.stack([value.double() for value in (choice, other, top, second, given)]).cpu()
