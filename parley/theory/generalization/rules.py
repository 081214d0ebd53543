"""What a client does with its sample before the server averages: exact minimisation, descent, or one pass of SGD.

A rule is any map from a client's sample to a model. On quadratic losses these three are affine in the sample's means,
so that expectations have a closed form: along an eigenvector of the Hessian with eigenvalue lam, the model is
sum_t w_t(lam) zbar_t + (1 - sum_t w_t(lam)) start, where zbar_t is the optimum of the t-th group of samples.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from parley.core.errors import InputError
from parley.theory.arguments import check_whole
from parley.theory.generalization.losses import Losses
from parley.theory.theta import Array


class Rule(Protocol):
    """A local algorithm."""

    @property
    def groups(self) -> int:
        """Into how many equal groups it cuts a client's sample."""

    def run(self, losses: Losses, start: Array) -> Array:
        """The models [trials, d] for empirical risks [trials, groups], from `start` [d] or [trials, d]."""

    def filters(self, eigenvalues: Array) -> Array:
        """w_t at each eigenvalue [d] of a Hessian that all groups share: [groups, d]."""


@dataclass(frozen=True)
class Minimise:
    """Empirical risk minimisation: Theorem 4.1's client."""

    @property
    def groups(self) -> int:
        return 1

    def run(self, losses: Losses, start: Array) -> Array:
        return losses.pooled().minimiser()

    def filters(self, eigenvalues: Array) -> Array:
        return np.ones((1, len(eigenvalues)))


@dataclass(frozen=True)
class _Steps:
    eta: float
    steps: int

    def __post_init__(self) -> None:
        check_whole("the number of local steps", self.steps)
        if not (np.isfinite(self.eta) and self.eta > 0):
            raise InputError(f"local steps need a finite eta > 0, not eta = {self.eta:g}.")


@dataclass(frozen=True)
class Descend(_Steps):
    """`steps` gradient steps of size `eta`, each on the client's whole sample."""

    @property
    def groups(self) -> int:
        return 1

    def run(self, losses: Losses, start: Array) -> Array:
        pooled, theta = losses.pooled(), start
        for _ in range(self.steps):
            theta = theta - self.eta * pooled.gradient(theta)
        return theta

    def filters(self, eigenvalues: Array) -> Array:
        return np.asarray(1 - (1 - self.eta * eigenvalues) ** self.steps, dtype=np.float64)[None]


@dataclass(frozen=True)
class OnePass(_Steps):
    """`steps` gradient steps of size `eta`, each on the next 1/steps of the sample (Gholami and Seferoglu, eq. 5)."""

    @property
    def groups(self) -> int:
        return self.steps

    def run(self, losses: Losses, start: Array) -> Array:
        theta = start
        for t in range(self.steps):
            theta = theta - self.eta * losses.group(t).gradient(theta)
        return theta

    def filters(self, eigenvalues: Array) -> Array:
        left = np.arange(self.steps)[::-1, None]
        return np.asarray(self.eta * eigenvalues * (1 - self.eta * eigenvalues) ** left, dtype=np.float64)
