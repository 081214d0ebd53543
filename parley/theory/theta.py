"""Theta: which of a client's K local gradients it sends, and with what weight (Charles and Konečný, eqs. 4-6).

A client with Hessian eigenvalue `lam` multiplies its gradient along that direction by the *distortion*

    q(s) = sum_k theta_k (1 - s)^(k - 1),        s = gamma * (lam + alpha)  in [0, 1).

Every Theta here gives log(q(s) / w(Theta)), w(Theta) = sum_k theta_k, to full relative precision: never by adding K
terms for `All` and `Last`, and without cancellation when s is tiny. That number is 0 at s = 0 and falls as s grows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from parley.core.errors import InputError
from parley.theory.arguments import check_whole

Array: TypeAlias = npt.NDArray[np.float64]


class Theta(Protocol):
    """A finite, non-negative, non-zero sequence theta_1, theta_2, ..."""

    @property
    def steps(self) -> int:
        """K(Theta): how many local gradients a client computes."""

    @property
    def weight(self) -> float:
        """w(Theta): the sum of all theta_k."""

    def log_mean(self, s: npt.ArrayLike) -> Array:
        """log(q(s) / w(Theta)) elementwise, for 0 <= s < 1."""


ThetaLike: TypeAlias = Theta | Sequence[float] | npt.NDArray[np.floating]
"""A Theta, or its plain list of coefficients theta_1, theta_2, ..."""


@dataclass(frozen=True)
class All:
    """Theta_{1:K}: the sum of K local gradients, as in FedAvg, Reptile and FedProx."""

    K: int

    def __post_init__(self) -> None:
        check_whole("the number of local steps K", self.K)

    @property
    def steps(self) -> int:
        return self.K

    @property
    def weight(self) -> float:
        return float(self.K)

    def log_mean(self, s: npt.ArrayLike) -> Array:
        return log_mean_all(s, self.K)


@dataclass(frozen=True)
class Last:
    """Theta_K: the K-th local gradient alone, as in FOMAML; on quadratics MAML with K steps is `Last(2 * K + 1)`."""

    K: int

    def __post_init__(self) -> None:
        check_whole("the number of local steps K", self.K)

    @property
    def steps(self) -> int:
        return self.K

    @property
    def weight(self) -> float:
        return 1.0

    def log_mean(self, s: npt.ArrayLike) -> Array:
        return log_mean_last(s, self.K)


@dataclass(frozen=True)
class Explicit:
    """Any finite non-negative sequence theta_1, ..., theta_K; its last coefficients may be zero."""

    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        values = np.asarray(self.coefficients, dtype=np.float64)
        if values.ndim != 1 or not values.size or not np.isfinite(values).all():
            raise InputError("Theta must be a non-empty sequence of finite numbers theta_1, theta_2, ...; give one.")
        if (values < 0).any():
            at = int(np.argmax(values < 0))
            raise InputError(f"Theta must be non-negative, but theta_{at + 1} = {values[at]:g}; use weights >= 0.")
        if not values.any():
            raise InputError("Theta must have a coefficient above zero; with all theta_k = 0 clients send nothing.")

    @property
    def steps(self) -> int:
        return int(np.flatnonzero(self.coefficients)[-1]) + 1

    @property
    def weight(self) -> float:
        return math.fsum(self.coefficients)

    def log_mean(self, s: npt.ArrayLike) -> Array:
        support = np.flatnonzero(self.coefficients)
        present = np.asarray(self.coefficients, dtype=np.float64)[support]
        exponents = np.log1p(-np.asarray(s, dtype=np.float64))[..., None] * support
        below_one = np.expm1(exponents) @ (present / self.weight)
        # log1p is exact near s = 0, log-sum-exp where the mean is far below one.
        far = np.asarray(logsumexp(exponents + np.log(present) - np.log(self.weight), axis=-1), dtype=np.float64)
        return np.where(below_one > -0.5, np.log1p(np.maximum(below_one, -0.5)), far)


def as_theta(theta: ThetaLike) -> Theta:
    """The given Theta, or `Explicit` of a plain sequence of coefficients."""
    if isinstance(theta, All | Last | Explicit):
        return theta
    if isinstance(theta, Sequence | np.ndarray):
        return Explicit(tuple(float(coefficient) for coefficient in theta))
    return theta


def log_mean_all(s: npt.ArrayLike, K: npt.ArrayLike) -> Array:
    """log of (1/K) sum_{k<K} (1-s)^k = (1 - (1-s)^K) / (K s); s and K (real, >= 1) broadcast."""
    s, K = np.broadcast_arrays(np.asarray(s, dtype=np.float64), np.asarray(K, dtype=np.float64))
    rate = -np.log1p(-s)
    # With u = K * rate: log((1 - e^-u) / u) + log(rate / s).
    mean = _log_decay_mean(K * rate) + _log_rate_over_step(s, rate)
    return np.where(K == 1, 0.0, np.minimum(mean, 0.0))


def log_mean_last(s: npt.ArrayLike, K: npt.ArrayLike) -> Array:
    """log of (1-s)^(K-1); s and K broadcast."""
    return np.asarray(
        (np.asarray(K, dtype=np.float64) - 1) * np.log1p(-np.asarray(s, dtype=np.float64)), dtype=np.float64
    )


def _log_decay_mean(u: Array) -> Array:
    """log((1 - e^-u) / u) for u >= 0, to full relative precision."""
    small = u < 0.2
    v = np.where(small, u, 0.0) / 2
    w = v * v
    # log(sinh(v) / v) by its Taylor series, minus v.
    series = w * (1 / 6 - w * (1 / 180 - w * (1 / 2835 - w * (1 / 37800 - w / 467775)))) - v
    safe = np.where(small, 1.0, u)
    return np.where(small, series, np.log(-np.expm1(-safe) / safe))


def _log_rate_over_step(s: Array, rate: Array) -> Array:
    """log(-log(1 - s) / s) for 0 <= s < 1, to full relative precision; `rate` is -log(1 - s)."""
    small = s < 1e-3
    t = np.where(small, s, 0.0)
    series = np.log1p(t * (1 / 2 + t * (1 / 3 + t * (1 / 4 + t * (1 / 5 + t * (1 / 6 + t / 7))))))
    return np.where(small, series, np.log(np.where(small, 1.0, rate) / np.where(small, 1.0, s)))
