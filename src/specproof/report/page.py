"""The verdict of `audit trace` as a page: one file, nothing fetched, readable without JavaScript.

Row ids, texts, paths and messages come from others: all of it is escaped, and control characters are shown.
"""

from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from specproof.printable import printable
from specproof.report.plots import margin_plot, moved, position_plot


def verdict_page(document: Mapping[str, Any]) -> str:
    """The page as HTML. document: what `audit trace --json` prints."""
    found = {row["number"]: row for row in document["findings"]}
    return _environment().get_template("verdict.html").render(
        document=document,
        rows=[(number, row, found.get(number)) for number, row in enumerate(document["each_row"])],
        margins=margin_plot(document),
        positions=position_plot(document),
    )  # fmt: skip


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("specproof.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"brief": _brief, "percent": _percent, "moved": moved, "ratio": _ratio}
    return environment


def _shown(value: object) -> object:
    """What the page shows of a value. Markup, text that the templates made, is a str of another type and stays."""
    if value is None:
        return ""
    return printable(value) if type(value) is str else value


def _brief(value: float | None) -> str:
    """Three digits, a dash where there is no number."""
    return "–" if value is None else f"{value:.3g}".replace("-", "−")


def _ratio(finding: Mapping[str, Any]) -> float | None:
    """The margin in units of the noise; None where there is none: all logits are 0."""
    return finding["margin"] / finding["noise"] if finding["noise"] else None


def _percent(fraction: float | None) -> str:
    return "–" if fraction is None else f"{100 * fraction:.1f} %"
