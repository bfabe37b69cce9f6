"""docs/invariants.md, from the catalogues: `python -m specproof.audit.document > docs/invariants.md`."""

from specproof.audit.faults import FAULTS
from specproof.audit.invariants import INVARIANTS

_HEAD = """# Invariants and the faults that break them

Generated from `src/specproof/audit/invariants.py` and `faults.py`; a test holds it current.

`specproof audit engine` checks the invariants at every step of a run, from what the models are really given: ids,
position ids, cells, and the masks that attention used, read by a hook on the model. The truth they are compared with is
kept apart from the engine, from the requests and the emitted tokens alone. Level light compares integers only. A ledger
beside the cache holds, for each cell, which request, position and token wrote it, and is moved whenever the cells are.
A cell that is copied with a shared prefix changes hands, if it was the donor's; its position and token stay.
"""

_FAULTS = """
## Faults

`specproof audit faults` plants each of these in the engine and prints what caught it. Caught by name: the fault's own
invariant is among those violated in the first step that shows anything.
"""


def invariants_page() -> str:
    """The page as Markdown."""
    lines = [_HEAD, "| | name | statement | level |", "|---|---|---|---|"]
    lines += [f"| {i.number} | `{name}` | {i.statement} | {i.level} |" for name, i in INVARIANTS.items()]
    lines += [_FAULTS, "| fault | what goes wrong | breaks | level | in |", "|---|---|---|---|---|"]
    lines += [
        f"| `{name}` | {f.summary} | `{f.invariant}` | {f.level} | {', '.join(f.methods)} |"
        for name, f in FAULTS.items()
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(invariants_page(), end="")
