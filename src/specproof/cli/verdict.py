"""How verdicts reach the reader: as text, and as files. The same for every command that audits traces."""

from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from specproof.audit.compare import wilson
from specproof.audit.junit import describe, write_junit
from specproof.audit.verdict import Verdict

SHOWN = 20  # rows with findings that the text report lists


def write_reports(verdicts: Mapping[str, Verdict], junit: Path | None) -> None:
    """The files that were asked for. verdicts: by the name of what was audited. Raises ResultsError."""
    if junit is not None:
        write_junit(verdicts, junit)


def say_unjudged(verdict: Verdict, say: Callable[[str], None], of: str = "") -> None:
    """On stderr: how many rows the verdict is silent about, if any. of: what they are rows of."""
    unjudged = verdict.counts["unjudged"]
    if unjudged:
        say(f"{unjudged} of {len(verdict.rows)} rows{of} got no firm verdict (text only, or no output)")


def print_verdict(verdict: Verdict, console: Console, name: str = "") -> None:
    """The verdict as text. name: of what was audited, where there is more than one."""
    counts = ", ".join(f"{count} {status}" for status, count in verdict.counts.items() if count)
    passed = "PASS" if verdict.passed else "FAIL"
    console.print(f"{name and name + ': '}{passed}: {len(verdict.rows)} rows: {counts}", highlight=False)
    if (noise := verdict.noise) is not None:
        console.print(
            f"noise ({verdict.dtype}): {noise.threshold:.3g} logits, from {sum(map(len, noise.samples.values()))} "
            f"samples; {noise.near_ties} of {noise.positions} positions are near-ties",
            highlight=False,
        )
    if (floor := verdict.floor) is not None:
        console.print(
            f"plain against plain (batch 1 and {floor.batch_size}): {rate(floor.equal, floor.rows)} rows equal",
            highlight=False,
        )
    against = [row.against for row in verdict.rows if row.against is not None]
    if against:
        exact = rate(sum(row.exact for row in against), len(against))
        partial = rate(sum(row.matched for row in against), sum(row.length for row in against))
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
            table.add_row(escape(row.id), row.status, cls, escape(describe(row)))
        console.print(table)
    if len(told) > SHOWN:
        console.print(f"and {len(told) - SHOWN} more rows; --json has them all", highlight=False)


def rate(hits: int, trials: int) -> str:
    """With its denominator, in percent, and its interval."""
    interval = wilson(hits, trials)
    if interval is None:
        return "0 of 0"
    return f"{hits} of {trials} ({100 * hits / trials:.1f} %, {100 * interval[0]:.1f} to {100 * interval[1]:.1f})"
