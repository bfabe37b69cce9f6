"""The catalogue of deliberate faults, as data. An auditor is worth what it catches by name."""
# ruff: noqa: E501 - a table

from dataclasses import dataclass, replace

from specproof import engine as engine_module
from specproof.audit import plants
from specproof.drafters import ModelDrafter
from specproof.drafters import model as model_drafter
from specproof.engine import Engine
from specproof.kv import left_padded
from specproof.kv.cells import Cells
from specproof.kv.left_padded import LeftPadded
from specproof.kv.slots import Slots
from specproof.kv.slotted import Slotted
from specproof.schedulers import continuous


@dataclass(frozen=True, slots=True)
class Fault:
    """invariant: what it breaks. level: the least that shows it. methods: where it can happen. needs: the subject that
    shows it ("draft": a draft model, "self-draft", "window": a windowed model, "ties": equal logits, "text": stop strings,
    "prefix": prompts that begin alike).
    """

    summary: str
    invariant: str
    plant: plants.Plant
    level: str = "light"
    methods: tuple[str, ...] = ("specproof", "eqspec")
    needs: str = ""


LEFT = ("eqspec", "exspec", "rollback")
FLAT = ("specproof",)

FAULTS: dict[str, Fault] = {
    "positions-shared": Fault("all rows count on from the first one's position", "positions-contiguous", plants.positions(plants.shared_positions)),
    "positions-gap": Fault("the last token's position skips one", "positions-contiguous", plants.positions(plants.gap)),
    "positions-offset": Fault("positions start at 1", "positions-contiguous", plants.positions(lambda p: p + 1)),
    "mask-one-short": Fault("a query does not see its own cell", "mask-exact", plants.in_blocks(lambda b: replace(b, columns=(b.columns - 1).clamp_(min=0)))),
    "mask-one-long": Fault("a query sees the cell behind its own", "mask-exact", plants.in_blocks(plants.one_more_visible)),
    "mask-dropped": Fault("every query sees all cells, stale ones too", "mask-exact", plants.in_blocks(plants.everything_visible)),
    "pad-visible": Fault("padding is not masked", "mask-exact", plants.in_blocks(lambda b: replace(b, first=None)), methods=LEFT),
    "neighbour-visible": Fault("queries see the cells of another row", "mask-exact", plants.in_blocks(plants.neighbours_cells)),
    "window-ignored": Fault("a sliding window is not applied", "mask-exact", plants.windows(lambda w: None), needs="window"),
    "window-one-long": Fault("a sliding window is one too long", "mask-exact", plants.windows(lambda w: w + 1), needs="window"),
    "cells-shifted": Fault("KV is written one cell too late", "aligned", plants.in_forward(plants.cells_shifted)),
    "write-lost": Fault("the last token's KV goes to the cell before", "aligned", plants.in_forward(plants.last_write_lost)),
    "slots-swapped": Fault("two rows exchange their slots", "kv-matches", plants.patched(Slots, "slot", plants.slots_swapped), methods=FLAT),
    "realigned-by-one": Fault("realigning moves KV one cell too far", "kv-matches", plants.patched(left_padded, "_source", plants.realigned_by_one_too_many), methods=LEFT),
    "not-realigned": Fault("padding changes, KV stays", "kv-matches", plants.not_realigned, methods=("eqspec", "exspec")),
    "not-written-back": Fault("new cells do not reach the pool", "kv-matches", plants.patched(LeftPadded, "_park", plants.parked_without_copying), methods=("exspec",)),
    "prefix-too-long": Fault("a prefix is shared one token too far", "kv-matches", plants.patched(continuous, "share_prefixes", plants.shared_too_far), methods=FLAT, needs="prefix"),
    "prefix-of-another": Fault("a prefix is shared from the wrong row", "kv-matches", plants.prefix_of_another_row, methods=FLAT, needs="prefix"),
    "prefix-shifted": Fault("a shared prefix lands one cell too late", "kv-matches", plants.patched(Cells, "copy_from", plants.copied_one_late), methods=FLAT, needs="prefix"),
    "prefix-not-copied": Fault("a shared prefix is counted, its KV is not copied", "kv-matches", plants.patched(Slots, "share", lambda original: lambda *arguments: None), methods=FLAT, needs="prefix"),
    "ledger-bypassed": Fault("KV changes without a write", "kv-matches", plants.in_forward(plants.noise_behind_the_ledger), level="full"),
    "crop-too-few": Fault("a rejected draft's KV stays counted", "positions-contiguous", plants.patched(engine_module, "Feed", plants.starts_moved(1))),
    "crop-too-many": Fault("one committed cell is dropped, the pending token moves", "positions-contiguous", plants.patched(engine_module, "Feed", plants.starts_moved(-1))),
    "rejected-kept": Fault("the first rejected draft counts as accepted", "commitment", plants.patched(engine_module, "count_accepted", plants.accept_one_more)),
    "first-unchecked": Fault("the first draft is accepted unseen", "commitment", plants.patched(engine_module, "count_accepted", plants.accept_first)),
    "bonus-lost": Fault("full acceptance drops the last draft", "commitment", plants.patched(engine_module, "count_accepted", plants.no_bonus), needs="self-draft"),
    "bonus-from-draft": Fault("the bonus token is the draft's", "commitment", plants.patched(Engine, "_verify", plants.bonus_from_draft), needs="self-draft"),
    "choices-of-another-row": Fault("rows get each other's choices", "commitment", plants.patched(Engine, "_verify", plants.choices_of_another_row)),
    "last-maximum": Fault("ties go to the last id", "commitment", plants.patched(engine_module, "choose", plants.last_maximum), needs="ties"),
    "committed-changed": Fault("an emitted token is changed later", "commitment", lambda engine: plants.after_commit(engine, plants.rewrite)),
    "end-ignored-inside": Fault("an end id inside a block is overlooked", "termination", plants.patched(engine_module, "find_end", plants.only_the_last_token), needs="self-draft"),
    "limit-crossed": Fault("a row goes on past its limit", "termination", plants.patched(engine_module, "admit", plants.limit_off_by_one)),
    "wrong-reason": Fault("a stop is reported as the limit", "termination", plants.patched(engine_module, "find_end", plants.always_length)),
    "all-end-together": Fault("one row's end ends every row", "termination", plants.patched(engine_module, "find_end", plants.all_end_together)),
    "stop-text-kept": Fault("text goes on past the stop string", "termination", plants.patched(engine_module, "visible_text", plants.text_uncut), needs="text"),
    "draft-other-token": Fault("the draft goes on from a token that was not committed", "draft-in-sync", plants.patched(ModelDrafter, "_pending", plants.fed_another_token), needs="draft"),
    "draft-one-behind": Fault("after full acceptance the draft skips a token", "draft-in-sync", plants.patched(ModelDrafter, "commit", plants.draft_one_behind), needs="self-draft"),
    "draft-positions": Fault("the draft's positions have a gap", "positions-contiguous", plants.draft_positions, needs="draft"),
    "draft-prefix-too-long": Fault("the draft shares a prefix one token too far", "draft-in-sync", plants.patched(model_drafter, "share_prefixes", plants.shared_too_far), methods=FLAT, needs="prefix"),
    "self-draft-rejected": Fault("the draft chooses by another rule than the target", "draft-in-sync", plants.draft_chooses_second_best, needs="self-draft"),
    "finished-twice": Fault("a row finishes twice", "conserved", plants.patched(Engine, "_commit", plants.finishes_twice)),
    "finishing-order": Fault("outputs come in finishing order", "conserved", plants.patched(Engine, "generate", plants.in_finishing_order)),
    "neighbours-mixed": Fault("a row's logits depend on its neighbours", "row-isolated", plants.patched(Slotted, "forward", plants.depends_on_neighbours), level="full", methods=FLAT),
}  # fmt: skip
