"""Bounds of Gholami and Seferoglu as printed: Theorems 4.1, C.1 and 4.3, and two partial-participation formulas.

With weights p_k and, in expectation over the samples, the local gap Delta_k = R_k(theta_k) - R_S_k(theta_k), the
non-iidness delta_k = R_S_k(theta_hat) - R_S_k(theta_k) and the suboptimality eps_k = R_S_k(theta_k) - min R_S_k, all
have the form

    sum_k p_k [a s_k^2 X_k + c s_k sqrt(X_k Y_k)]

    Theorem 4.1   s_k = p_k           X = Delta           Y = delta         a = L/mu     c = 2 sqrt(L/mu)
    Theorem C.1   s_k = p_k           X = Delta + 2 eps   Y = delta + eps   a = 2 L/mu   c = sqrt(8 L/mu)
    Case I        s_k = 1/cohort      as Theorem 4.1; FALSE
    Case II       s_k = p_k K/cohort  as Theorem 4.1; FALSE

Theorem 4.1 and C.1 have been checked line by line against Appendices B and C and hold. For eps = 0, C.1 is not 4.1 but
up to twice as large. What fails in the other formulas is shown in `parley.theory.generalization.participation`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parley.core.errors import InputError
from parley.theory.arguments import check_sizes, check_whole
from parley.theory.generalization.inputs import check_cohort, check_expectations, check_numbers, check_weights
from parley.theory.region import check_curvature
from parley.theory.theta import Array


@dataclass(frozen=True)
class Bound:
    """The two terms of a bound on the expected generalisation gap."""

    local: float
    """The part that the local gaps alone make; the one with 1/K^2 for equal weights."""
    mixed: float
    """The part with the root of non-iidness times local gap; positive for iid clients too."""

    @property
    def total(self) -> float:
        return self.local + self.mixed


def theorem_4_1(weights: npt.ArrayLike, local: npt.ArrayLike, noniid: npt.ArrayLike, L: float, mu: float) -> Bound:
    """(6): one round, every client sends the exact minimiser of its empirical risk.

    `local` and `noniid` [K] are E Delta_k and E delta_k; both are non-negative for such clients. The loss of every
    single sample must be mu-strongly convex and L-smooth.
    """
    p, gap, disagreement = _checked(weights, L, mu, {"local": local, "noniid": noniid})
    return two_terms(p, p, gap, disagreement, *coefficients(L, mu, exact=True))


def theorem_c_1(
    weights: npt.ArrayLike,
    local: npt.ArrayLike,
    noniid: npt.ArrayLike,
    suboptimality: npt.ArrayLike,
    L: float,
    mu: float,
) -> Bound:
    """(38): one round, clients send whatever their local algorithm ends at, E eps_k above their empirical minimum.

    Delta_k and delta_k may be negative here, but Delta_k + 2 eps_k and delta_k + eps_k may not.
    """
    K = len(check_weights(weights))
    eps = check_expectations("suboptimality", suboptimality, K)
    inflated, total = check_numbers("local", local, K) + 2 * eps, check_numbers("noniid", noniid, K) + eps
    p, X, Y = _checked(weights, L, mu, {"local + 2 suboptimality": inflated, "noniid + suboptimality": total})
    return two_terms(p, p, X, Y, *coefficients(L, mu, exact=False))


def theorem_4_3(
    weights: npt.ArrayLike,
    noniid: npt.ArrayLike,
    L: float,
    mu: float,
    *,
    samples: npt.ArrayLike,
    complexity: float,
    variance: float,
    steps: int,
    constants: tuple[float, float] = (1.0, 1.0),
) -> Bound:
    """(9) for one round, UP TO UNKNOWN CONSTANTS and logarithms: never compare its size with a measured gap.

    A = c_A (sqrt(complexity / |Z_k|) + variance / (mu steps)) and B = c_B (delta_k + variance / (mu steps)) stand for
    C.1's Delta + 2 eps and delta + eps; the paper names neither the `constants` (c_A, c_B) nor the measure of
    complexity. R rounds: the mean over rounds. A leaves out how far a round starts from the clients' minima, which
    eps_k contains; so no constants make A an upper bound of Delta + 2 eps in general.
    """
    check_sizes(complexity=complexity, variance=variance)
    check_whole("the number of steps", steps)
    if len(constants) != 2 or not all(np.isfinite(c) and c > 0 for c in constants):
        raise InputError(f"the two constants of (9) must be positive and finite, not {constants}.")
    Z = np.broadcast_to(np.asarray(samples, dtype=np.float64), np.shape(weights))
    if not (Z >= 1).all():
        raise InputError("every client needs at least one sample in a round.")
    p, disagreement = _checked(weights, L, mu, {"noniid": noniid})
    noise = variance / (mu * steps)
    A, B = constants[0] * (np.sqrt(complexity / Z) + noise), constants[1] * (disagreement + noise)
    return two_terms(p, p, A, B, *coefficients(L, mu, exact=False))


def printed_case_1(
    weights: npt.ArrayLike, cohort: int, local: npt.ArrayLike, noniid: npt.ArrayLike, L: float, mu: float
) -> Bound:
    """(73), `cohort` clients drawn with replacement by weight and averaged equally. FALSE, for comparison only."""
    p, gap, disagreement = _checked(weights, L, mu, {"local": local, "noniid": noniid})
    check_cohort(cohort)
    return two_terms(p, np.full(len(p), 1 / cohort), gap, disagreement, *coefficients(L, mu, exact=True))


def printed_case_2(
    weights: npt.ArrayLike, cohort: int, local: npt.ArrayLike, noniid: npt.ArrayLike, L: float, mu: float
) -> Bound:
    """(74), `cohort` clients drawn without replacement, weighted p_k K/cohort. FALSE, for comparison only."""
    p, gap, disagreement = _checked(weights, L, mu, {"local": local, "noniid": noniid})
    check_cohort(cohort, len(p))
    return two_terms(p, p * len(p) / cohort, gap, disagreement, *coefficients(L, mu, exact=True))


def coefficients(L: float, mu: float, exact: bool) -> tuple[float, float]:
    """(a, c) of the common form: Theorem 4.1's for clients that minimise exactly, else C.1's."""
    check_curvature(L, mu)
    return (L / mu, 2 * float(np.sqrt(L / mu))) if exact else (2 * L / mu, float(np.sqrt(8 * L / mu)))


def two_terms(p: Array, s: Array, X: Array, Y: Array, a: float, c: float) -> Bound:
    """sum_k p_k [a s_k^2 X_k + c s_k sqrt(X_k Y_k)]; infinite where it is too large for floating point."""
    with np.errstate(over="ignore"):
        return Bound(float((p * a * s**2 * X).sum()), float((p * c * s * np.sqrt(X) * np.sqrt(Y)).sum()))


def _checked(weights: npt.ArrayLike, L: float, mu: float, terms: dict[str, npt.ArrayLike]) -> list[Array]:
    check_curvature(L, mu)
    p = check_weights(weights)
    return [p, *(check_expectations(name, values, len(p)) for name, values in terms.items())]
