"""What one query sees must be one sequence: no padding, positions without a gap, each KV computed on those before it.

Where it is not, the rules below say whether the mask, the positions or the KV is to blame. known: the cells that the
query sees but for its own, by position. hidden: the cells of its row that it does not see.
"""

from collections.abc import Sequence
from itertools import pairwise

from specproof.audit.cells import START, Cell
from specproof.audit.target_choices import Found, TargetChoices


def padding(cell: Cell, known: Sequence[Cell], target: TargetChoices) -> Found | None:
    """Nothing that was hidden from itself, or never written, is visible."""
    filler = next((c for c in known if not c.live), None)
    if filler is None:
        return None
    live = [c for c in known if c.live]
    if live and cell.position == len(known) and filler.step < cell.step:
        # The mask counts the padding as content. If some of the row is gone besides, KV has not moved with the mask.
        newest_gone = target.refused(live[-1].context, cell.token)
        if newest_gone or any(b.position != a.position + 1 for a, b in pairwise(live)):
            message = f"padding lies where position {cell.position} needs content of the row, which is gone"
            return "kv-matches", list(range(len(known))), [c.position for c in known], message
    what = "a column that was never written" if filler.step < 0 else f"padding (token {filler.token})"
    return "mask-exact", "hidden", "visible", f"{what} is visible at position {cell.position}"


def gap(
    cell: Cell, known: Sequence[Cell], hidden: Sequence[Cell], target: TargetChoices, prefill: bool
) -> Found | None:
    """Positions follow one another. prefill: the cache was empty."""
    taken = [c.position for c in known]
    full = [*taken, cell.position]
    i = next((i for i in range(1, len(full)) if full[i] != full[i - 1] + 1), None)
    if i is None:
        return None
    expected = full[i - 1] + 1
    if prefill and full[i] == full[i - 1]:  # the usual way to write positions of padding
        message = f"its position ids make a token padding (position {full[i]} twice), but it is visible"
        return "mask-exact", "hidden", "visible", message
    if cell.position == len(known):  # mask and positions agree with each other: what lies there is wrong
        message = f"the KV visible at position {cell.position} is not that of the positions before it"
        return "kv-matches", list(range(len(known))), taken, message
    rejected = next((c for c in known if target.rejected(c)), None)
    if rejected is not None:
        message = f"a rejected token (position {rejected.position}) is visible at position {cell.position}"
        return "mask-exact", "hidden", rejected.token, message
    context = known[i - 1].context
    if any(c.live and c.position == expected and c.before == context and not target.rejected(c) for c in hidden):
        return "mask-exact", "visible", "hidden", f"the token at position {expected} is hidden"
    if i < len(known):
        return "kv-matches", expected, full[i], "positions of the cached KV are not contiguous"
    kind = "a position that is taken, or one too low" if full[i] < expected else "a gap"
    return "positions-contiguous", expected, full[i], f"position ids: {kind}, behind position {expected - 1}"


def beginning(cell: Cell, known: Sequence[Cell], hidden: Sequence[Cell], absolute: bool) -> Found | None:
    """The row is seen from its first token on; for positions that are not rotary, this is at zero."""
    first = (known or [cell])[0]
    if not first.position:
        return None
    if any(c.live and c.position == first.position - 1 and c.context == first.before for c in hidden):
        return "mask-exact", "visible", "hidden", f"the token at position {first.position - 1} is hidden"
    if absolute and first.before == START:
        return "positions-contiguous", 0, first.position, "position ids do not begin at zero"
    return None


def contexts(known: Sequence[Cell], start: int) -> Found | None:
    """Each KV was computed by a query that saw just the tokens before it. start: the context before the first."""
    context = start
    for cell in known:
        if cell.before != context:
            where = f"position {cell.position}, written at step {cell.step} in row {cell.row}"
            return "kv-matches", "computed on the tokens before it", "computed on others", f"KV at {where}"
        context = cell.context
    return None
