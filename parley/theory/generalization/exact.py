"""Closed forms for mean estimation: the true gap and every term of the bounds, for any weights and local rule.

For l = 1/2 (theta - z)' H_k (theta - z) and any model theta that depends on client k's sample through its mean zbar,

    E [R_k(theta) - R_S_k(theta)] = tr(H_k Cov(theta, zbar_k)),

because both risks have the Hessian H_k. The averaged model has Cov(sum_j w_j theta_j, zbar_k) = w_k Cov(theta_k,
zbar_k). Hence the true gap is sum_k p_k^2 Delta_k: Delta/K for K equal clients, however much they disagree.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parley.theory.generalization.bounds import Bound, theorem_4_1, theorem_c_1
from parley.theory.generalization.inputs import check_start
from parley.theory.generalization.problems import MeanEstimation, group_size
from parley.theory.generalization.rules import Minimise, Rule
from parley.theory.theta import Array


@dataclass(frozen=True, eq=False)
class Terms:
    """Expectations over all samples; arrays are [K]."""

    gap: float
    """E [R(theta_hat) - R_S(theta_hat)], what the bounds bound."""
    local: Array
    """E Delta_k."""
    noniid: Array
    """E delta_k."""
    suboptimality: Array
    """E eps_k; 0 for `Minimise`."""


@dataclass(frozen=True, eq=False)
class LocalModels:
    """The first two moments of all clients' models theta_k and sample means zbar_k."""

    problem: MeanEstimation
    mean: Array
    """E theta_k [K, d]."""
    covariance: Array
    """Cov(theta_k) [K, d, d]."""
    cross: Array
    """Cov(theta_k, zbar_k) [K, d, d]."""
    residual: Array
    """Cov(theta_k - zbar_k) [K, d, d]; kept apart so that it is exactly 0 for `Minimise`."""

    @classmethod
    def of(cls, problem: MeanEstimation, rule: Rule | None = None, start: npt.ArrayLike | None = None) -> "LocalModels":
        rule = rule or Minimise()
        begin = check_start(start, problem.dimension)
        means, covariances, crosses, residuals = [], [], [], []
        for k, (H, C, n) in enumerate(zip(problem.H, problem.C, problem.n, strict=True)):
            size = group_size(int(n), rule.groups, k)
            eigenvalues, V = np.linalg.eigh(H)
            w = rule.filters(eigenvalues)
            total = (V * w.sum(axis=0)) @ V.T
            means.append(begin + total @ (problem.m[k] - begin))
            covariances.append(V @ ((w.T @ w) * (V.T @ C @ V)) @ V.T / size)
            crosses.append(total @ C / n)
            off = w - 1 / rule.groups
            residuals.append(V @ ((off.T @ off) * (V.T @ C @ V)) @ V.T / size)
        return cls(problem, *(np.stack(parts) for parts in (means, covariances, crosses, residuals)))

    def local(self) -> Array:
        """E Delta_k [K]."""
        return _traces(self.problem.H, self.cross)

    def suboptimality(self) -> Array:
        """E eps_k = 1/2 E ||theta_k - zbar_k||^2_{H_k} [K]."""
        return 0.5 * (self._squares(self.mean) + _traces(self.problem.H, self.residual))

    def noniid(self, w: Array) -> Array:
        """E delta_k [K] of the model sum_j w_j theta_j."""
        sample_means = self.problem.C / self.problem.n[:, None, None]
        share = w[:, None, None]
        others = np.einsum("j,jab->ab", w**2, self.covariance) - share**2 * self.covariance
        # w theta_k - zbar_k = w (theta_k - zbar_k) - (1 - w) zbar_k
        spread = others + share**2 * self.residual + (1 - share) ** 2 * sample_means
        spread = spread - 2 * share * (1 - share) * (self.cross - sample_means)
        to_sample = 0.5 * (self._squares(w @ self.mean) + _traces(self.problem.H, spread))
        return np.asarray(to_sample - self.suboptimality(), dtype=np.float64)

    def risks(self, w: Array) -> Array:
        """E R_k [K] of the model sum_j w_j theta_j."""
        spread = np.einsum("j,jab->ab", w**2, self.covariance) + self.problem.C
        return 0.5 * (self._squares(w @ self.mean) + _traces(self.problem.H, spread))

    def _squares(self, theta: Array) -> Array:
        """||theta - m_k||^2_{H_k} [K] for theta [d] or [K, d]."""
        away = theta - self.problem.m
        return np.asarray(np.einsum("ka,kab,kb->k", away, self.problem.H, away), dtype=np.float64)


def exact_terms(problem: MeanEstimation, rule: Rule | None = None, start: npt.ArrayLike | None = None) -> Terms:
    """The true gap and the bounds' terms of one round; `rule` defaults to `Minimise()`, `start` [d] to zero."""
    models = LocalModels.of(problem, rule, start)
    local = models.local()
    return Terms(float((problem.p**2 * local).sum()), local, models.noniid(problem.p), models.suboptimality())


def exact_bound(problem: MeanEstimation, rule: Rule | None = None, start: npt.ArrayLike | None = None) -> Bound:
    """Theorem 4.1 (for `Minimise`, the default) or C.1 at the exact terms."""
    terms = exact_terms(problem, rule, start)
    if rule is None or isinstance(rule, Minimise):
        return theorem_4_1(problem.p, terms.local, terms.noniid, problem.L, problem.mu)
    return theorem_c_1(problem.p, terms.local, terms.noniid, terms.suboptimality, problem.L, problem.mu)


def _traces(left: Array, right: Array) -> Array:
    """tr(left_k right_k) [K]."""
    return np.asarray(np.einsum("kab,kba->k", left, right), dtype=np.float64)
