"""The main path. `Engine.step` is one plan, draft, verify, commit round; all else prepares it or reads from it."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from time import perf_counter

import torch

from specproof.assembly import ModelLike, as_drafter, as_lm
from specproof.choice import NO_CHOICE, Ban, choose
from specproof.config import EngineConfig
from specproof.drafters import Drafter, DraftRow, PricedDrafter, StatefulDrafter
from specproof.drafters.cascade import model_in
from specproof.drafters.proposal import NO_DRAFTS, Proposal, check_proposal
from specproof.errors import ConfigError, DrafterError, RequestError
from specproof.intake import admit
from specproof.kv import LAYOUTS
from specproof.kv.layout import Feed, Layout, Sharing
from specproof.numerics.choose import choose_numerics
from specproof.numerics.compilation import measure, require_unchanged
from specproof.pace import Adaptive, Fixed, Outlook, Pace
from specproof.request import Output, Request
from specproof.schedulers import SCHEDULERS, Schedule
from specproof.sequence import Sequence
from specproof.statistics import Statistics
from specproof.step import PrefillChunk, RowStep, StepRecord
from specproof.support import require_supported
from specproof.tokenizer import Tokenizer
from specproof.verify.accept import COMMITS, count_accepted
from specproof.verify.terminate import End, find_end, visible_text

Observer = Callable[[StepRecord], None]

NOT_NUMBERS = "the target's logits are not numbers (NaN) here; look at its weights, or try another dtype"


class Engine:
    """Decodes batches; every row gets exactly the tokens that the target would have given it alone.

    target: an LM, a Hugging Face model, a folder or a hub name. drafter: None (target-only), a model in any of these
    forms, or an object with `propose` (see `specproof.drafters.Drafter`). tokenizer: needed for text and stop strings;
    loaded with the target if that is a name or folder.

    observers: called with the StepRecord of every step. statistics: sums over all steps. clock: seconds, for the
    records. pace: how many drafts a step asks for; None: `Adaptive` or `Fixed`, as the config says. compilation: what
    compiling cost and saves; None if the layers run as they are.
    Raises UnsupportedModelError, TokenizerMismatchError or ConfigError where the parts do not fit.
    """

    def __init__(
        self,
        target: ModelLike,
        drafter: Drafter | ModelLike | None = None,
        config: EngineConfig | None = None,
        tokenizer: Tokenizer | None = None,
        draft_tokenizer: Tokenizer | None = None,
        pace: Pace | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.config = config or EngineConfig()
        parts = self.config.parts
        if drafter is not None and not parts.drafts:
            raise ConfigError(f"method {self.config.method!r} does not draft; leave the drafter out")
        self.tokenizer = Tokenizer.load(target) if tokenizer is None and isinstance(target, str | Path) else tokenizer
        self.target = as_lm(target)
        require_supported(self.target, self.config.attention)
        self.drafter = as_drafter(drafter, self.target, self.tokenizer, draft_tokenizer, self.config)
        self._clock = clock
        waits = self.target.device.type == "cpu"
        self.pace = pace or (Adaptive(clock, waits) if self.config.adaptive and self.drafter else Fixed())
        if isinstance(self.drafter, PricedDrafter):
            self.drafter.go_on = self.pace.go_on
        self.statistics = Statistics()
        self.observers: list[Observer] = [self.statistics, self.pace]
        self.numerics = choose_numerics(self.target, self.config)
        self.layout = LAYOUTS[parts.layout](self.target, self.config.attention, self.numerics)
        draft = model_in(self.drafter)
        self._layouts: tuple[Layout, ...] = (self.layout, *(() if draft is None else draft.layouts))
        self.compilation = measure(self._layouts, self.config) if self.config.compile else None
        self._commit_rule = COMMITS[parts.commit]
        self._scheduler = SCHEDULERS[parts.scheduler](self.config)
        self._decode = None if self.tokenizer is None else self.tokenizer.decode
        self._running: dict[str, Sequence] = {}
        self._num_steps = 0
        self._dtype = self.target.dtype

    def generate(self, requests: Iterable[Request]) -> list[Output]:
        """Decode all requests; outputs in input order. A row that cannot be served has finish_reason "error"."""
        requests = list(requests)
        outputs = {output.request_id: output for output in self.stream(requests)}
        return [outputs[name] for name in request_names(requests)]

    def stream(self, requests: Iterable[Request]) -> Iterator[Output]:
        """Decode all requests; each output as its row finishes. Closing the iterator gives up the rest."""
        refused = self.submit(requests)
        mine = self._scheduler
        try:
            yield from refused
            while mine.num_unfinished:
                yield from self.step().finished
        finally:
            if self._scheduler is mine:  # else all rows of this stream were read, and a newer one runs
                self.abandon()

    def submit(self, requests: Iterable[Request]) -> list[Output]:
        """Queue requests for `step`; returns the outputs of those that cannot be served.

        Raises RequestError if two requests have one name, ConfigError while others are being decoded, if the model was
        converted to another dtype, or if compiled layers have changed.
        """
        if self._scheduler.num_unfinished:
            raise ConfigError(
                "the engine is decoding already; read or close the running stream first, or make another engine"
            )
        if self.target.dtype != self._dtype:
            was, now = (str(dtype).removeprefix("torch.") for dtype in (self._dtype, self.target.dtype))
            raise ConfigError(f"the target was {was} when the engine was made, and is {now}; make another engine")
        if self.config.compile:
            for layout in self._layouts:
                require_unchanged(layout.lm, layout.numerics.packed)
        requests = list(requests)
        rows, refused = [], []
        for request, name in zip(requests, request_names(requests), strict=True):
            try:
                rows.append(admit(request, name, self.target, self.tokenizer))
            except RequestError as error:
                refused.append(Output(name, _length(request.prompt_ids), (), None, "error", error=str(error)))
        self._scheduler = SCHEDULERS[self.config.parts.scheduler](self.config)
        self._scheduler.add(rows)
        return refused

    @property
    def num_unfinished(self) -> int:
        """Rows that are waiting or running."""
        return self._scheduler.num_unfinished

    @torch.inference_mode()
    def step(self) -> StepRecord:
        """One round: who runs, what is proposed, what the target chooses, what becomes final.

        Raises ConfigError if nothing is left to decode.
        """
        if not self.num_unfinished:
            raise ConfigError("nothing is left to decode; submit requests first")
        started = self._clock()
        schedule = self._plan()
        planned = self._clock()
        proposal = self._draft(schedule)
        drafted = self._clock()
        drafts, choices = self._verify(schedule, proposal)
        record = replace(
            self._commit(schedule, drafts, choices),
            expected=proposal.expected,
            price=proposal.price,
            draft_seconds=drafted - planned,
            seconds=self._clock() - started,
        )
        for observe in self.observers:
            observe(record)
        return record

    def _plan(self) -> Schedule:
        """Who runs; rows that enter get a place, and what they have in common with others."""
        schedule = self._scheduler.plan()
        for row in schedule.admitted:
            self.layout.admit(row.request_id, row.prompt_len)
            self._running[row.request_id] = row
        for prefix in schedule.shared:
            assert isinstance(self.layout, Sharing)
            self.layout.share(prefix.request_id, prefix.donor, prefix.length)
            row = self._running[prefix.request_id]
            row.cached_len = row.num_shared = prefix.length
        return schedule

    def _draft(self, schedule: Schedule) -> Proposal:
        """Ask the drafter about the rows that can use a draft: a row with one token left needs none."""
        k, decode = self.config.num_draft_tokens, schedule.decode
        if self.drafter is None or not k or not decode:
            return NO_DRAFTS
        decoding = {row.request_id: row.remaining for row in decode}
        reading = sum(length for _, length in schedule.prefill)
        asks = self.pace.asks(Outlook(decoding, self.num_unfinished - len(decode), reading))
        rows = [_draft_row(row, min(k, row.remaining - 1)) for row in decode if row.remaining > 1] if asks else []
        if not rows:
            return NO_DRAFTS
        with _users_code():
            proposal = check_proposal(self.drafter.propose(rows, k), rows, k, self.target.vocab_size)
        return self.pace.cut(proposal)

    def _verify(self, schedule: Schedule, proposal: Proposal) -> tuple[list[list[int]], list[list[int]]]:
        """For each row that decodes, its drafts and the target's choices (one more than drafts).

        A draft whose states are not numbers spoils its row even where it is masked: it is verified again without.
        """
        drafts, choices = self._ask(schedule, proposal)
        spoilt = {
            row.request_id: (row, row.cached_len + len(chosen))
            for row, drafted, chosen in zip(schedule.decode, drafts, choices, strict=True)
            if drafted and NO_CHOICE in chosen
        }
        if not spoilt:
            return drafts, choices
        for row, end in spoilt.values():
            self._wipe(row, row.cached_len + 1, end)
        return self._ask(schedule, proposal.without(spoilt.keys()))

    def _ask(self, schedule: Schedule, proposal: Proposal) -> tuple[list[list[int]], list[list[int]]]:
        """One forward of the target over all rows of the step; one transfer from the device."""
        rows = schedule.decode
        counts = [proposal.counts.get(row.request_id, 0) for row in rows]
        feeds = [
            Feed(row.request_id, row.cached_len, row.token_ids[row.cached_len : row.cached_len + length])
            for row, length in schedule.prefill
        ]
        for row, count in zip(rows, counts, strict=True):
            known = (row.token_ids[-1], *proposal.on_host.get(row.request_id, ()))
            feeds.append(Feed(row.request_id, row.cached_len, known, count + 1 - len(known), count + 1))
        device_drafts = None if proposal.on_device is None else proposal.on_device.to(self.target.device)
        logits = self.layout.forward(feeds, device_drafts)
        choices = choose(logits, _bans(rows, counts))
        if device_drafts is None:
            drafts = [list(proposal.on_host.get(row.request_id, ())) for row in rows]
            return drafts, _split(choices.tolist(), [count + 1 for count in counts])
        both = torch.cat([choices, device_drafts]).tolist()
        return _split(both[len(choices) :], counts), _split(both[: len(choices)], [count + 1 for count in counts])

    def _commit(self, schedule: Schedule, drafts: list[list[int]], choices: list[list[int]]) -> StepRecord:
        """Make tokens final: but for what rows start with (see `_plan`), the only place where they change."""
        prefilled = []
        for row, length in schedule.prefill:
            prefilled.append(PrefillChunk(row.request_id, row.cached_len, length))
            row.cached_len += length
        right = [count_accepted(d, c) for d, c in zip(drafts, choices, strict=True)]
        steps, finished = [], []
        for row, drafted, chosen, agreed, count in zip(
            schedule.decode, drafts, choices, right, self._commit_rule(right), strict=True
        ):
            end = find_end(row, chosen[: count + 1], self._decode)
            if end.kept <= count:  # the row ends inside its drafts: those behind the end were never judged
                count, drafted = end.kept, drafted[: end.kept]
            agreed = min(agreed, len(drafted))
            steps.append(
                RowStep(row.request_id, row.cached_len, tuple(drafted), agreed, count, tuple(chosen[: end.kept]))
            )
            row.token_ids += chosen[: end.kept]
            row.cached_len += 1 + count
            row.num_drafted += len(drafted)
            row.acceptances[count] += 1
            if end.reason == "error":
                self._wipe(row, 0, steps[-1].start + len(chosen))
                row.cached_len = 0
            if end.reason is not None:
                finished.append(self._finish(row, end))
        if isinstance(self.drafter, StatefulDrafter):
            with _users_code():
                self.drafter.commit({step.request_id: step.num_accepted for step in steps})
                for output in finished:
                    self.drafter.release(output.request_id)
        record = StepRecord(
            index=self._num_steps,
            admitted=tuple(row.request_id for row in schedule.admitted),
            prefilled=tuple(prefilled),
            rows=tuple(steps),
            finished=tuple(finished),
            refilled=schedule.refilled,
            grouped=schedule.grouped,
            realigned=self.layout.realigned,
            num_tokens=sum(length for _, length in schedule.prefill) + sum(map(len, choices)),
            shared=schedule.shared,
        )
        if not self.num_unfinished:
            self.layout.clear()
        self._num_steps += 1
        return record

    def _wipe(self, row: Sequence, start: int, end: int) -> None:
        """What a row has written at `[start, end)` must reach neither its next tokens nor the next row in its place."""
        located = self.layout.locate(row.request_id, end)
        if located is not None:
            cells, index = located
            cells.wipe(index[start:])

    def _finish(self, row: Sequence, end: End) -> Output:
        assert end.reason is not None
        text = None if self._decode is None else visible_text(row, end, self._decode)
        self.layout.release(row.request_id)
        self._scheduler.finish(row)
        del self._running[row.request_id]
        error = NOT_NUMBERS if end.reason == "error" else None
        return row.output(text, end.reason, end.stop, error)

    def close(self) -> None:
        """Give up what is running, and give the models back their own weights, which decoding had packed.

        An engine that is used again packs them again.
        """
        self.abandon()
        for layout in self._layouts:
            layout.lm.unpack()

    def abandon(self) -> None:
        """Forget rows that are not finished, so that the engine can be used again after an error or a closed stream."""
        running, self._running = self._running, {}
        self.layout.clear()
        self._scheduler = SCHEDULERS[self.config.parts.scheduler](self.config)
        if isinstance(self.drafter, StatefulDrafter):
            with _users_code():
                for name in running:
                    self.drafter.release(name)


@contextmanager
def _users_code() -> Iterator[None]:
    """Calls of a drafter, and reading what it answered: whatever goes wrong is told as its failure."""
    try:
        yield
    except DrafterError:
        raise
    except Exception as error:
        raise DrafterError(f"the drafter failed: {type(error).__name__}: {error}") from error


def _length(ids: object) -> int:
    """Of a prompt that may be no sequence at all."""
    return len(ids) if isinstance(ids, Sized) else 0


def request_names(requests: list[Request]) -> list[str]:
    """Each request's name, its index where it has none. Raises RequestError if two have one name."""
    names = [str(i) if request.request_id is None else request.request_id for i, request in enumerate(requests)]
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise RequestError(f"request_id {twice!r} is given twice; names must be unique within a run")
    return names


def _draft_row(row: Sequence, max_tokens: int) -> DraftRow:
    banned = tuple(row.end_ids) if row.seq_len < row.min_len else ()
    return DraftRow(
        row.request_id, tuple(row.token_ids), max_tokens, banned, row.min_len, row.prompt_len, row.remaining
    )


def _bans(rows: Iterable[Sequence], counts: Iterable[int]) -> list[Ban]:
    """End ids cannot be chosen while a row is shorter than its `min_len`; one row of logits per choice."""
    bans, at = [], 0
    for row, count in zip(rows, counts, strict=True):
        short = min(row.min_len - row.seq_len, count + 1)
        if short > 0 and row.end_ids:
            bans += [Ban(at + i, tuple(row.end_ids)) for i in range(short)]
        at += count + 1
    return bans


def _split(values: list[int], lengths: list[int]) -> list[list[int]]:
    ends = list(accumulate(lengths))
    return [values[end - length : end] for end, length in zip(ends, lengths, strict=True)]
