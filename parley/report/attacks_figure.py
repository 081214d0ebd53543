"""Originals beside what a curious server made of them, and every defence's effect with its interval."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parley.attack.findings import BLIND, NONE, Findings, Row
from parley.report.style import FAINT, INK, PALETTE, clean, footnote, headline, new_figure, panel, y_label
from parley.study.seeds import SeedMean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

_MOST = 14
"""Defences that are drawn."""


def defence_name(row: Row) -> str:
    """A row in words."""
    what = row.defence if row.defence != NONE else "as it is"
    return f"{what}, {row.samples} sample{'s' * (row.samples != 1)}"


def attack_figure(findings: Findings) -> Figure:
    """Pictures above (one column a defence, one row an attack), the best attack's score with intervals below."""
    rows = findings.rows[:_MOST]
    drawn = [name for name in findings.attacks if name != BLIND]
    tall = (len(drawn) + 1) if findings.pictures else 0
    figure = new_figure(max(6.5, 0.95 * len(rows) + 1.6), 3.4 + 0.95 * tall, 0.04, 0.04)
    heights = (tall, 3.2) if tall else (3.2,)
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False).ravel()
    if tall:
        grid = parts[0].subplots(tall, len(rows), squeeze=False)
        for column, row in zip(grid.T, rows, strict=True):
            _pictures(column, row, drawn, first=row is rows[0])
    _scores(parts[-1].subplots(), findings, rows)
    headline(figure, f"What a curious server rebuilds: {findings.method}, {findings.study}", 12.5)
    trained = f"after {findings.rounds} rounds" if findings.rounds else "before training"
    footnote(
        figure, f"one round, {trained}, {len(_any(rows))} victims; the pictures are the first victim's first sample"
    )
    return figure


def _any(rows: tuple[Row, ...]) -> list[float]:
    return rows[0].values("psnr", BLIND)


def _pictures(column: np.ndarray, row: Row, attacks: list[str], first: bool) -> None:
    shown: list[tuple[str, Tensor | None]] = [("original", row.originals)]
    shown += [(name, row.rebuilt.get(name)) for name in attacks]
    for axes, (name, pictures) in zip(column, shown, strict=True):
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_visible(False)
        if first:
            axes.set_ylabel(name, color=INK, fontsize=9.5, rotation=0, ha="right", va="center")
        if pictures is None or row.originals is None:
            axes.text(0.5, 0.5, "–", ha="center", va="center", color=FAINT, transform=axes.transAxes)
            continue
        low, high = float(row.originals[0].min()), float(row.originals[0].max())
        picture = ((pictures[0].double() - low) / max(high - low, 1e-12)).clamp(0, 1)
        picture = picture[None] if picture.ndim == 2 else picture
        grey = len(picture) != 3
        axes.imshow(
            (picture[0] if grey else picture.permute(1, 2, 0)).numpy(), cmap="gray" if grey else None, vmin=0, vmax=1
        )
        if name != "original":
            axes.set_xlabel(f"{row.values('ssim', name)[0]:.2f}", color=FAINT, fontsize=8, labelpad=1)


def _scores(axes: Axes, findings: Findings, rows: tuple[Row, ...]) -> None:
    positions = np.arange(len(rows))
    for x, row in zip(positions, rows, strict=True):
        if len(row.scores) > 1:
            mean = SeedMean.of(row.values(findings.measure))
            half = float(np.nan_to_num(mean.half))
            axes.plot([x] * 2, [mean.value - half, mean.value + half], color=PALETTE[0], linewidth=2.2, alpha=0.5)
            axes.plot([x], [mean.value], "o", color=PALETTE[0], markersize=7, markeredgecolor="white", zorder=3)
            axes.plot([x + 0.14] * len(mean.seeds), mean.seeds, ".", color=PALETTE[0], alpha=0.4, markersize=5)
        blind = SeedMean.of(row.values(findings.measure, BLIND))
        axes.plot([x - 0.3, x + 0.3], [blind.value] * 2, color=FAINT, linewidth=1.6, linestyle=(0, (2, 1)))
    unit = "SSIM" if findings.measure == "ssim" else "PSNR (dB)"
    panel(axes, "Best attack on each victim, mean with 95% interval; dashed: a blind guess", "")
    y_label(axes, unit)
    clean(axes)
    axes.set_xticks(positions, [defence_name(row).replace(", ", "\n").replace(") ", ")\n") for row in rows], fontsize=8)
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.set_ylim((-0.25, 1.08) if findings.measure == "ssim" else (0, 106))
