"""Generalised linear models, as if all rows lay in one table (McCullagh and Nelder, 1989).

eta = X beta,  mean mu = g^-1(eta),  variance V
score = X'(y - mu),  information = X' diag(V) X

gaussian   mu = eta            V = 1 (times the dispersion RSS / (n - p))
logistic   mu = 1 / (1 + e^-eta)   V = mu (1 - mu)
poisson    mu = e^eta          V = mu
gamma      mu = e^eta          V = mu^2 (times the dispersion sum (y / mu - 1)^2 / (n - p))

The link of gamma is the logarithm, which is not its canonical one: score = X'(y / mu - 1), the information that is
expected X'X, that of the rows X' diag(y / mu) X.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.special import expit, gammaln, xlogy
from scipy.stats import rankdata
from torch import Tensor

from parley.algorithms.protocol import Learned, algorithm
from parley.algorithms.trees.binning import Floats
from parley.analyse.newton import NoFit, Point
from parley.analyse.regression import Regression, Rows
from parley.core.errors import InputError
from parley.core.form import Form
from parley.core.message import Memory, Message
from parley.data import ClientData
from parley.training.task import Task

FAMILIES = ("gaussian", "logistic", "poisson", "gamma")
_LARGEST = 30.0
"""Means of counts beyond e^30 are none, and sums of such still have digits."""


@algorithm("glm")
@dataclass(frozen=True)
class GLM(Regression):
    """Linear, logistic, Poisson or gamma regression, equal to that of pooled rows; `parley analyse` shows it.

    The target is the outcome. As a model it predicts the mean, or the log-odds of the second class.
    """

    family: Literal["gaussian", "logistic", "poisson", "gamma"] = "gaussian"
    """What the outcome is: a number, one of two classes (or 0 and 1), a count, or a number above 0 whose deviation
    grows with its mean (gamma, with a logarithmic link)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.family not in FAMILIES:
            raise InputError(f"family must be gaussian, logistic, poisson or gamma, not '{self.family}'.")

    @property
    def model(self) -> str:
        return self.family

    @property
    def extra(self) -> int:  # type: ignore[override]
        return 2 if self.family == "gamma" else 0

    def outcome_scale(self, mean: float, deviation: float) -> tuple[float, float]:
        if self.family == "gamma":
            return 0.0, mean
        if self.family == "gaussian" and not deviation > 0:
            raise NoFit(4, "the outcome has the same value in all rows.")
        return (mean, deviation) if self.family == "gaussian" else (0.0, 1.0)

    def start(self, mean: float) -> float:
        return float(np.log(mean)) if self.family == "poisson" else 0.0

    def moved(self, beta: Floats, center: float, scale: float) -> tuple[Floats, float]:
        factor = scale if self.family == "gaussian" else 1.0
        shift = np.log(scale) if self.family == "gamma" else center
        return factor * beta + np.eye(len(beta))[0] * shift, factor

    def check(self, task: Task) -> None:
        classes = task.info.kind == "classification"
        if task.info.outputs != (2 if classes else 1):
            needs = "two classes" if classes else "one target"
            raise InputError(f"{self.family} regression needs {needs}, but the data have {task.info.outputs}.")

    def outcomes(self, task: Task, data: ClientData) -> tuple[Floats, Floats, int]:
        y = data.y.double().reshape(len(data)).numpy()
        if self.family == "gaussian":
            return y, np.ones(len(y)), 0
        wrong = {"logistic": (y != 0) & (y != 1), "poisson": (y < 0) | (y != np.floor(y)), "gamma": ~(y > 0)}[
            self.family
        ]
        return y, (y > 0).astype(np.float64), int(wrong.sum())

    def refusal(self, wrong: int) -> str:
        what = {"logistic": "0 or 1", "poisson": "counts: whole numbers, 0 or more"}.get(self.family, "above 0")
        return f"outcomes of {self.family} regression must be {what}, but those of {wrong:,} rows are not."

    def check_events(self, events: int, rows: int) -> None:
        if self.family in ("logistic", "poisson") and events in (0, rows if self.family == "logistic" else 0):
            held = "are 0" if self.family == "poisson" else "have the same class"
            raise NoFit(4, f"there is nothing to explain: the outcomes of all {rows:,} rows {held}.")

    def _design(self, rows: Rows) -> Floats:
        return np.concatenate([np.ones((len(rows.x), 1)), rows.x], axis=1)

    def likelihood(self, rows: Rows, beta: Floats) -> Point:
        x, y = self._design(rows), rows.y
        eta = x @ beta
        if self.family == "gaussian":
            mean, variance, value = eta, np.ones(len(y)), -0.5 * float(((y - eta) ** 2).sum())
        elif self.family == "logistic":
            mean = expit(eta)
            variance, value = mean * expit(-eta), float(-np.logaddexp(0.0, np.where(y > 0, -eta, eta)).sum())
        elif self.family == "gamma":
            eta = np.clip(eta, -_LARGEST, _LARGEST)
            share = y * np.exp(-eta)
            extra = np.array([((share - 1) ** 2).sum(), np.log(y).sum()])
            value, observed = -float((share + eta).sum()), x.T @ (share[:, None] * x)
            return Point(float(len(y)), value, x.T @ (share - 1), observed, x.T @ x, extra)
        else:
            eta = np.clip(eta, -_LARGEST, _LARGEST)
            mean = variance = np.exp(eta)
            value = float((y * eta - mean - gammaln(y + 1)).sum())
        return Point(float(len(y)), value, x.T @ (y - mean), x.T @ (variance[:, None] * x))

    def row_weights(self, rows: Rows, beta: Floats) -> Floats:
        if self.family == "gaussian":
            return np.ones(len(rows.y))
        eta = np.clip(self._design(rows) @ beta, -_LARGEST, _LARGEST)
        if self.family == "logistic":
            return np.asarray(expit(eta) * expit(-eta), np.float64)
        return np.asarray(rows.y * np.exp(-eta) if self.family == "gamma" else np.exp(eta), np.float64)

    def dispersion(self, point: Point, freedom: float) -> float:
        if point.extra is not None:
            return float(point.extra[0]) / (point.rows - freedom)
        return -2 * point.value / (point.rows - freedom) if self.family == "gaussian" else 1.0

    def final(self, point: Point, spread: float, scale: float) -> tuple[float, float]:
        n = point.rows
        if self.family == "gaussian":
            left = -2 * point.value * scale**2
            return float(-n / 2 * (np.log(2 * np.pi * left / n) + 1)) if left > 0 else np.inf, spread * scale**2
        if point.extra is None:
            return point.value, spread
        shape, logs = 1 / spread, float(point.extra[1])
        value = shape * (n * np.log(shape) + point.value + logs) - n * gammaln(shape) - logs - n * np.log(scale)
        return float(value), spread

    def judged(self, rows: Rows, beta: Floats) -> float:
        """R2, the area under the ROC curve, or the share of the deviance that is explained; NaN where there is none."""
        eta, y = self._design(rows) @ beta, rows.y
        if self.family == "logistic":
            ill, ranks = y > 0, rankdata(eta)
            pairs = float(ill.sum()) * float((~ill).sum())
            return (float(ranks[ill].sum()) - ill.sum() * (ill.sum() + 1) / 2) / pairs if pairs else float("nan")
        if self.family == "gaussian":
            left, all_ = float(((y - eta) ** 2).sum()), float(((y - y.mean()) ** 2).sum())
        else:
            means = np.exp(np.clip(eta, -_LARGEST, _LARGEST)), y.mean()
            left, all_ = (_deviance(y, mean, self.family) for mean in means)
        return 1 - left / all_ if all_ > 0 else float("nan")

    def learned(self, task: Task) -> Learned:
        return LinearPredictor(
            task,
            read=lambda state, since: Message.of(fit={"beta": state["fit"]["beta"]}),
            design=lambda x: self.design(task, x),
            family=self.family,
        )


