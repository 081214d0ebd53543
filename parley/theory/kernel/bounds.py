"""Bounds on the prediction error (Su et al.: Proposition 7, Theorems 8, 10, 11, 22, Corollaries 23-24, Lemma 27).

All bound E ||f_t - f||_N^2 (or its tail) for any f in the RKHS: `start` is ||f_0 - f||_H, `delta` is ||Delta_f||_2 of
(21), both of which the caller must know or assume. Where the paper has an unnamed constant, one that is proven is given
if we have it (see `TAIL_RATE`); otherwise `constant` multiplies the rate and defaults to 1.
"""

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from parley.core.errors import InputError
from parley.theory.arguments import check_positive, check_sizes, check_whole
from parley.theory.kernel.decay import as_rounds
from parley.theory.kernel.spectrum import Spectrum
from parley.theory.kernel.stopping import as_spectrum, rademacher
from parley.theory.theta import Array

# Hsu, Kakade and Zhang (2012): P(xi'Qxi > sigma^2 (tr Q + 2 sqrt(tr(Q^2) x) + 2 ||Q|| x)) <= e^-x for noise whose
# moment generating function is at most exp(sigma^2 a^2 / 2). With the paper's ||Q|| <= kappa, tr Q <= kappa N /
# (2e sigma^2 eta t s) and margin N kappa / (e eta t s), x = z^2 N / (e sigma^2 eta t s) where z^2 + z/sqrt(2) = 1/2.
TAIL_RATE = float(((np.sqrt(2.5) - np.sqrt(0.5)) / 2) ** 2 / np.e)
"""c of Theorem 10 for sub-Gaussian noise with variance proxy sigma^2: 0.0703."""

# The same inequality for Lemma 27: 1/(2e) + 2 sqrt(v/(2e)) + 2 v = 1 with v = c.
NORM_TAIL_RATE = float(((np.sqrt(2 - 1 / (2 * np.e)) - np.sqrt(1 / (2 * np.e))) / 2) ** 2)
"""c of Lemma 27 for sub-Gaussian noise with variance proxy sigma^2: 0.211."""


def proposition7(spectrum: Spectrum, t: npt.ArrayLike, start: float, sigma: float, delta: float = 0.0) -> Array:
    """(18) with delta_1 and delta_2 themselves."""
    check_sizes(start=start, sigma=sigma, delta=delta)
    parts = spectrum.bias(t) * start**2 + spectrum.variance(t) * sigma**2 + delta**2 / spectrum.N
    return np.asarray(3 * spectrum.kappa * parts, dtype=np.float64)


def theorem8(spectrum: Spectrum, t: npt.ArrayLike, start: float, delta: float = 0.0) -> Array:
    """The 1/t bound for rounds 1 <= t <= T of the stopping rule (23)."""
    check_sizes(start=start, delta=delta)
    return np.asarray(
        3 * spectrum.kappa * ((start**2 + 1) / (2 * np.e * _time(spectrum, t)) + delta**2 / spectrum.N),
        dtype=np.float64,
    )


def theorem10(spectrum: Spectrum, t: npt.ArrayLike, start: float, delta: float = 0.0) -> Array:
    """The level of (24) that ||f_t - f||_N^2 exceeds with at most `theorem10_tail`, for 1 <= t <= T."""
    check_sizes(start=start, delta=delta)
    return np.asarray(
        3 * spectrum.kappa * ((start**2 + 3) / (2 * np.e * _time(spectrum, t)) + delta**2 / spectrum.N),
        dtype=np.float64,
    )


def theorem10_tail(
    spectrum: Spectrum,
    t: npt.ArrayLike,
    sigma: float,
    moment: tuple[float, float] | None = None,
    constant: float | None = None,
) -> Array:
    """epsilon_t of Theorem 10, at most 1.

    Without `moment` for sub-Gaussian noise. `moment = (p, M_p)`, p >= 4, is for heavy tails with E|xi|^p <= M_p: p = 4
    has a proven constant (Chebyshev: max(M_4, 2 sigma^4) e/2), any other p needs the paper's unknown `constant` c_p.
    """
    check_positive(sigma=sigma, constant=TAIL_RATE if constant is None else constant)
    ratio = spectrum.N / (sigma**2 * _time(spectrum, t))
    if moment is None:
        return np.exp(-(TAIL_RATE if constant is None else constant) * ratio)
    p, M = moment
    if not p >= 4 or not M > 0:
        raise InputError(f"heavy-tailed noise needs a moment of order p >= 4 and M_p > 0, not {p:g} and {M:g}.")
    if constant is None and p != 4:
        raise InputError(f"the constant c_p is proven for p = 4 only; give `constant` for p = {p:g}.")
    # Var(xi'Qxi) <= max(M_4, 2 sigma^4) ||Q||_F^2 and ||Q||_F^2 <= kappa^2 N / (2e sigma^2 eta t s).
    factor = max(M, 2 * sigma**4) * np.e / 2 if constant is None else constant * M
    power = 1.0 if constant is None else p / 4
    # ratio is N / (sigma^2 time): the paper's (time / (N sigma^2)) has one sigma^4 more in its denominator.
    return np.minimum(1.0, factor / (ratio * sigma**4) ** power)


