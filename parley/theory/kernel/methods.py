"""FedAvg and FedProx as functions of a client's eigenvalues (Su et al., eqs. 12 and 14).

Client i multiplies its residual by P_ii, a function of its kernel matrix K_i: `multiplier` is that function on
eigenvalues. FedAvg's sum of s powers is taken in closed form, exact also for tiny eta * lambda and huge s.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from parley.core.errors import InputError
from parley.theory.arguments import check_whole
from parley.theory.theta import Array, log_mean_all


class KernelStep(Protocol):
    """How a client turns the global model into its local one."""

    @property
    def eta(self) -> float:
        """The step size."""

    @property
    def s(self) -> int:
        """Local steps; 1 for FedProx, as in the paper's unified statements."""

    def multiplier(self, eigenvalues: npt.ArrayLike) -> Array:
        """P_ii's eigenvalues from those of K_i."""

    def kappa(self, gamma: float) -> float:
        """Eq. (14): the bound on P's condition number."""

    def check(self, gamma: float) -> None:
        """Refuses a step size for which the theory, or the method itself, breaks down."""


@dataclass(frozen=True)
class GradientSteps:
    """s local gradient steps of size eta on the client's mean squared error / 2."""

    eta: float
    s: int = 1

    def __post_init__(self) -> None:
        _check_step(self.eta)
        check_whole("the number of local steps s", self.s)

    def multiplier(self, eigenvalues: npt.ArrayLike) -> Array:
        return self.s * np.exp(log_mean_all(self.eta * np.asarray(eigenvalues, dtype=np.float64), self.s))

    def kappa(self, gamma: float) -> float:
        self.check(gamma)
        return float(np.exp(-log_mean_all(gamma, self.s)))

    def check(self, gamma: float) -> None:
        if not gamma < 1:
            raise InputError(
                f"FedAvg needs gamma = eta * max_i ||K_i|| < 1, but it is {gamma:g}; take eta below "
                f"{self.eta / gamma:.6g} or use FedProx."
            )


@dataclass(frozen=True)
class ProximalStep:
    """The exact minimiser of the client's mean squared error / 2 plus ||f - f_start||^2 / (2 eta); any eta > 0."""

    eta: float

    def __post_init__(self) -> None:
        _check_step(self.eta)

    @property
    def s(self) -> int:
        return 1

    def multiplier(self, eigenvalues: npt.ArrayLike) -> Array:
        return np.asarray(1 / (1 + self.eta * np.asarray(eigenvalues, dtype=np.float64)), dtype=np.float64)

    def kappa(self, gamma: float) -> float:
        return 1 + gamma

    def check(self, gamma: float) -> None:
        if not np.isfinite(gamma):
            raise InputError("FedProx needs finite kernel values.")


def _check_step(eta: float) -> None:
    if not isinstance(eta, int | float | np.integer | np.floating) or not 0 < eta < np.inf:
        raise InputError(f"the step size eta must be positive and finite, not {eta!r}.")
