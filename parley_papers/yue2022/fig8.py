"""Figure 8: deep leakage from Jacobians that were sparsified, SSIM against the share of entries left out.

Victims send what NTK-FL sends with `upload = "top-k"`: of every row of the Jacobian of one sample of theirs the largest
entries. Beside deep leakage as published, which takes entries that were not sent for zeros, stand an attacker that
compares only what was sent, and division by the bias's entries, which needs no search at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

import parley as pl
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, at_least, at_most, claims, holds, study

Row = Any
"""One defence of `pl.Findings.rows`."""
BLIND = "blind"
"""The attack of one who received nothing."""


@dataclass(frozen=True)
class _Size:
    data: str
    victims: int
    sparsity: tuple[float, ...]
    effort: pl.Effort


_SIZES: dict[Scale, _Size] = {
    "smoke": _Size("digits", 2, (0.99, 0.9, 0.0), pl.Effort(restarts=1, dlg_steps=12)),
    "cpu": _Size("fashion-mnist", 10, (0.999, 0.99, 0.95, 0.9, 0.8, 0.5, 0.0), pl.Effort(restarts=2, dlg_steps=80)),
}


@study(
    "003/fig8",
    scales={
        "smoke": "digits, 2 victims, 3 levels of sparsity",
        "cpu": "Fashion-MNIST, 10 victims, 7 levels of sparsity",
    },
)
def fig8(scale: Scale, context: StudyContext) -> StudyResult:
    """Figure 8: what deep leakage rebuilds from sparsified Jacobians; SSIM rises as sparsity falls."""
    size = _SIZES[scale]
    data = pl.data.digits() if size.data == "digits" else pl.data.fashion_mnist()
    federation = data.split(pl.IID(), clients=20, seed=0)
    rows = [_row(federation, size, sparsity) for sparsity in context.track(size.sparsity, "attacking")]
    findings = pl.Findings(f"sparsified Jacobians, {size.data}", "NTK-FL", tuple(rows), True, 0, 0)
    checks = [*_exact(federation, size, rows), *claims(_claims(rows), scale)]
    return context.result(
        checks, {"reconstructions": pl.report.attack_figure(findings)}, {"scores": findings.records()}
    )


def _row(federation: pl.Federation, size: _Size, sparsity: float) -> Row:
    """What `pl.attack` finds of clients with one sample each; the same victims at every sparsity."""
    method = pl.NtkFL(upload="top-k", density=1 - sparsity, times=(100,), select="last")
    study = pl.Study(method, federation, pl.models.mlp(100))
    findings = pl.attack(study, victims=size.victims, batches=(1,), defences=(), effort=size.effort)
    return replace(findings.row(), defence=_name(sparsity))


def _exact(federation: pl.Federation, size: _Size, rows: list[Row]) -> list[Check]:
    """True whatever is trained: a dense Jacobian is the input, and the study can be repeated."""
    whole = next(row for row in rows if row.defence == _name(0.0))
    again = _row(federation, _Size(size.data, 1, (), size.effort), size.sparsity[0])
    return [
        at_least("division without sparsity: worst PSNR (dB)", min(whole.values("psnr", "division")), 99.9),
        holds(
            "the same seed gives the same scores",
            again.values("ssim", "dlg") == rows[0].values("ssim", "dlg")[:1],
            str(again.values("ssim", "dlg")),
            str(rows[0].values("ssim", "dlg")[:1]),
        ),
    ]


def _claims(rows: list[Row]) -> list[Check]:
    """Figure 8's statement, with intervals over victims; rows from the sparsest to the dense one."""
    means = [pl.report.SeedMean.of(row.values("ssim", "dlg")) for row in rows]
    rises = [after - before for before, after in pairwise(means)]
    change = means[-1] - means[0]
    hidden = next((row for row in rows if row.defence == _name(0.9)), rows[0])
    best, blind = pl.report.SeedMean.of(hidden.values("ssim")), pl.report.SeedMean.of(hidden.values("ssim", BLIND))
    return [
        at_least("SSIM of deep leakage without sparsity", means[-1].value, 0.9),
        at_most("SSIM of deep leakage at the highest sparsity", means[0].value, 0.3),
        at_least("SSIM gained from the highest sparsity to none: lower end of 95%", change.value - change.half, 0.3),
        at_least(
            "smallest step of the mean SSIM as sparsity falls, plus its interval",
            float(np.min([rise.value + rise.half for rise in rises])),
            0.0,
        ),
        at_least(
            "SSIM of the best attack over a blind guess at 90% sparsity: lower end of 95%",
            (best - blind).value - (best - blind).half,
            0.1,
        ),
    ]


def _name(sparsity: float) -> str:
    return f"{100 * sparsity:g}% left out"
