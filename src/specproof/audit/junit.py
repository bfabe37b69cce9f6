"""The verdict as JUnit XML: a test case per row, so that a CI shows which row failed and why."""

from collections.abc import Mapping
from xml.etree.ElementTree import Element, SubElement, fromstring, indent, tostring

from specproof.audit.finding import RowVerdict
from specproof.audit.verdict import Verdict
from specproof.printable import printable

NOTHING_JUDGED = "no row could be judged: text only, or no output"


def junit_xml(verdict: Verdict) -> str:
    """faulty: failure; unexplained: error; unjudged: skipped. If all are, one more case is an error: CIs pass skips."""
    counts, nothing = verdict.counts, verdict.outcome == "unjudged"
    suite = Element(
        "testsuite",
        name="specproof audit trace",
        tests=str(len(verdict.rows) + nothing),
        failures=str(counts["faulty"]),
        errors=str(counts["unexplained"] + nothing),
        skipped=str(counts["unjudged"]),
    )
    for row in verdict.rows:
        case = SubElement(suite, "testcase", classname="trace", name=printable(row.id))
        tag = {"faulty": "failure", "unexplained": "error", "unjudged": "skipped"}.get(row.status)
        if tag is not None:
            kind = row.cls if row.error is None else "error"
            SubElement(case, tag, type=kind, message=printable(describe(row)))
    if nothing:
        case = SubElement(suite, "testcase", classname="trace", name="any row is judged")
        SubElement(case, "error", type="unjudged", message=NOTHING_JUDGED)
    indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(suite, encoding="unicode") + "\n"


def describe(row: RowVerdict) -> str:
    """A row's verdict in a line; a token's text as Python writes it."""
    parts = []
    if row.error is not None:
        parts.append(f"no output: {row.error}")
    if not row.confident:
        parts.append("text only: low confidence")
    if (found := row.finding) is not None:
        parts.append(
            f"token {found.index} is {_show(found.token, found.token_text)}, the target takes "
            f"{_show(found.choice, found.choice_text)}: margin {found.margin:.3g}, noise {found.noise:.3g}; {found.why}"
        )
        if found.detail:
            parts.append(found.detail + (f" (row {found.other_row})" if found.other_row is not None else ""))
    if row.termination is not None:
        parts.append(f"{row.termination.kind}: {row.termination.message}")
    return "; ".join(parts)


def _show(token: int, text: str | None) -> str:
    return str(token) if text is None else f"{token} {text!r}"


def junit_suites(verdicts: Mapping[str, Verdict]) -> str:
    """A suite for each verdict, by the name of what was audited."""
    root = Element("testsuites")
    for name, verdict in verdicts.items():
        suite = fromstring(junit_xml(verdict))
        suite.set("name", f"specproof audit {name}")
        for case in suite:
            case.set("classname", name)
        root.append(suite)
    return tostring(root, encoding="unicode") + "\n"
