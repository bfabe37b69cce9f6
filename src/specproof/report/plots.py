"""The two plots of an audit: each finding's margin against the noise, and where in its row each divergence lies."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specproof.report.axis import CountAxis, LogAxis

MOST_LENGTHS = 60  # rows whose length is drawn; more of them would be a grey field


@dataclass(frozen=True, slots=True)
class Point:
    """x, y: fractions of the axes, y upwards. number: of the row, whose finding the point stands for."""

    x: float
    y: float
    number: int
    status: str
    label: str


@dataclass(frozen=True, slots=True)
class MarginPlot:
    """x: the most the margin moves at this very place, in any control. y: the margin. Units: logits.

    noise, large: where the threshold and LARGE times it lie on y. equal: (x, y) of both ends of "margin = move".
    """

    x: LogAxis
    y: LogAxis
    noise: float
    large: float
    equal: tuple[tuple[float, float], tuple[float, float]]
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class PositionPlot:
    """x: index of the output token. y: number of the row, downwards. lengths: (y, x of the row's end).

    points: the gravest divergence of a row. firsts: (x, y) of the first one, where that is another.
    """

    x: CountAxis
    y: CountAxis
    points: tuple[Point, ...]
    firsts: tuple[tuple[float, float], ...]
    lengths: tuple[tuple[float, float], ...]


def margin_plot(document: Mapping[str, Any]) -> MarginPlot | None:
    """None where no row diverges."""
    rows = [row for row in document["findings"] if row["finding"]]
    if not rows:
        return None
    noise = document["noise"]
    moves = [moved(row["finding"]) for row in rows]
    x = LogAxis.around(moves)
    y = LogAxis.around([*(row["finding"]["margin"] for row in rows), noise["threshold"], noise["large"]])
    low, high = 10.0 ** max(x.low, y.low), 10.0 ** min(x.high, y.high)
    points = tuple(
        Point(x.at(move), y.at(row["finding"]["margin"]), row["number"], row["status"], _margin_label(row, move))
        for row, move in zip(rows, moves, strict=True)
    )
    equal = (x.at(low), y.at(low)), (x.at(high), y.at(high))
    return MarginPlot(x, y, y.at(noise["threshold"]), y.at(noise["large"]), equal, points)


def position_plot(document: Mapping[str, Any]) -> PositionPlot | None:
    """None where no row diverges."""
    rows = [row for row in document["findings"] if row["finding"]]
    if not rows:
        return None
    x = CountAxis(max(row["tokens"] for row in document["each_row"]))
    y = CountAxis(document["rows"] - 1)
    points = tuple(
        Point(
            x.at(row["finding"]["index"]), 1 - y.at(row["number"]), row["number"], row["status"],
            f"{row['id']}: {row['status']}, token {row['finding']['index']} of {row['tokens']}",
        )
        for row in rows
    )  # fmt: skip
    drawn = document["each_row"] if document["rows"] <= MOST_LENGTHS else []
    lengths = tuple((1 - y.at(number), x.at(row["tokens"])) for number, row in enumerate(drawn))
    firsts = tuple(
        (x.at(row["finding"]["first"]), 1 - y.at(row["number"]))
        for row in rows
        if row["finding"]["first"] != row["finding"]["index"]
    )
    return PositionPlot(x, y, points, firsts, lengths)


def moved(finding: Mapping[str, Any]) -> float:
    """The most that the margin moves at this very place, in any control; 0 where none was run."""
    margins = [margin for margin in finding["controls"].values() if margin is not None]
    return max((abs(margin - finding["margin"]) for margin in margins), default=0.0)


def _margin_label(row: Mapping[str, Any], move: float) -> str:
    finding = row["finding"]
    return f"{row['id']}: {row['status']}, {finding['class']}, margin {finding['margin']:.3g}, moves by {move:.3g}"
