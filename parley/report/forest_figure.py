"""Forest plots: every site's estimate with its interval, meta-analyses and the pooled fit, a panel a coefficient."""

from __future__ import annotations

from math import exp, log, log10
from typing import TYPE_CHECKING

from parley.analyse.run import RATIOS, Analysis
from parley.analyse.sites import Coefficient, Heterogeneity
from parley.core.errors import InputError
from parley.report.style import FAINT, INK, PALETTE, clean, footnote, headline, new_figure, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACROSS = 3
_MOST = 12
"""Panels; coefficients beyond these are counted."""


def forest_figure(analysis: Analysis) -> Figure:
    """Up to three panels side by side."""
    if not analysis.heterogeneity:
        raise InputError("a forest plot needs the estimates of two sites or more; ask for sites.")
    shown = analysis.heterogeneity[:_MOST]
    across = min(len(shown), _ACROSS)
    down = -(-len(shown) // across)
    lines = len(analysis.sites) + 3
    result = new_figure(2.2 + 3.1 * across, 1.0 + down * (0.9 + 0.26 * lines), w_pad=0.08, h_pad=0.08)
    panels = result.subplots(down, across, squeeze=False, sharey=True)
    for number, axes in enumerate(panels.flat):
        if number < len(shown):
            _panel(axes, analysis, shown[number])
        else:
            axes.set_visible(False)
    headline(result, f"{analysis.model.capitalize()} regression by site: {shortened(analysis.title, 40)}", 13)
    left = len(analysis.heterogeneity) - len(shown)
    more = f"; {left} more coefficients are not drawn" if left else ""
    footnote(
        result, f"{100 * analysis.level:.4g}% intervals; sites without a mark have no estimates of their own{more}"
    )
    return result


def _panel(axes: Axes, analysis: Analysis, heterogeneity: Heterogeneity) -> None:
    ratio = RATIOS.get(analysis.model)
    rows: list[tuple[str, Coefficient | None]] = []
    for site in analysis.sites:
        rows.append((site.client, next((each for each in site.coefficients if each.name == heterogeneity.name), None)))
    rows += [
        ("fixed effects", heterogeneity.fixed),
        ("random effects", heterogeneity.random),
        ("pooled rows", analysis[heterogeneity.name]),
    ]
    for row_number, (_, row) in enumerate(rows):
        if row is None:
            continue
        colour, mark = (PALETTE[0], "s") if row_number < len(analysis.sites) else (PALETTE[1], "D")
        axes.hlines(-row_number, row.low, row.high, color=colour, linewidth=1.8)
        axes.plot(row.estimate, -row_number, mark, color=colour, markersize=5.5)
    if ratio:
        ticks = _ratios(*axes.get_xlim())
        axes.set_xticks([log(tick) for tick in ticks], [f"{tick:g}" for tick in ticks])
    axes.axvline(0, color=FAINT, linewidth=1, zorder=0)
    axes.axhline(0.5 - len(analysis.sites), color=FAINT, linewidth=0.6)
    axes.set_yticks([-row_number for row_number in range(len(rows))], [shortened(name) for name, _ in rows])
    axes.set_title(
        f"{shortened(heterogeneity.name, 30)}\nQ p = {heterogeneity.p:.2g}, I2 = {heterogeneity.i2:.0%}",
        color=INK,
        fontsize=10.5,
    )
    axes.set_xlabel(ratio or "coefficient", color=INK, fontsize=10)
    clean(axes, "x")


def _ratios(low: float, high: float) -> list[float]:
    """Round ratios between two logarithms."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    wide = high - low > log(4)
    locator = LogLocator(subs=(1, 2, 5)) if wide else MaxNLocator(4)
    inside = [float(tick) for tick in locator.tick_values(exp(low), exp(high)) if exp(low) <= tick <= exp(high)]
    return inside if high - low < log(100) else [tick for tick in inside if round(log10(tick), 9) % 1 == 0]
