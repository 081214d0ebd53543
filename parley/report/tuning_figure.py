"""What a search has found: scores in the order of trials with the best so far, and scores against each setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from parley.report.style import FAINT, INK, Stroke, clean, footnote, new_figure, panel, shortened, strokes
from parley.tuning.search import SearchResult, TrialResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_SETTINGS = 5


def tuning_figure(results: Sequence[SearchResult]) -> Figure:
    """One panel of trials, and one for each setting that was searched (at most five)."""
    from matplotlib.ticker import MaxNLocator

    paths = list(dict.fromkeys(path for result in results for path in result.candidate.spaces))[:_MOST_SETTINGS]
    figure = new_figure(4.6 * (1 + len(paths)), 4.4, 0.1, 0.08)
    first, *others = np.atleast_1d(figure.subplots(1, 1 + len(paths), sharey=True)).tolist()
    drawn = list(zip(results, strokes(["federated"] * len(results)), strict=True))
    for result, stroke in drawn:
        _order(first, result, stroke)
    metric = results[0].candidate.metric
    panel(first, "in the order of trials", "trial")
    first.set_ylabel(metric, color=INK, fontsize=10.5)
    for axes, path in zip(others, paths, strict=True):
        for result, stroke in drawn:
            _setting(axes, result, path, stroke)
        panel(axes, path, path.rpartition(".")[2])
    for axes in (first, *others):
        clean(axes)
        axes.minorticks_off()
        if metric.endswith("accuracy"):
            axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    first.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    floor = _keep_in_sight(first, results)
    if floor is not None:
        for result, stroke in drawn:
            _below(first, others, paths, result, stroke, floor)
    handles, labels = first.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=4, frameon=False, fontsize=10, labelcolor=INK)
    tuning = results[0].candidate.tuning
    lost = sum(item.score is None for result in results for item in result.trials)
    pruned = sum(item.pruned for result in results for item in result.trials)
    words = f"{results[0].candidate.trials} trials each, sampler {tuning.sampler} (seed {tuning.sampler_seed})"
    words += f", pruner {tuning.pruner}; hollow: stopped early" if pruned else ""
    footnote(figure, words + (f"; crosses: {lost} diverged" if lost else "") + ". Large: the best of its method.")
    return figure


def _known(result: SearchResult) -> list[TrialResult]:
    return [item for item in result.trials if item.score is not None]


def _scores(items: Sequence[TrialResult]) -> list[float]:
    return [item.score for item in items if item.score is not None]


def _order(axes: Axes, result: SearchResult, stroke: Stroke) -> None:
    known = _known(result)
    whole = [item for item in known if not item.pruned]
    best = (
        (np.minimum if result.candidate.smaller else np.maximum).accumulate(_scores(whole)) if whole else np.array([])
    )
    label = shortened(result.candidate.method)
    numbers = [number for number, item in enumerate(result.trials, 1) if item in whole]
    axes.step(numbers, best, where="post", color=stroke.colour, linewidth=1.8, label=label)
    numbered = {id(item): number for number, item in enumerate(result.trials, 1)}
    _dots(axes, [numbered[id(item)] for item in known], known, stroke, result)
    _crosses(axes, [numbered[id(item)] for item in result.trials if item.score is None], stroke)


def _setting(axes: Axes, result: SearchResult, path: str, stroke: Stroke) -> None:
    if path not in result.candidate.spaces:
        return
    known = _known(result)
    values = [item.settings[path] for item in result.trials]
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if not numbers:
        _dots(axes, [str(item.settings[path]) for item in known], known, stroke, result)
        return
    if min(values) > 0 and max(values) >= 8 * min(values):
        axes.set_xscale("log", base=2 if all(np.log2(value).is_integer() for value in values) else 10)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    _dots(axes, [item.settings[path] for item in known], known, stroke, result)
    _crosses(axes, [item.settings[path] for item in result.trials if item.score is None], stroke)


def _dots(axes: Axes, x: Sequence[Any], items: Sequence[TrialResult], stroke: Stroke, result: SearchResult) -> None:
    for x_value, item, score in zip(x, items, _scores(items), strict=True):
        best = item is result.best or item == result.best
        axes.plot(
            [x_value],
            [score],
            "o",
            color=stroke.colour,
            markersize=9 if best else 5,
            fillstyle="none" if item.pruned else "full",
            alpha=1.0 if best else 0.65,
        )


def _crosses(axes: Axes, x: Sequence[Any], stroke: Stroke) -> None:
    """At the foot of the panel: there is no score to draw them at."""
    if x:
        axes.plot(x, [0.02] * len(x), "x", color=stroke.colour, transform=axes.get_xaxis_transform(), markersize=6)


def _below(
    first: Axes, others: Sequence[Axes], paths: Sequence[str], result: SearchResult, stroke: Stroke, floor: float
) -> None:
    """Scores out of sight, at the foot of every panel, pointing to where they are."""
    mark = "^" if result.candidate.smaller else "v"
    gone = [
        (number, item)
        for number, item in enumerate(result.trials, 1)
        if item.score is not None and (item.score > floor if result.candidate.smaller else item.score < floor)
    ]
    at = 0.97 if result.candidate.smaller else 0.03
    columns: list[tuple[Axes, list[Any]]] = [(first, [number for number, _ in gone])]
    columns += [
        (axes, [item.settings[path] for _, item in gone])
        for axes, path in zip(others, paths, strict=True)
        if path in result.candidate.spaces
    ]
    for axes, x in columns:
        x = [value if isinstance(value, int | float) and not isinstance(value, bool) else str(value) for value in x]
        axes.plot(
            x,
            [at] * len(x),
            mark,
            color=stroke.colour,
            transform=axes.get_xaxis_transform(),
            markersize=7,
            fillstyle="none",
            clip_on=False,
        )


def _keep_in_sight(axes: Axes, results: Sequence[SearchResult]) -> float | None:
    """A few hopeless scores must not press all others into a line: those beyond three spreads of the better half go.

    Gives the worst score in sight, None where all are.
    """
    scores = np.array([score for result in results for score in _scores(_known(result))])
    if len(scores) < 8:
        return None
    sign = -1.0 if results[0].candidate.smaller else 1.0
    ordered = np.sort(sign * scores)
    top, middle = ordered[-1], ordered[len(ordered) // 2]
    floor = top - 4 * max(top - middle, 1e-12)
    hidden = int((ordered < floor).sum())
    if hidden:
        ends = sorted((sign * floor, sign * (top + 0.1 * (top - floor))))
        axes.set_ylim(*ends)
        axes.annotate(
            f"{hidden} worse out of sight (triangles)",
            (0.99, 1.01),
            xycoords="axes fraction",
            ha="right",
            fontsize=8.5,
            color=FAINT,
        )
        return float(sign * floor)
    return None
