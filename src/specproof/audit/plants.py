"""How faults are planted: context managers that bend the engine, or the two models, for as long as they are open."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from specproof.drafters import ModelDrafter
from specproof.engine import Engine
from specproof.kv.attention import Block
from specproof.kv.layout import Feed
from specproof.kv.left_padded import LeftPadded
from specproof.kv.slots import Slots
from specproof.kv.transformers_cache import StepCache
from specproof.lm import LM
from specproof.verify.terminate import End

Plant = Callable[[Engine], AbstractContextManager[Any]]


def in_forward(change: Callable[[Tensor, Tensor, StepCache], tuple[Tensor, Tensor]]) -> Plant:
    """A fault in what the target is given: `change(ids, position_ids, kv)`; it may also change `kv` in place."""

    @contextmanager
    def plant(engine: Engine) -> Iterator[None]:
        original = LM.forward

        def forward(lm: LM, ids: Tensor, position_ids: Tensor, kv: StepCache, columns: Tensor) -> Tensor:
            if any(kv.cells is memory for memory in engine.layout.memories):
                ids, position_ids = change(ids, position_ids, kv)
            return original(lm, ids, position_ids, kv, columns)

        with patch.object(LM, "forward", forward):
            yield

    return plant


def in_blocks(change: Callable[[Block], Block]) -> Plant:
    def blocks(ids: Tensor, position_ids: Tensor, kv: StepCache) -> tuple[Tensor, Tensor]:
        kv.plan.blocks = [change(block) for block in kv.plan.blocks]
        return ids, position_ids

    return in_forward(blocks)


def positions(change: Callable[[Tensor], Tensor]) -> Plant:
    return in_forward(lambda ids, position_ids, kv: (ids, change(position_ids)))


def windows(change: Callable[[int], int | None]) -> Plant:
    def make(original: Callable) -> Callable:
        return lambda block, window, dtype: original(block, window and change(window), dtype)

    return patched(Block, "mask", make)


def shared_positions(position_ids: Tensor) -> Tensor:
    return (position_ids.flatten()[0] + torch.arange(position_ids.numel())).view(position_ids.shape)


def gap(position_ids: Tensor) -> Tensor:
    changed = position_ids.clone()
    changed[..., -1] += 1
    return changed


def cells_shifted(ids: Tensor, position_ids: Tensor, kv: StepCache) -> tuple[Tensor, Tensor]:
    kv.index = (kv.index + 1).clamp_(max=kv.cells.rows * kv.cells.capacity - 1)
    return ids, position_ids


def last_write_lost(ids: Tensor, position_ids: Tensor, kv: StepCache) -> tuple[Tensor, Tensor]:
    if len(kv.index) > 1:
        kv.index = torch.cat([kv.index[:-1], kv.index[-2:-1]])
    return ids, position_ids


def noise_behind_the_ledger(ids: Tensor, position_ids: Tensor, kv: StepCache) -> tuple[Tensor, Tensor]:
    for keys in kv.cells.keys.values():
        keys[:, : keys.shape[1] // 2].mul_(1.05)
    return ids, position_ids


def neighbours_cells(block: Block) -> Block:
    count = block.columns.shape[0]
    start = block.rows.start or 0 if isinstance(block.rows, slice) else 0
    rows = start + torch.arange(count) if isinstance(block.rows, slice) else block.rows
    return replace(block, rows=rows.roll(1))


def everything_visible(block: Block) -> Block:
    return replace(block, columns=torch.full_like(block.columns, block.length - 1), first=None)


def one_more_visible(block: Block) -> Block:
    return replace(block, columns=(block.columns + 1).clamp_(max=block.length - 1))


@contextmanager
def after_commit(engine: Engine, change: Callable[[Engine, Any], None]) -> Iterator[None]:
    """Change rows behind the commit, as a wrong rollback would."""
    original = engine._commit

    def commit(*arguments: Any) -> Any:
        record = original(*arguments)
        change(engine, record)
        return record

    with patch.object(engine, "_commit", commit):
        yield


def starts_moved(by: int) -> Callable[[Any], Any]:
    """What a crop of the wrong length does: the row's next tokens are taken to stand elsewhere."""

    def make(original: type[Feed]) -> Callable[..., Feed]:
        def feed(row: str, start: int, *rest: Any) -> Feed:
            emits = len(rest) == 3 and start > 3
            return original(row, start + by if emits else start, *rest)

        return feed

    return make


