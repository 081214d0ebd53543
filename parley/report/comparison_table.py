"""A comparison as a table for the terminal, 80 columns wide with short names."""

from __future__ import annotations

import math

from rich import box
from rich.table import Table
from rich.text import Text

from parley.core.text import printable
from parley.report.compare import Comparison, Line

MISSED = "not reached"


def table(comparison: Comparison) -> Table:
    """One row per run, in the order of the comparison; the caption says what the target is."""
    words = comparison.metric_words
    drawn = Table(
        box=box.SIMPLE_HEAD, title=words[0].upper() + words[1:], title_justify="left", title_style="bold",
        caption=caption(comparison), caption_justify="left", caption_style="dim", padding=(0, 1, 0, 0),
    )  # fmt: skip
    lines = comparison.lines
    costs = {line.run.label: _costs(line) for line in lines if line.reached is not None}
    widths = [max([least, *(len(cost[i]) for cost in costs.values())]) for i, least in enumerate((6, 5, 4))]
    drawn.add_column("\nrun", overflow="fold", min_width=11)
    drawn.add_column("\nlast", justify="right", no_wrap=True)
    drawn.add_column("\nbest", justify="right", no_wrap=True)
    heading = f"to reach {comparison.show(comparison.target)}\n{_row(('rounds', 'MB', 's'), widths)}"
    drawn.add_column(heading, justify="center", no_wrap=True)
    drawn.add_column("in all\ns", justify="right", no_wrap=True)
    channels = any(line.raw is not None for line in lines)
    if channels:
        drawn.add_column("up, MB\nsent of", justify="center", no_wrap=True)
    clients = any(line.quantiles for line in lines)
    if clients:
        drawn.add_column("clients\n10% 50% 90%", justify="center", no_wrap=True)
    failures = any(line.run.failures for line in lines)
    if failures:
        drawn.add_column("\nfailed", justify="right", no_wrap=True)
    for line in lines:
        cost = costs.get(line.run.label)
        row = [_name(line), _last(comparison, line), Text(comparison.show(line.best))]
        row += [Text(_row(cost, widths)) if cost else Text(MISSED, style="yellow"), Text(amount(line.seconds))]
        row += [_sent(line)] if channels else []
        row += [_quantiles(line)] if clients else []
        row += [Text(f"{line.run.failures:,}")] if failures else []
        drawn.add_row(*row, style="" if line.run.role == "federated" else "dim")
    return drawn


def caption(comparison: Comparison) -> str:
    """What the columns mean, in a few phrases."""
    lines = comparison.lines
    target = "No target" if math.isnan(comparison.target) else f"Target {comparison.show(comparison.target)}"
    phrases = [f"{target}: {comparison.reason}"]
    sent = "MB: sent and received by all clients, as measured"
    phrases.append(sent if all(line.run.role == "federated" for line in lines) else f"{sent} (– no model is sent)")
    phrases.append("s: training without evaluation")
    if any(line.raw is not None for line in lines):
        phrases.append("up: what clients sent, of what it would have been without channels")
    if any(line.quantiles for line in lines):
        phrases.append("clients: quantiles of their accuracy on their own held-out samples")
    if any(line.run.failures for line in lines):
        phrases.append("failed: replies that did not come or could not be used")
    return ". ".join(phrases) + "."


def amount(value: float) -> str:
    """A quantity with about three digits: 0.42, 8.31, 37.2, 1,250."""
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def _costs(line: Line) -> tuple[str, str, str]:
    reached = line.reached
    assert reached is not None
    megabytes = amount(reached.megabytes) if line.run.role == "federated" else "–"
    return f"{reached.round:,}", megabytes, amount(reached.seconds)


def _row(cells: tuple[str, str, str], widths: list[int]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))


def _name(line: Line) -> Text:
    name = Text(printable(line.run.label))
    if line.run.status not in ("finished", "running"):
        name.append(f" ({line.run.status})", style="yellow")
    return name


def _last(comparison: Comparison, line: Line) -> Text:
    """The final value, bold where no federated run ended better."""
    finals = [other.last for other in comparison.lines if other.run.role == "federated"]
    top = (min if comparison.lower_is_better else max)(finals, default=line.last)
    return Text(comparison.show(line.last), style="bold" if line.last == top else "")


def _sent(line: Line) -> Text:
    return Text("–" if line.raw is None else f"{amount(line.up)} of {amount(line.raw)}")


def _quantiles(line: Line) -> Text:
    if line.quantiles is None:
        return Text("–")
    return Text(" ".join(f"{100 * q:3.0f}" for q in line.quantiles))
