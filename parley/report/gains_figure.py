"""Every client's gain with its interval, sorted, coloured by what follows; the sample sizes beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parley.advise.gain.result import ClientGain, Decision, Gains
from parley.report.style import FAINT, INK, PALETTE, clean, new_figure, panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS: dict[Decision, str] = {"join": PALETTE[2], "stay alone": PALETTE[1], "undecided": "#8a97a3"}
_NAMED = 60
"""Clients up to which each has its name on the axis."""
_WIDEST = 30.0
"""Gains are drawn up to this, and down to one over it."""
_TICKS = (
    (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0),
    (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0),
    (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0),
)
"""For narrow, medium and wide ranges."""


def gain_figure(gains: Gains) -> Figure:
    """Clients from the least gain to the largest, bottom to top; 9 inches wide, as high as the clients need."""
    drawn = _ordered(gains)
    height = min(max(2.2 + 0.24 * len(drawn), 3.6), 2.2 + 0.24 * _NAMED)
    result = new_figure(9, height, 0.1, 0.08)
    left, right = result.subplots(1, 2, sharey=True, width_ratios=(4, 1))
    draw_gains(left, gains, thin=len(drawn) > _NAMED)
    _sizes(right, drawn)
    left.set_ylim(-0.8, max(len(drawn), 1) - 0.2)
    few = gains.count("too few samples")
    if few:
        result.supxlabel(
            f"Not shown: {few} client{'s' * (few != 1)} with too few samples", color=FAINT, fontsize=9.5, ha="center"
        )
    return result


def _ordered(gains: Gains) -> list[ClientGain]:
    return sorted(
        (client for client in gains.clients if np.isfinite(client.gain)),
        key=lambda client: (client.gain, client.client),
    )


def draw_gains(axes: Axes, gains: Gains, *, thin: bool) -> None:
    """The gains with their intervals, least first; `thin` leaves out the clients' names."""
    drawn = _ordered(gains)
    for decision, colour in _COLOURS.items():
        positions = [position for position, client in enumerate(drawn) if client.decision == decision]
        group = [drawn[position] for position in positions]
        low, high, middle = (
            np.clip([getattr(client, name) for client in group], 1 / _WIDEST, _WIDEST)
            for name in ("low", "high", "gain")
        )
        axes.hlines(positions, low, high, color=colour, linewidth=1.1 if thin else 2.4, alpha=0.65)
        axes.plot(
            middle,
            positions,
            "o",
            color=colour,
            markersize=3.5 if thin else 7,
            markeredgecolor="white",
            markeredgewidth=0.4 if thin else 1.0,
            zorder=3,
            label=f"{decision} ({len(group)})",
        )
    axes.axvline(1, color=INK, linewidth=1.2, zorder=1)
    panel(axes, "Gain by joining", f"gain: own error / federated error ({gains.measure}), {gains.level:.0%} intervals")
    axes.set_xscale("log")
    _ticks(axes, drawn)
    clean(axes, "x")
    axes.minorticks_off()
    if thin:
        axes.set_yticks([])
        axes.set_ylabel(f"{len(drawn)} clients, least gain first", color=INK, fontsize=10.5)
    else:
        axes.set_yticks(range(len(drawn)), [_short(client.client) for client in drawn])
    axes.legend(
        frameon=False,
        fontsize=10,
        labelcolor=INK,
        ncols=3,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        borderaxespad=2.4,
        handletextpad=0.2,
        columnspacing=1.2,
        reverse=False,
    )


def _ticks(axes: Axes, drawn: list[ClientGain]) -> None:
    ends = [value for client in drawn for value in (client.low, client.high, client.gain)] + [0.9, 1.1]
    inside = np.clip(ends, 1 / _WIDEST, _WIDEST)
    low, high = float(inside.min()) / 1.08, float(inside.max()) * 1.08
    axes.set_xlim(low, high)
    steps = _TICKS[0] if high / low < 3 else _TICKS[1] if high / low < 15 else _TICKS[2]
    ticks = [tick for tick in steps if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])


def _sizes(axes: Axes, drawn: list[ClientGain]) -> None:
    samples = [client.samples for client in drawn]
    thin = len(drawn) > _NAMED
    axes.barh(range(len(drawn)), samples, height=0.9 if thin else 0.62, color="#c3ccd5")
    if not thin:
        for position, count in enumerate(samples):
            axes.annotate(
                f"{count:,}",
                (count, position),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                color=INK,
                fontsize=9,
            )
    axes.set_xlim(0, max(samples, default=1) * 1.3)
    panel(axes, "Samples", "per client")
    clean(axes, "x")
    axes.tick_params(axis="y", left=False, labelleft=False)


def _short(name: str) -> str:
    return name if len(name) <= 18 else f"{name[:17]}…"
