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


def forest_figure(found: Analysis) -> Figure:
    """Up to three panels side by side."""
    if not found.heterogeneity:
        raise InputError("a forest plot needs the estimates of two sites or more; ask for sites.")
    shown = found.heterogeneity[:_MOST]
    across = min(len(shown), _ACROSS)
    down = -(-len(shown) // across)
    lines = len(found.sites) + 3
    result = new_figure(2.2 + 3.1 * across, 1.0 + down * (0.9 + 0.26 * lines), w_pad=0.08, h_pad=0.08)
    panels = result.subplots(down, across, squeeze=False, sharey=True)
    for number, axes in enumerate(panels.flat):
        if number < len(shown):
            _panel(axes, found, shown[number])
        else:
            axes.set_visible(False)
    headline(result, f"{found.model.capitalize()} regression by site: {shortened(found.title, 40)}", 13)
    left = len(found.heterogeneity) - len(shown)
    more = f"; {left} more coefficients are not drawn" if left else ""
    footnote(result, f"{100 * found.level:.4g}% intervals; sites without a mark have no estimates of their own{more}")
    return result


def _panel(axes: Axes, found: Analysis, one: Heterogeneity) -> None:
    ratio = RATIOS.get(found.model)
    rows: list[tuple[str, Coefficient | None]] = []
    for site in found.sites:
        rows.append((site.client, next((each for each in site.coefficients if each.name == one.name), None)))
    rows += [("fixed effects", one.fixed), ("random effects", one.random), ("pooled rows", found[one.name])]
    for place, (_, row) in enumerate(rows):
        if row is None:
            continue
        colour, mark = (PALETTE[0], "s") if place < len(found.sites) else (PALETTE[1], "D")
        axes.hlines(-place, row.low, row.high, color=colour, linewidth=1.8)
        axes.plot(row.estimate, -place, mark, color=colour, markersize=5.5)
    if ratio:
        ticks = _ratios(*axes.get_xlim())
        axes.set_xticks([log(tick) for tick in ticks], [f"{tick:g}" for tick in ticks])
    axes.axvline(0, color=FAINT, linewidth=1, zorder=0)
    axes.axhline(0.5 - len(found.sites), color=FAINT, linewidth=0.6)
    axes.set_yticks([-place for place in range(len(rows))], [shortened(name) for name, _ in rows])
    axes.set_title(f"{shortened(one.name, 30)}\nQ p = {one.p:.2g}, I2 = {one.i2:.0%}", color=INK, fontsize=10.5)
    axes.set_xlabel(ratio or "coefficient", color=INK, fontsize=10)
    clean(axes, "x")


def _ratios(low: float, high: float) -> list[float]:
    """Round ratios between two logarithms."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    wide = high - low > log(4)
    locator = LogLocator(subs=(1, 2, 5)) if wide else MaxNLocator(4)
    inside = [float(tick) for tick in locator.tick_values(exp(low), exp(high)) if exp(low) <= tick <= exp(high)]
    return inside if high - low < log(100) else [tick for tick in inside if round(log10(tick), 9) % 1 == 0]