def theorem11(spectrum: Spectrum, t: npt.ArrayLike, start: float, sigma: float, delta: float = 0.0) -> Array:
    """The exponential bound for K of finite rank d, no early stopping needed; d is the numerical rank."""
    check_sizes(start=start, sigma=sigma, delta=delta)
    d = spectrum.rank
    method, kappa = spectrum.method, spectrum.kappa
    rate = method.eta * method.s / kappa
    bias = kappa / (method.eta * method.s) * start**2 * np.exp(-2 * rate * spectrum.kernel[d - 1] * as_rounds(t))
    return np.asarray(3 * (bias + kappa * sigma**2 * d / spectrum.N + kappa * delta**2 / spectrum.N), dtype=np.float64)


def lemma27(spectrum: Spectrum, t: npt.ArrayLike, start: float, delta: float = 0.0) -> Array:
    """||f_t - f||_H is at most this for t <= T, except with probability `lemma27_tail`."""
    check_sizes(start=start, delta=delta)
    return np.asarray(start + 1 + np.sqrt(_time(spectrum, t) / spectrum.N) * delta, dtype=np.float64)


def lemma27_tail(spectrum: Spectrum, t: npt.ArrayLike, sigma: float, constant: float = NORM_TAIL_RATE) -> Array:
    """The probability that Lemma 27 fails, for sub-Gaussian noise."""
    check_positive(sigma=sigma, constant=constant)
    return np.exp(-constant * spectrum.N / (sigma**2 * _time(spectrum, t)))


def critical_radius(eigenvalues: npt.ArrayLike, N: int, sigma: float) -> float:
    """epsilon_N = inf { eps : R(eps) <= eps^2 / (sqrt(2e) sigma) }.

    With the eigenvalues of K it is 1/sqrt(eta T s); with those of k in L2(P) it is Theorem 22's.
    """
    values = as_spectrum(eigenvalues, N)
    if not values.any():
        raise InputError("a critical radius needs a positive eigenvalue.")
    check_positive(sigma=sigma)
    noise = np.sqrt(2 * np.e) * sigma

    def excess(log_radius: float) -> float:
        radius = np.exp(log_radius)
        return float(np.log(noise * rademacher(values, N, radius) / radius**2))

    low, high = -1.0, 1.0
    while excess(low) < 0:
        low *= 2
    while excess(high) > 0:
        high *= 2
    return float(np.exp(brentq(excess, low, high, xtol=1e-14, rtol=1e-14)))


def theorem22(kappa: float, radius: float, start: float, delta: float, N: int, constant: float = 1.0) -> float:
    """||f_T - f||_{L2(P)}^2 at the stopping round, for iid points; `radius` is the critical radius of k in L2(P)."""
    check_sizes(kappa=kappa, radius=radius, start=start, delta=delta, constant=constant)
    check_whole("N", N)
    return constant * kappa * (radius**2 * (start**2 + 1) + delta**2 / N)


def corollary23(kappa: float, sigma: float, rank: int, N: int, constant: float = 1.0) -> float:
    """The L2(P) rate of a kernel of finite rank: kappa sigma^2 r / N."""
    check_sizes(kappa=kappa, sigma=sigma, rank=rank, constant=constant)
    check_whole("N", N)
    return constant * kappa * sigma**2 * rank / N


def corollary24(kappa: float, sigma: float, beta: float, N: int, constant: float = 1.0) -> float:
    """The L2(P) rate for eigenvalues of order i^(-2 beta), beta > 1/2: kappa (sigma^2 / N)^(2 beta / (2 beta + 1))."""
    if not 0.5 < beta < np.inf:
        raise InputError(f"polynomial decay needs a finite beta > 1/2, not {beta:g}.")
    check_sizes(kappa=kappa, sigma=sigma, constant=constant)
    check_whole("N", N)
    return float(constant * kappa * (sigma**2 / N) ** (2 * beta / (2 * beta + 1)))


def _time(spectrum: Spectrum, t: npt.ArrayLike) -> Array:
    rounds = as_rounds(t)
    if (rounds < 1).any():
        raise InputError("this bound starts at round 1.")
    return np.asarray(spectrum.method.eta * spectrum.method.s * rounds, dtype=np.float64)
