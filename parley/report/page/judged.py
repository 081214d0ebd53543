"""Discrimination and calibration over all samples: ROC and calibration curves, confusion matrices, class balance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parley.report.groups import Group
from parley.report.page.markup import folded, section, table
from parley.training.pooled import Counts

_MOST_CLASSES = 20
"""Of a confusion matrix that is shown whole."""
_MOST = 8
"""Groups that are shown."""


def judged(groups: Sequence[Group]) -> str:
    """Of each group the first seed with counts; empty where nobody counted (evaluate.pooled)."""
    known = [(group, counts) for group in groups if (counts := _counts(group)) is not None][:_MOST]
    if not known:
        return ""
    about = (
        "After the last round, over the held-out samples of all evaluated clients or the central test set; of several "
        "seeds, the first. Scores are counted in bins of logits; ± bounds what the bins change in the AUC."
    )
    parts = [_figure(known), _summary(known)]
    for group, counts in known:
        predicted, true, sizes = counts.calibration()
        rows = [(f"{s:.4g}", f"{t:.4g}", int(n)) for s, t, n in zip(predicted, true, sizes, strict=True)]
        heads = ("mean probability", "observed share", "samples")
        parts.append(_matrix(group, counts))
        parts.append(
            folded(
                f"Calibration of {group.label}: the numbers",
                table(heads, rows, caption=f"Calibration of {group.label}", numeric=(0, 1, 2)),
            )
        )
    return section("judged", "Discrimination and calibration", *parts, about=about)


def _counts(group: Group) -> Counts | None:
    return next((run.counts for run in group.runs if run.counts is not None), None)


def _classes(group: Group, counts: Counts) -> list[str]:
    names = (group.config.get("preprocessing") or {}).get("classes") or ()
    return [str(name) for name in names] if len(names) == counts.classes else [str(i) for i in range(counts.classes)]


def _summary(known: Sequence[tuple[Group, Counts]]) -> str:
    rows = []
    for group, counts in known:
        auc, off = counts.auc
        balance = ", ".join(
            f"{name} {n:,} ({n / max(counts.balance.sum(), 1):.1%})"
            for name, n in list(zip(_classes(group, counts), counts.balance.tolist(), strict=True))[:_MOST_CLASSES]
        )
        shown = None if np.isnan(auc) else f"{auc:.4f} ± {off:.4f}"
        error = None if np.isnan(counts.calibration_error) else f"{counts.calibration_error:.4f}"
        rows.append((group.label, counts.samples, balance, shown, error))
    heads = ("run", "samples", "classes", "AUC", "calibration error")
    return table(heads, rows, caption="Over all samples", numeric=(1, 3, 4), stacked=True)


def _matrix(group: Group, counts: Counts) -> str:
    if counts.classes > _MOST_CLASSES:
        return ""
    names = _classes(group, counts)
    rows = [(name, *map(int, row)) for name, row in zip(names, counts.confusion, strict=True)]
    title = f"Confusion matrix of {group.label}: true classes down, predicted ones across"
    return table(("class", *names), rows, caption=title, numeric=range(1, len(names) + 1))


def _figure(known: Sequence[tuple[Group, Counts]]) -> str:
    from parley.report.page.picture import picture
    from parley.report.style import FAINT, PALETTE, clean, legend, new_figure

    two = [(group, counts) for group, counts in known if counts.classes == 2]
    figure = new_figure(8.5 if two else 4.5, 4.0)
    axes = figure.subplots(1, 2 if two else 1, squeeze=False)[0]
    for axis in axes:
        axis.plot([0, 1], [0, 1], color=FAINT, linewidth=1)
        clean(axis, "both")
    for n, (group, counts) in enumerate(known):
        colour = PALETTE[n % len(PALETTE)]
        predicted, true, _ = counts.calibration()
        axes[0].plot(predicted, true, marker="o", markersize=3, color=colour, label=group.label)
        if counts.classes == 2:
            axes[1].plot(*counts.roc, color=colour, label=group.label)
    right = "observed share of class 1" if two else "share predicted correctly"
    axes[0].set(title="Calibration", xlabel="mean predicted probability, by tenths of the samples", ylabel=right)
    if two:
        axes[1].set(title="ROC", xlabel="false positive rate", ylabel="true positive rate")
    if len(known) > 1:
        legend(axes[0], loc="upper left")
    words = "Calibration curves: observed share over predicted probability"
    return picture(figure, words + ("; ROC curves." if two else "."))