@dataclass(frozen=True)
class LinearPredictor(Learned):
    """What the coefficients say of new rows."""

    design: Callable[[Floats], Floats] = np.asarray
    """From raw rows to covariates."""
    family: str = "gaussian"
    intercept: bool = True

    def check(self, message: Message, memory: Memory | None = None) -> None:
        Form.of(fit={"beta": (torch.float64, (None,))}).check(message.tensors)

    def outputs(self, message: Message, memory: Memory | None, x: Tensor, before: Tensor | None = None) -> Tensor:
        beta = message["fit"]["beta"].to(x.device)
        covariates = torch.from_numpy(self.design(x.double().cpu().numpy())).to(x.device)
        eta = covariates @ beta[int(self.intercept) :] + (beta[0] if self.intercept else 0.0)
        if self.task.info.kind == "classification":
            return torch.stack([torch.zeros_like(eta), eta], dim=1).to(x.dtype)
        links = {"gaussian": lambda: eta, "logistic": eta.sigmoid}
        mean = links.get(self.family, eta.clamp(max=_LARGEST).exp)()
        return mean[:, None].to(x.dtype)


def _deviance(y: Floats, mean: Floats | float, family: str) -> float:
    share = y / mean
    if family == "gamma":
        return 2 * float((share - 1 - np.log(share)).sum())
    return 2 * float((xlogy(y, share) - (y - mean)).sum())
