"""A verdict as text, and what the reader must know of it."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from specproof.audit.compare import wilson
from specproof.audit.junit import describe
from specproof.audit.verdict import Verdict
from specproof.printable import printable

HEADLINES = {"pass": "PASS", "fail": "FAIL", "unjudged": "NOTHING JUDGED"}
SHOWN = 20  # rows with findings that are listed


def unjudged_notes(verdict: Verdict) -> list[str]:
    """What the reader must know of rows without a firm verdict."""
    unjudged = verdict.counts["unjudged"]
    if not unjudged:
        return []
    notes = [f"{unjudged} of {counted(len(verdict.rows), 'row')} got no firm verdict (text only, or no output)"]
    if verdict.outcome == "unjudged":
        notes.append("nothing could be judged, so this is no pass; give the engine's own token ids")
    return notes


def print_verdict(verdict: Verdict, console: Console, name: str = "") -> None:
    """The verdict as text. name: what was audited and a colon, where there is more than one verdict."""
    counts = ", ".join(f"{count} {status}" for status, count in verdict.counts.items() if count)
    console.print(f"{name}{HEADLINES[verdict.outcome]}: {counted(len(verdict.rows), 'row')}: {counts}", highlight=False)
    if (noise := verdict.noise) is not None:
        console.print(
            f"noise ({verdict.dtype}): {noise.threshold:.3g} logits, from {sum(map(len, noise.samples.values()))} "
            f"samples; {noise.near_ties} of {noise.positions} positions are near-ties",
            highlight=False,
        )
    if (floor := verdict.floor) is not None:
        console.print(
            f"plain against plain (batch 1 and {floor.batch_size}): "
            f"{shown_rate(floor.found.equal, floor.found.rows)} rows equal",
            highlight=False,
        )
    against = [row.against for row in verdict.rows if row.against is not None]
    if against:
        exact = shown_rate(sum(row.exact for row in against), len(against))
        partial = shown_rate(sum(row.matched for row in against), sum(row.length for row in against))
        rouge = sum(row.rouge_l for row in against) / len(against)
        console.print(
            f"against the reference: exact {exact} rows, partial {partial} tokens, ROUGE-L {rouge:.3f}",
            highlight=False,
        )
    told = [row for row in verdict.rows if row.finding or row.termination or row.error]
    if told:
        table = Table("row", "verdict", "class", "what was found")
        for row in told[:SHOWN]:
            cls = "" if row.error is not None else row.cls
            table.add_row(escape(printable(row.id)), row.status, cls, escape(printable(describe(row))))
        console.print(table)
    if len(told) > SHOWN:
        console.print(f"and {len(told) - SHOWN} more; --json has them all", highlight=False)


def counted(count: int, noun: str) -> str:
    """A number and its noun."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def shown_rate(hits: int, trials: int) -> str:
    """With its denominator, in percent, and its interval."""
    interval = wilson(hits, trials)
    if interval is None:
        return "0 of 0"
    return f"{hits} of {trials} ({100 * hits / trials:.1f} %, {100 * interval[0]:.1f} to {100 * interval[1]:.1f})"
