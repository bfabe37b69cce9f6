"""Drafting token by token with a model: which rows draft on, decided before each round."""

from collections.abc import Callable, Mapping, Sequence

from specproof.drafters.drafter import NextDraft
from specproof.pace.chances import Chances
from specproof.pace.cost import Cost
from specproof.pace.plan import plan_drafts
from specproof.pace.purse import Purse

THIN = 6.0  # first drafts judged, below which only one row tries
TRUSTED = 3  # rounds measured before their price is believed
SHARE = 0.3  # until then: of what the target takes for as many tokens
LITTLE = 16  # tokens of catching up in a round that count as part of it
RISE = 1.1  # what the rate must rise by in a step in which rows read
STEPS = 0.5  # steps expected per token that a row may still emit


class Rounds:
    """Each round is a forward of the draft over the rows that draft on. It is worth it if it raises the step's rate.

    Gains fall from round to round and prices do not, so looking one round ahead is enough. What a row must read first
    (its prompt, or what it missed while nothing was drafted) is charged over the steps it has left. The time between
    two questions is what a round took; on CUDA, where the host runs ahead, the rest shows in the verification.
    """

    def __init__(self, target: Cost, chances: Chances, purse: Purse, clock: Callable[[], float]) -> None:
        self._target, self._chances, self._purse, self._clock = target, chances, purse, clock
        self._price = Cost()
        self._reading: float | None = None  # seconds per token
        self._prefill = 0.0  # the same of the target
        self.begin({}, target)

    def begin(self, worths: Mapping[str, float], step: Callable[[int], float]) -> None:
        """A step begins. worths: of a token of each row that decodes, 1 on average. step: its seconds with n drafts."""
        self.explores, self._step = False, step
        self._worths, self._num_rows, self._num_drafts = worths, len(worths), 0
        self._gains: dict[str, float] = {}
        self._began = self._clock()
        self._round: tuple[float, int, int] | None = None  # when it began, rows, tokens

    def prefilled(self, tokens: int, seconds: float) -> None:
        """The target read so many tokens of prompts."""
        self._prefill = seconds / tokens

    def end_round(self) -> None:
        """The last round is over: learn from its time."""
        if self._round is None:
            return
        began, rows, tokens = self._round
        seconds = self._clock() - began
        if tokens - rows <= LITTLE:
            self._price.learn(tokens, seconds)
        else:
            reading = max(0.0, seconds - self._seconds(rows)) / (tokens - rows)
            self._reading = reading if self._reading is None else (self._reading + reading) / 2
        self._round = None

    def go_on(self, nexts: Sequence[NextDraft]) -> list[bool]:
        self.end_round()
        if not nexts:
            return []
        gains = [self._gain(ahead) for ahead in nexts]
        source, at = nexts[0].confidence.source, nexts[0].num_drafts
        if at == 0 and self._chances.evidence(source, 0) < THIN:
            chosen = self._explore(nexts)
        else:
            spent = self._clock() - self._began
            lengths = plan_drafts(
                [[gain] if gain > 0 else [] for gain in gains],
                lambda n: spent + self._seconds(n) + self._step(self._num_drafts + n),
                self._num_rows + sum(self._gains.values()),
                margin=RISE if any(ahead.unread > LITTLE for ahead in nexts) else 1.0,
            )
            chosen = self._affordable(nexts, [length > 0 for length in lengths])
        going = [(ahead, gain) for ahead, gain, goes in zip(nexts, gains, chosen, strict=True) if goes]
        for ahead, gain in going:
            self._gains[ahead.row.request_id] = self._gains.get(ahead.row.request_id, 0.0) + max(0.0, gain)
        self._num_drafts += len(going)
        if going:
            tokens = sum(ahead.unread for ahead, _ in going)
            self._round = (self._clock(), len(going), tokens)
        return chosen

    def _gain(self, ahead: NextDraft) -> float:
        """What the next draft should bring, less the reading that it needs first."""
        row = ahead.row.request_id
        *_, reach = 1.0, *self._chances.reach(row, ahead.confidence, ahead.num_drafts)  # the last, if there is any
        gain = self._worths[row] * reach * self._chances.next(row, ahead)
        charge = min(1.0, 1 / (STEPS * max(1, ahead.row.remaining)))
        return gain - charge * self._read_seconds(ahead.unread) * self._num_rows / self._target(self._num_rows)

    def _affordable(self, nexts: Sequence[NextDraft], chosen: Sequence[bool]) -> list[bool]:
        """Those of the chosen whose reading the purse lends."""
        affordable = [False] * len(nexts)
        for i in sorted(range(len(nexts)), key=lambda i: nexts[i].unread):
            affordable[i] = chosen[i] and self._may_read(nexts[i].unread)
        return affordable

    def _may_read(self, unread: int) -> bool:
        """Whether the purse lends the reading; a little needs no loan."""
        return unread <= LITTLE or self._purse.lend(self._read_seconds(unread) / self._target(self._num_rows))

    def _explore(self, nexts: Sequence[NextDraft]) -> list[bool]:
        """The row that has least to read, if the purse can pay for a round and lends the reading."""
        cheapest = min(range(len(nexts)), key=lambda i: nexts[i].unread)
        price = self._seconds(1) / self._target(self._num_rows)
        self.explores = self._purse.has(price) and self._may_read(nexts[cheapest].unread)
        return [self.explores and i == cheapest for i in range(len(nexts))]

    def _seconds(self, rows: int) -> float:
        if rows == 0:
            return 0.0
        if self._price.count < TRUSTED:
            return SHARE * self._target(rows)
        known = min(rows, self._price.foreseen)
        return self._price(known) * self._target(rows) / self._target(known)

    def _read_seconds(self, unread: int) -> float:
        """Of catching up; two tokens are part of any round."""
        return max(0, unread - 2) * (SHARE * self._prefill if self._reading is None else self._reading)