def rewrite(engine: Engine, record: Any) -> None:
    for row in engine._running.values():
        if row.seq_len > row.prompt_len + 2:
            row.token_ids[row.prompt_len] ^= 1


def patched(target: Any, name: str, make: Callable[[Any], Any]) -> Plant:
    """Replace a function by `make(original)`."""

    @contextmanager
    def plant(engine: Engine) -> Iterator[None]:
        with patch.object(target, name, make(getattr(target, name))):
            yield

    return plant


def accept_one_more(original: Callable) -> Callable:
    return lambda drafts, choices: min(len(drafts), original(drafts, choices) + 1)


def accept_first(original: Callable) -> Callable:
    return lambda drafts, choices: max(min(1, len(drafts)), original(drafts, choices))


def no_bonus(original: Callable) -> Callable:
    return lambda drafts, choices: max(0, original(drafts, choices) - (original(drafts, choices) == len(drafts)))


def bonus_from_draft(original: Callable) -> Callable:
    """The step's last token is not the target's: here the draft's guess stands for it, as in a draft's own bonus."""

    def verify(engine: Engine, schedule: Any, proposal: Any) -> Any:
        drafts, choices = original(engine, schedule, proposal)
        for drafted, chosen in zip(drafts, choices, strict=True):
            if drafted and drafted == chosen[:-1]:
                chosen[-1] = drafted[-1]
        return drafts, choices

    return verify


def choices_of_another_row(original: Callable) -> Callable:
    def verify(engine: Engine, schedule: Any, proposal: Any) -> Any:
        drafts, choices = original(engine, schedule, proposal)
        lengths = {len(chosen) for chosen in choices}
        return drafts, choices[1:] + choices[:1] if len(lengths) == 1 else choices

    return verify


def last_maximum(original: Callable) -> Callable:
    return lambda logits, bans=(): logits.shape[-1] - 1 - original(logits.flip(-1), ())


def only_the_last_token(original: Callable) -> Callable:
    """Looks for an end id at the last new token only."""

    def find(row: Any, new: Any, decode: Any) -> End:
        end = original(row, new, decode)
        inside = end.reason == "stop" and end.kept < len(new)
        return End(len(new), "length" if len(new) == row.remaining else None) if inside else end

    return find


def limit_off_by_one(original: Callable) -> Callable:
    def admit(*arguments: Any) -> Any:
        row = original(*arguments)
        row.limit += 1
        return row

    return admit


def always_length(original: Callable) -> Callable:
    def find(row: Any, new: Any, decode: Any) -> End:
        end = original(row, new, decode)
        return replace(end, reason="length") if end.reason == "stop" else end

    return find


def all_end_together(original: Callable) -> Callable:
    ended: list[bool] = []

    def find(row: Any, new: Any, decode: Any) -> End:
        end = original(row, new, decode)
        if end.reason is not None:
            ended.append(True)
        return replace(end, reason="length") if ended and end.reason is None else end

    return find


def text_uncut(original: Callable) -> Callable:
    return lambda row, end, decode: decode(row.emitted)


def slots_swapped(original: Callable) -> Callable:
    """From the fourth reservation on, two rows are looked up in each other's slot."""
    calls: list[int] = []

    def slot(slots: Slots, row: str) -> int:
        calls.append(1)
        rows = sorted(slots._slot)
        if len(calls) > 24 and len(rows) > 1 and row in rows[:2]:
            row = rows[1 - rows.index(row)]
        return original(slots, row)

    return slot


