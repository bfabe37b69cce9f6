"""The progress bar of a job, and its closing table."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from specproof.statistics import Statistics
from specproof.step import StepRecord


class RowProgress:
    """An observer that shows rows, tokens per second, acceptance and time left, if stderr is a terminal to itself."""

    def __init__(
        self, statistics: Statistics, num_done: Callable[[], int], num_rows: int, results_on_stdout: bool
    ) -> None:
        """num_done: rows whose results are written, refused ones too."""
        self._statistics, self._num_done = statistics, num_done
        self._bar = _bar(hidden=results_on_stdout and sys.stdout.isatty())
        self._task = self._bar.add_task("", total=num_rows, completed=num_done(), rates="")

    def __enter__(self) -> "RowProgress":
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def __call__(self, record: StepRecord) -> None:
        elapsed, acceptance = self._bar.tasks[0].elapsed, self._statistics.acceptance_rate
        rates = f", {self._statistics.emitted / elapsed:.1f} tokens/s" if elapsed else ""
        if acceptance is not None:
            rates += f", {acceptance:.0%} of drafts accepted"
        self._bar.update(self._task, completed=self._num_done() + len(record.finished), rates=rates)


@contextmanager
def progress(name: str, total: int, unit: str = "rows") -> Iterator[Callable[[], None]]:
    """Yields what is called for each of `total` parts that is done. name: of what is being done."""
    with _bar(unit=unit) as bar:
        task = bar.add_task(name, total=total, rates="")
        yield lambda: bar.advance(task)


def _bar(hidden: bool = False, unit: str = "rows") -> Progress:
    """Shown if stderr is a terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit + "{task.fields[rates]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=hidden or not console.is_terminal,
    )


def print_summary(summary: dict[str, Any], console: Console) -> None:
    """The closing table."""
    table = Table(title="specproof generate", show_header=False)
    rows, steps = f"{summary['rows']}", f"{summary['engine_steps']}"
    reasons = [f"{count} {reason}" for reason, count in summary["finish_reasons"].items() if count]
    if summary["resumed_rows"]:
        reasons.append(f"{summary['resumed_rows']} by earlier runs")
    table.add_row("rows", f"{rows} ({', '.join(reasons)})" if reasons else rows)
    table.add_row("tokens", str(summary["tokens"]))
    if summary["resumed_rows"]:
        table.add_row("tokens of this run", str(summary["new_tokens"]))
    if summary["shared"]:
        prompts = f"{summary['prefilled']} computed, {summary['shared']} taken over from other rows"
        table.add_row("prompt tokens", prompts)
    table.add_row("seconds", f"{summary['seconds']:.2f}")
    table.add_row("tokens per second", _number(summary["tokens_per_second"], ".1f"))
    acceptance = _number(summary["acceptance_rate"], ".1%")
    table.add_row("acceptance rate", f"{acceptance} ({summary['accepted']} of {summary['drafted']} drafted tokens)")
    table.add_row("mean accepted length", _number(summary["mean_accepted_length"], ".2f"))
    table.add_row(
        "engine steps", f"{steps} ({summary['grouped_steps']} grouped, {summary['realigned_steps']} realigned)"
    )
    table.add_row("places refilled", str(summary["refilled"]))
    console.print(table)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
