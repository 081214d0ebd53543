"""How a federation's data are spread: a figure and a few numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from parley.data.federation import Federation
from parley.data.sources import Pooled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, MARK = "#22313f", "#8a97a3", "#2a6f97"
MOST = 2000
"""Larger federations whose clients must be loaded one by one are measured on this many evenly spaced ones."""
COLUMNS = 600


def describe(federation: Federation) -> dict[str, Any]:
    """Numbers about the spread: sizes, label entropy (bits) and distance between clients' and pooled labels.

    `total_variation` is the mean over clients of half the L1 distance between the client's label shares and the pooled
    ones: 0 is iid, near 1 means that no client looks like the whole. Regression targets count by decile.
    """
    numbers, counts = label_counts(federation)
    sizes = federation.source.sizes(numbers.tolist())
    shares = counts / counts.sum(axis=1, keepdims=True)
    pooled = counts.sum(axis=0) / counts.sum()
    measured = len(numbers)
    return {
        "name": federation.info.name,
        "kind": federation.info.kind,
        "shape": federation.info.shape,
        "outputs": federation.info.outputs,
        "clients": len(federation),
        "clients_measured": measured,
        "samples": int(sizes.sum()) if measured == len(federation) else round(sizes.mean() * len(federation)),
        "min": int(sizes.min()),
        "median": float(np.median(sizes)),
        "max": int(sizes.max()),
        "test_samples": 0 if federation.test is None else len(federation.test),
        "pooled_label_entropy": float(_entropy(pooled)),
        "mean_label_entropy": float(_entropy(shares).mean()),
        "total_variation": float(np.abs(shares - pooled).sum(axis=1).mean() / 2),
    }


def label_counts(federation: Federation, most: int = MOST) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(client numbers [m], counts [m, labels]); m is at most `most` where clients have to be loaded one by one."""
    clients, source = len(federation), federation.source
    numbers = np.arange(clients)
    if isinstance(source, Pooled):
        flat, sizes = source.y[source.index], source.sizes(range(clients))
    else:
        if clients > most:
            numbers = np.linspace(0, clients - 1, most).astype(np.int64)
        parts = [source.load(int(i)).y for i in numbers]
        flat, sizes = torch.cat(parts), np.array([len(y) for y in parts])
    labels = flat.reshape(len(flat), -1)[:, 0].numpy()
    if federation.info.kind == "regression":
        bins = 10
        labels = np.searchsorted(np.quantile(labels, np.arange(0.1, 0.95, 0.1)), labels)
    else:
        bins = max(federation.info.outputs, int(labels.max()) + 1)
    owner = np.repeat(np.arange(len(numbers)), sizes)
    counts = np.bincount(owner * bins + labels, minlength=len(numbers) * bins)
    return numbers, counts.reshape(len(numbers), bins)


def partition_figure(federation: Federation) -> Figure:
    """Who has what (clients across, labels up) and how much (sizes)."""
    from matplotlib.figure import Figure

    numbers, counts = label_counts(federation)
    figure = Figure(figsize=(11, 4.6), layout="constrained", facecolor="white")
    grid = figure.add_gridspec(1, 2, width_ratios=(2.5, 1))
    labels, sizes = figure.add_subplot(grid[0]), figure.add_subplot(grid[1])
    if len(numbers) <= 40 and counts.shape[1] <= 30:
        _bubbles(labels, federation, numbers, counts)
    else:
        _heatmap(figure, labels, counts)
    _label_axis(labels, federation, counts.shape[1])
    _sizes(sizes, counts.sum(axis=1))
    facts = describe(federation)
    figure.suptitle(
        f"{facts['name']}: {facts['clients']:,} clients, {facts['samples']:,} samples, "
        f"mean label distance {facts['total_variation']:.2f}",
        x=0.012,
        ha="left",
        color=INK,
        fontsize=13,
        fontweight="bold",
    )
    return figure


def _bubbles(axes: Axes, federation: Federation, numbers: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
    client, label = np.nonzero(counts)
    values = counts[client, label]
    # The largest bubble just fills its cell: about 7.3 x 3.7 inches of axes, in points.
    cell = min(7.3 * 72 / len(counts), 3.7 * 72 / counts.shape[1])
    axes.scatter(client, label, s=0.8 * cell**2 * values / values.max(), color=MARK, alpha=0.85, linewidths=0)
    axes.set_xlim(-0.6, len(counts) - 0.4)
    axes.set_ylim(-0.6, counts.shape[1] - 0.4)
    axes.set_xlabel(f"client (largest bubble: {values.max():,} samples)", color=INK)
    names = [federation.ids[int(i)] for i in numbers]
    short = [name if len(name) <= 14 else f"{name[:13]}…" for name in names]
    long = max(map(len, short)) > 3
    axes.set_xticks(range(len(short)), short, rotation=45 if long else 0, ha="right" if long else "center", fontsize=8)
    axes.grid(color="#eef1f4", linewidth=0.8)
    axes.set_axisbelow(True)
    _clean(axes)


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
    _clean(axes)


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
    _clean(axes)


def _clean(axes: Axes) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#c8d0d8")
    axes.tick_params(colors=FAINT, length=0, labelsize=8, labelcolor=INK)


def _entropy(shares: NDArray[np.float64]) -> Any:
    """Entropy in bits along the last axis."""
    return -(shares * np.log2(np.where(shares > 0, shares, 1.0))).sum(axis=-1)