def shared_too_far(original: Callable) -> Callable:
    """The first token that differs is taken over as well."""

    def share(rows: Any, past: Any = ()) -> Any:
        shares, waiting = original(rows, past)
        known = {row.request_id: row for row in (*rows, *past)}
        most = [min(known[s.request_id].prefill_len, known[s.donor].cached_len) for s in shares]
        return tuple(replace(s, length=min(s.length + 1, m)) for s, m in zip(shares, most, strict=True)), waiting

    return share


@contextmanager
def prefix_of_another_row(engine: Engine) -> Iterator[None]:
    """The KV is that of a row that begins otherwise."""
    original = engine.layout.share  # type: ignore[attr-defined]

    def share(row: str, donor: str, length: int) -> None:
        first = engine._running[row].token_ids[0]
        others = [name for name, other in engine._running.items() if other.cached_len and other.token_ids[0] != first]
        original(row, others[0] if others else donor, length)

    with patch.object(engine.layout, "share", share):
        yield


def copied_one_late(original: Callable) -> Callable:
    return lambda cells, other, source, index: original(
        cells, other, source, (index + 1) % (cells.rows * cells.capacity)
    )


def realigned_by_one_too_many(original: Callable) -> Callable:
    return lambda *arguments: original(*arguments).roll(1)


@contextmanager
def not_realigned(engine: Engine) -> Iterator[None]:
    original = LeftPadded._move

    def move(layout: LeftPadded, pads: dict, filled: list, capacity: int) -> None:
        stays = layout is engine.layout and pads.keys() == layout._pads.keys()
        original(layout, dict(layout._pads) if stays else pads, filled, capacity)

    with patch.object(LeftPadded, "_move", move):
        yield


def parked_without_copying(original: Callable) -> Callable:
    def park(layout: LeftPadded, rows: list[str]) -> None:
        for row in rows:
            if layout._pooled[row]:
                layout._pooled[row] = layout._written[row]
        original(layout, rows)

    return park


def fed_another_token(original: Callable) -> Callable:
    """The draft goes on from another token than the committed one."""

    def pending(drafter: ModelDrafter, row: Any) -> Feed:
        feed = original(drafter, row)
        return replace(feed, tokens=(*feed.tokens[:-1], feed.tokens[-1] ^ 1))

    return pending


def draft_one_behind(original: Callable) -> Callable:
    """After full acceptance the draft feeds one token, where two are due."""

    def commit(drafter: ModelDrafter, accepted: dict[str, int]) -> None:
        behind = [name for name, fed in drafter._fed.items() if accepted.get(name, 0) > fed]
        original(drafter, accepted)
        for name in behind:
            drafter._cached[name] += 1

    return commit


def draft_positions(engine: Engine) -> AbstractContextManager[Any]:
    original = LM.forward

    def forward(lm: LM, ids: Tensor, position_ids: Tensor, kv: StepCache, columns: Tensor) -> Tensor:
        if not any(kv.cells is memory for memory in engine.layout.memories):
            position_ids = position_ids + 3 * (position_ids > 8)
        return original(lm, ids, position_ids, kv, columns)

    return patch.object(LM, "forward", forward)


def draft_chooses_second_best(engine: Engine) -> AbstractContextManager[Any]:
    from specproof.drafters import model as drafter_module

    def second(logits: Tensor, bans: Any = ()) -> Tensor:
        best = logits.topk(2).indices
        return torch.where(best[:, 0] % 5 == 0, best[:, 1], best[:, 0])

    return patch.object(drafter_module, "choose", second)


def finishes_twice(original: Callable) -> Callable:
    def commit(engine: Engine, *arguments: Any) -> Any:
        record = original(engine, *arguments)
        return replace(record, finished=record.finished * 2)

    return commit


def in_finishing_order(original: Callable) -> Callable:
    return lambda engine, requests: list(engine.stream(list(requests)))


def depends_on_neighbours(original: Callable) -> Callable:
    """The logits of each row take a share of those of the next one."""

    def forward(layout: Any, feeds: Any, device_ids: Any = None) -> Tensor:
        logits = original(layout, feeds, device_ids)
        return logits + 0.5 * logits.roll(1, 0)

    return forward
