"""A federation's partition as a figure: who has which labels, and how much."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from parley.data.federation import Federation
from parley.data.label_spread import describe, label_counts
from parley.report.style import FAINT, INK, clean, headline, new_figure, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARK = "#2a6f97"
COLUMNS = 600


def partition_figure(federation: Federation, numbers: Mapping[str, int] | None = None) -> Figure:
    """Who has what (clients across, labels up) and how much (sizes); `numbers` stand for clients' names."""
    indices, counts = label_counts(federation)
    names = [federation.ids[int(i)] for i in indices]
    figure = new_figure(11, 4.6)
    grid = figure.add_gridspec(1, 2, width_ratios=(2.5, 1))
    labels, sizes = figure.add_subplot(grid[0]), figure.add_subplot(grid[1])
    if len(names) <= 40 and counts.shape[1] <= 30:
        _bubbles(labels, names if numbers is None else [str(numbers[name]) for name in names], counts)
    else:
        _heatmap(figure, labels, counts)
    _label_axis(labels, federation, counts.shape[1])
    _sizes(sizes, counts.sum(axis=1))
    facts = describe(federation)
    headline(
        figure,
        f"{facts['name']}: {facts['clients']:,} clients, {facts['samples']:,} samples, "
        f"mean label distance {facts['total_variation']:.2f}",
        size=13,
    )
    return figure


def _bubbles(axes: Axes, names: list[str], counts: NDArray[np.int64]) -> None:
    client, label = np.nonzero(counts)
    values = counts[client, label]
    # The largest bubble just fills its cell: about 7.3 x 3.7 inches of axes, in points.
    cell = min(7.3 * 72 / len(counts), 3.7 * 72 / counts.shape[1])
    axes.scatter(client, label, s=0.8 * cell**2 * values / values.max(), color=MARK, alpha=0.85, linewidths=0)
    axes.set_xlim(-0.6, len(counts) - 0.4)
    axes.set_ylim(-0.6, counts.shape[1] - 0.4)
    axes.set_xlabel(f"client (largest bubble: {values.max():,} samples)", color=INK)
    short = [shortened(name, 14) for name in names]
    long = max(map(len, short)) > 3
    axes.set_xticks(range(len(short)), short, rotation=45 if long else 0, ha="right" if long else "center", fontsize=8)
    clean(axes, "both", labels=8)


def _heatmap(figure: Figure, axes: Axes, counts: NDArray[np.int64]) -> None:
    shares = counts / counts.sum(axis=1, keepdims=True)
    # Clients with the same main label side by side, the purest first, then by their second label.
    main = shares.argmax(axis=1)
    others = shares.copy()
    others[np.arange(len(shares)), main] = -1.0
    order = np.lexsort((others.argmax(axis=1), -shares.max(axis=1).round(2), main))
    # Neighbours share a column where there are more clients than the screen has room for.
    columns = np.stack([part.mean(axis=0) for part in np.array_split(shares[order], min(len(shares), COLUMNS))])
    top = max(0.05, float(np.quantile(columns.max(axis=1), 0.95)))
    image = axes.imshow(
        columns.T, aspect="auto", origin="lower", cmap="Blues", vmin=0.0, vmax=top, interpolation="nearest"
    )
    axes.set_xlabel(f"{len(counts):,} clients, ordered by main label", color=INK)
    axes.set_xticks([])
    bar = figure.colorbar(image, ax=axes, pad=0.01, fraction=0.03)
    bar.set_label("share of the client's samples", color=INK, fontsize=8)
    bar.ax.tick_params(length=0, labelsize=8, colors=FAINT)
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    bar.outline.set_visible(False)
    clean(axes, None, labels=8)


def _label_axis(axes: Axes, federation: Federation, bins: int) -> None:
    if federation.info.kind == "regression":
        axes.set_ylabel("target decile", color=INK)
        axes.set_yticks(range(bins), [str(i + 1) for i in range(bins)])
    elif federation.info.classes and bins <= 30:
        axes.set_yticks(range(bins), federation.info.classes)
    else:
        axes.set_ylabel("label", color=INK)


def _sizes(axes: Axes, sizes: NDArray[np.int64]) -> None:
    from matplotlib.ticker import MaxNLocator

    low, high, count = int(sizes.min()), int(sizes.max()), 12 if len(sizes) <= 60 else 30
    if high > 30 * np.median(sizes):
        bins = np.unique(np.geomspace(low, high + 1, count + 1)).tolist()
        axes.set_xscale("log")
    else:
        # Edges between whole numbers; near-equal sizes get some room so that they look near-equal.
        low, high = min(low, (low + high) // 2 - count // 2), max(high, (low + high) // 2 + count // 2)
        step = -(-(high - low + 1) // count)
        bins = [edge - 0.5 for edge in range(low, high + step + 1, step)]
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.hist(sizes, bins=bins, color=MARK, alpha=0.85, rwidth=0.9)
    axes.axvline(float(np.median(sizes)), color=INK, linewidth=1)
    axes.annotate(
        f"median {np.median(sizes):,.0f}",
        (float(np.median(sizes)), 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(4, -2),
        textcoords="offset points",
        va="top",
        fontsize=8,
        color=INK,
    )
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("samples per client", color=INK)
    axes.set_ylabel("clients", color=INK)
    clean(axes, None, labels=8)
