"""How far sites agree: their own estimates, Cochran's Q and I2, meta-analyses, and models tried at the site left out.

    w_i = 1 / se_i^2,  fixed = sum w_i b_i / sum w_i,  Q = sum w_i (b_i - fixed)^2,  I2 = max(0, 1 - (k - 1) / Q)
    tau2 = max(0, (Q - k + 1) / (sum w_i - sum w_i^2 / sum w_i)),  random: the same with w_i = 1 / (se_i^2 + tau2)

Cochran (1954), Higgins and Thompson (2002), DerSimonian and Laird (1986).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from parley.algorithms.trees.binning import Floats
from parley.core.show import Brief

METRICS = {"gaussian": "R2", "logistic": "AUC", "cox": "concordance"}
"""What a model is judged by at the site left out; of the others it is the share of the deviance."""


@dataclass(frozen=True, repr=False)
class Coefficient(Brief):
    """One row of the table."""

    name: str
    estimate: float
    error: float
    """The standard error."""
    low: float
    high: float
    """The ends of the interval."""
    statistic: float
    """The estimate over its error: t of linear regression, else z."""
    p: float
    """Two-sided, that the coefficient is 0."""
    ratio: float | None = None
    """e to the estimate: an odds, rate, mean or hazard ratio; None of linear regression."""
    ratio_low: float | None = None
    ratio_high: float | None = None


@dataclass(frozen=True, repr=False)
class Site(Brief):
    """The estimates of one client's rows alone."""

    client: str
    rows: int
    events: int
    reason: str
    """Why there are none, or nothing."""
    coefficients: tuple[Coefficient, ...]


@dataclass(frozen=True, repr=False)
class Heterogeneity(Brief):
    """How far sites agree on one coefficient."""

    name: str
    sites: int
    """With estimates of their own."""
    q: float
    """Cochran's Q."""
    freedom: int
    """Its degrees of freedom."""
    p: float
    """That all sites have one coefficient."""
    i2: float
    """The share of the variation between sites that chance does not explain."""
    tau2: float
    """The variance of sites' coefficients (DerSimonian-Laird)."""
    fixed: Coefficient
    """The mean of sites' estimates, weighed by their precision."""
    random: Coefficient
    """The same if sites' coefficients differ with variance tau2."""


@dataclass(frozen=True, repr=False)
class LeftOut(Brief):
    """The fit without one client, judged by that client's rows."""

    client: str
    rows: int
    """Of the client, that judge the fit."""
    score: float | None
    """R2, AUC, concordance or the share of the deviance; None where its rows cannot tell."""
    reason: str
    """Why there is no fit, or nothing."""
    coefficients: tuple[Coefficient, ...]


def wald(name: str, estimate: float, error: float, level: float, ratio: bool, against: Any = None) -> Coefficient:
    """An estimate with its interval and p value, against a t or (by default) the normal distribution."""
    against = stats.norm() if against is None else against
    half = float(against.ppf((1 + level) / 2)) * float(error)
    statistic = float(estimate / error) if error > 0 else float(np.copysign(np.inf, estimate))
    ends = float(estimate), float(estimate) - half, float(estimate) + half
    ratios: Floats | tuple[None, ...] = (None,) * 3
    with np.errstate(over="ignore"):
        ratios = np.exp(np.array(ends)) if ratio else ratios
    return Coefficient(
        name,
        ends[0],
        float(error),
        ends[1],
        ends[2],
        statistic,
        float(2 * against.sf(abs(statistic))),
        *(None if value is None else float(value) for value in ratios),
    )


def heterogeneity(name: str, rows: Sequence[Coefficient], level: float, ratio: bool) -> Heterogeneity:
    """Of one coefficient at two sites or more."""
    b, variance = np.array([row.estimate for row in rows]), np.array([row.error for row in rows]) ** 2
    w, freedom = 1 / variance, len(rows) - 1
    fixed = float(w @ b / w.sum())
    q = float(w @ (b - fixed) ** 2)
    tau2 = max(0.0, (q - freedom) / float(w.sum() - (w**2).sum() / w.sum()))
    weight = 1 / (variance + tau2)
    return Heterogeneity(
        name,
        len(rows),
        q,
        freedom,
        float(stats.chi2.sf(q, freedom)),
        max(0.0, 1 - freedom / q) if q > 0 else 0.0,
        tau2,
        wald("fixed effects", fixed, w.sum() ** -0.5, level, ratio),
        wald("random effects", float(weight @ b / weight.sum()), weight.sum() ** -0.5, level, ratio),
    )
