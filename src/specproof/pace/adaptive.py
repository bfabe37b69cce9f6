"""Draft what pays: each step takes the drafts that raise its tokens per second, and none where none does."""

from collections.abc import Callable
from itertools import takewhile
from math import inf
from time import perf_counter

from specproof.drafters.drafter import Confidence
from specproof.drafters.proposal import Proposal
from specproof.pace.chances import Chances
from specproof.pace.cost import OUTLIER, Cost
from specproof.pace.outlook import Outlook
from specproof.pace.plan import plan_drafts
from specproof.pace.purse import Purse
from specproof.pace.rounds import Rounds
from specproof.pace.worth import Worth
from specproof.step import StepRecord

MARGIN = 1.02  # a smaller gain cannot be told from noise
LEAST = 0.03  # a draft that is less likely is not looked at
KNOWN = 2  # measurements near a number of tokens, before it is compared with others
REFRESH = 64  # steps after which the price of a step without drafts is measured again

UNKNOWN = Confidence("drafts")


class Adaptive:
    """Prices are the seconds of forwards, measured while running; gains are chances of acceptance, learnt likewise.

    Nothing here depends on anything but the clock and the records: with a scripted clock every decision is determined.
    waits: whether the host waits for every forward. On CUDA it does only where tokens are chosen: what a step takes
    that only reads prompts is not seen then.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter, waits: bool = True) -> None:
        self._clock, self._waits = clock, waits
        self._cost = Cost()
        self._chances = Chances()
        self._purse = Purse()
        self._worth = Worth(self._cost)
        self._rounds = Rounds(self._cost, self._chances, self._purse, clock)
        self.go_on = self._rounds.go_on
        self._worths: dict[str, float] = {}  # of a token, by row that decodes; 1 on average
        self._step: Callable[[int], float] = self._cost  # seconds with so many drafts
        self._began = 0.0
        self._asked = False
        self._confidence: dict[str, Confidence] = {}

    def asks(self, outlook: Outlook) -> bool:
        self._began, num_rows = self._clock(), len(outlook.decoding)
        if not outlook.reading:  # else the batch is not full yet
            self._purse.foresee(outlook.steps, num_rows)
        known = self._cost.knows(num_rows, KNOWN) and self._cost.age(num_rows) < REFRESH
        self._asked = known and self._purse.is_open() and num_rows + outlook.reading <= self._cost.foreseen
        if self._asked:
            self._worths = self._worth(outlook)
            self._step = self._cost.of_step(num_rows, outlook.reading)
            self._rounds.begin(self._worths, self._step)
        return self._asked

    def cut(self, proposal: Proposal) -> Proposal:
        self._rounds.end_round()
        self._confidence = {row: proposal.confidence.get(row, UNKNOWN) for row in proposal.counts}
        reach = [
            list(takewhile(LEAST.__le__, self._chances.reach(row, self._confidence[row], count)))
            for row, count in proposal.counts.items()
        ]
        gains = [
            [self._worths[row] * chance for chance in chances]
            for row, chances in zip(proposal.counts, reach, strict=True)
        ]
        spent, plain, rows = self._clock() - self._began, self._step(0), len(self._worths)

        def seconds(drafts: int) -> float:
            """Of the step; none risks more than the purse has."""
            step = self._step(drafts)
            return spent + step if not drafts or self._purse.has(step / plain - 1) else inf

        lengths = plan_drafts(gains, seconds, rows, MARGIN)
        if self._rounds.explores:  # an unverified draft would teach nothing
            lengths = [
                max(length, min(1, count)) for length, count in zip(lengths, proposal.counts.values(), strict=True)
            ]
        expected = sum(sum(chances[:length]) for chances, length in zip(reach, lengths, strict=True))
        price = spent + self._step(sum(lengths)) - plain
        return proposal.cut(dict(zip(proposal.counts, lengths, strict=True)), expected, price)

    def __call__(self, record: StepRecord) -> None:
        for step in record.rows:
            if step.drafted:
                self._chances.learn(step, self._confidence[step.request_id])
        self._chances.end_step([output.request_id for output in record.finished])
        self._worth.learn(record)
        seconds = record.seconds - record.draft_seconds
        read = sum(chunk.length for chunk in record.prefilled)
        if record.rows or self._waits:
            self._cost.learn(record.num_tokens, seconds)
            if read:
                self._rounds.prefilled(read, seconds)
        if not record.rows:
            return
        plain = self._cost(len(record.rows))
        if self._asked and not read:
            self._purse.book(self._saved(record, plain))
        if self._cost.knows(len(record.rows), 1):
            self._purse.pass_time(record.seconds / plain)
        self._asked = False

    def _saved(self, record: StepRecord, plain: float) -> float:
        """Steps without drafts, of `plain` seconds each, that drafting saved in this step.

        What held the machine up is not charged to it: a step without drafts costs the asking, and one with drafts not
        much more than was foreseen.
        """
        if not any(step.drafted for step in record.rows):
            return -record.draft_seconds / plain
        won = sum(self._worths[step.request_id] * len(step.emitted) for step in record.rows)
        return won / len(record.rows) - min(record.seconds, OUTLIER * (plain + (record.price or 0.0))) / plain
