"""A comparison as tables for the terminal, 80 columns wide with short names."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich import box
from rich.table import Table
from rich.text import Text

from parley.core.numbers import amount
from parley.core.text import printable
from parley.report.compare import MOST_PAIRS, Comparison, Line
from parley.report.pairs import SIGNIFICANT, Pair, about
from parley.study.seeds import TWO_SEEDS, SeedMean

MISSED = "not reached"
COSTS = ("round", "megabytes", "seconds")
BOLD = f"Bold: better than every other federated run by the paired tests (Holm, p < {SIGNIFICANT:g})"
NOT_BOLD = "Nothing is bold: none is better than every other federated run by the paired tests"
_MOST_WORST = 5
"""Groups whose worst client is named below the table."""


def table(comparison: Comparison) -> Table:
    """One row per group of runs, in the order of the comparison, intervals below means; the caption says the target."""
    words = comparison.metric_words
    drawn = Table(
        box=box.SIMPLE_HEAD,
        title=words[0].upper() + words[1:],
        title_justify="left",
        title_style="bold",
        caption=_below(comparison),
        caption_justify="left",
        caption_style="dim",
        padding=(0, 1, 0, 0),
    )
    lines = comparison.lines
    costs = {line.label: _costs(line) for line in lines if line.successes}
    widths = [
        max([least, *(len(row[i]) for rows in costs.values() for row in rows)]) for i, least in enumerate((6, 5, 4))
    ]
    seeds = any(len(line.group.runs) > 1 for line in lines)
    drawn.add_column("\nrun", overflow="fold", min_width=11)
    if seeds:
        drawn.add_column("\nseeds", justify="right", no_wrap=True)
    drawn.add_column("\nlast", justify="right", no_wrap=True)
    drawn.add_column("\nbest", justify="right", no_wrap=True)
    heading = f"to reach {comparison.target_text}\n{_row(('rounds', 'MB', 's'), widths)}"
    drawn.add_column(heading, justify="center", no_wrap=True)
    drawn.add_column("in all\ns", justify="right", no_wrap=True)
    channels = any(line.raw is not None for line in lines)
    if channels:
        drawn.add_column("up, MB\nsent of", justify="center", no_wrap=True)
    clients = any(line.quantiles for line in lines)
    if clients:
        drawn.add_column("clients\n10% 50% 90%", justify="center", no_wrap=True)
    missing = any(line.group.missing for line in lines)
    if missing:
        drawn.add_column("replies\nmissing", justify="right", no_wrap=True)
    for line in lines:
        row = [_name(line), *([Text(str(len(line.group.runs)))] if seeds else [])]
        row += [_last(comparison, line), _mean(comparison, line.best), _to_target(line, costs, widths)]
        row += [Text(amount(line.seconds))]
        row += [_sent(line)] if channels else []
        row += [_quantiles(line)] if clients else []
        row += [Text(f"{line.group.missing:,.4g}")] if missing else []
        drawn.add_row(*row, style="" if line.group.role == "federated" else "dim")
    return drawn


def plain_rows(comparison: Comparison) -> Iterator[tuple[object, ...]]:
    """The same without a terminal: what, seeds, last, best, costs to the target, and seconds in all."""
    for line in comparison.lines:
        last, best = (f"{comparison.show(mean.value)}{_half(comparison, mean)}" for mean in (line.last, line.best))
        costs = [None if (cost := line.cost(what)) is None else amount(cost.value) for what in COSTS]
        yield line.label, len(line.group.runs), last, best, *costs, amount(line.seconds)


def _half(comparison: Comparison, mean: SeedMean) -> str:
    return "" if math.isnan(mean.half) else f" ±{comparison.show(mean.half)}"


def pairs_table(comparison: Comparison) -> Table | Text | None:
    """The paired tests, nearest to certainty first, or why there are none; None where there is nothing to say."""
    pairs = comparison.pairs
    words = about(pairs, comparison.groups)
    several = sum(len(group.runs) > 1 for group in comparison.groups)
    if not pairs and comparison.against is None and several * (several - 1) / 2 > MOST_PAIRS:
        words = f"No paired tests of all {several * (several - 1) // 2:,} pairs; --against RUN tests each against one."
    if not words or several == 0:
        return None
    if not pairs:
        return Text(f"{words}\n", style="dim")
    drawn = Table(
        box=box.SIMPLE_HEAD,
        title=f"Differences of the last {comparison.metric.rpartition('/')[2]}, seed by seed",
        title_justify="left",
        title_style="bold",
        caption=words,
        caption_justify="left",
        caption_style="dim",
        padding=(0, 1, 0, 0),
    )
    drawn.add_column("pair", overflow="fold", min_width=20)
    for heading in ("seeds", "difference", "p", "Holm", "flips"):
        drawn.add_column(heading, justify="right", no_wrap=True)
    for pair in sorted(pairs, key=lambda pair: (math.isnan(pair.corrected), pair.corrected)):
        drawn.add_row(*_pair_cells(comparison, pair), style="bold" if pair.corrected < SIGNIFICANT else "")
    return drawn


def _pair_cells(comparison: Comparison, pair: Pair) -> list[Text]:
    points = comparison.metric.endswith("accuracy")
    value, half = (f"{100 * v:.2f}" if points else f"{v:.3g}" for v in (pair.difference.value, pair.difference.half))
    sign = "+" if pair.difference.value > 0 else ""
    return [
        Text(f"{printable(pair.first)} − {printable(pair.second)}"),
        Text(str(len(pair.seeds))),
        Text(f"{sign}{value} ±{half}{' points' if points else ''}"),
        *(Text(p_text(p)) for p in (pair.t, pair.corrected, pair.flips)),
    ]


def p_text(p: float) -> str:
    """A p-value with two digits, and none where it is tiny."""
    if math.isnan(p):
        return "–"
    return "<0.001" if p < 0.001 else f"{p:.3f}" if p < 0.0995 else f"{p:.2f}"


def _below(comparison: Comparison) -> Text:
    """What speaks against the comparison first, then what the columns mean."""
    words = Text()
    for sentence in comparison.warnings:
        words.append(f"{sentence}\n", style="not dim yellow")
    return words.append(caption(comparison))


def caption(comparison: Comparison) -> str:
    """What the columns mean, in a few phrases."""
    lines = comparison.lines
    target = "No target" if math.isnan(comparison.target) else f"Target {comparison.show(comparison.target)}"
    phrases = [f"{target}: {comparison.reason}"]
    if any(len(line.group.runs) > 1 for line in lines):
        phrases.append("Means over seeds; ±: half of a 95% interval (Student's t)")
    if comparison.winner is not None:
        phrases.append(BOLD)
    if any(len(line.group.runs) == 2 for line in lines):
        phrases.append(TWO_SEEDS)
    if any(0 < len(line.successes) < len(line.reached) for line in lines):
        phrases.append("Costs to the target are those of the seeds that reached it")
    sent = "MB: sent and received by all clients, as measured"
    federated = all(line.group.role == "federated" for line in lines)
    phrases.append(sent if federated else f"{sent} (– no model is sent)")
    phrases.append("s: training without evaluation")
    if any(line.raw is not None for line in lines):
        phrases.append("up: what clients sent, of what it would have been without channels")
    if any(line.quantiles for line in lines):
        what = comparison.metric.rpartition("/")[2]
        phrases.append(f"clients: quantiles of their {what} on their own held-out samples")
        worst = [(line.label, line.worst) for line in lines if line.worst is not None]
        if 0 < len(worst) <= _MOST_WORST:
            shown = ", ".join(f"{printable(label)} {comparison.show(value)}" for label, value in worst)
            phrases.append(f"The worst client: {shown}")
    if any(line.group.missing for line in lines):
        phrases.append("replies missing: those of a run that did not come or could not be used")
    if any(line.group.runs[0].status != "finished" for line in lines):
        phrases.append("Unfinished runs: as far as they have come")
    if comparison.trials:
        phrases.append(f"Without {comparison.trials} of parley tune's trials; name those to be compared")
    phrases += [f"{printable(line.label)} without {line.group.left_out}" for line in lines if line.group.unfinished]
    return ". ".join(phrases) + "."


def _costs(line: Line) -> list[tuple[str, str, str]]:
    """Means, and where there are several seeds half of their intervals."""
    costs = [cost for what in COSTS if (cost := line.cost(what)) is not None]
    several = len(line.successes) > 1
    rows = [tuple(amount(cost.value) for cost in costs)]
    rows += [tuple("" if math.isnan(cost.half) else f"±{amount(cost.half)}" for cost in costs)] if several else []
    shown = []
    for number, (rounds, megabytes, seconds) in enumerate(rows):
        whole = number == 0 and float(costs[0].value).is_integer()
        rounds = f"{int(costs[0].value):,}" if whole else rounds
        sent = megabytes if line.group.role == "federated" else "–" if number == 0 else ""
        shown.append((rounds, sent, seconds))
    return shown


def _to_target(line: Line, costs: dict[str, list[tuple[str, str, str]]], widths: list[int]) -> Text:
    if line.label not in costs:
        return Text(MISSED, style="yellow")
    text = Text("\n".join(_row(row, widths) for row in costs[line.label]))
    if len(line.successes) < len(line.reached):
        text.append(f"\n{len(line.successes)} of {len(line.reached)} reached it", style="yellow")
    return text


def _row(cells: tuple[str, str, str], widths: list[int]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))


def _name(line: Line) -> Text:
    name, group = Text(printable(line.label)), line.group
    if group.unfinished:
        name.append(f" ({line.group.status})", style="yellow")
    elif line.group.status != "finished":
        name.append(f" ({line.group.status}, {group.rounds} rounds)", style="yellow")
    return name


def _mean(comparison: Comparison, mean: SeedMean, style: str = "") -> Text:
    text = Text(comparison.show(mean.value), style=style)
    if not math.isnan(mean.half):
        text.append(f"\n±{comparison.show(mean.half)}", style="dim")
    return text


def _last(comparison: Comparison, line: Line) -> Text:
    """The final value, bold where it is significantly the best."""
    if lost := line.group.diverged(comparison.metric):
        several = len(line.group.runs) > 1
        return Text(f"{lost} of {len(line.group.runs)}\ndiverged" if several else "diverged", style="yellow")
    return _mean(comparison, line.last, "bold" if line.group is comparison.winner else "")


def _sent(line: Line) -> Text:
    return Text("–" if line.raw is None else f"{amount(line.up)} of {amount(line.raw)}")


def _quantiles(line: Line) -> Text:
    if line.quantiles is None:
        return Text("–")
    percent = line.metric.endswith("accuracy")
    return Text(" ".join(f"{100 * q:3.0f}" if percent else f"{q:.3g}" for q in line.quantiles))
