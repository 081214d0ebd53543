"""Server optimizers on a quadratic: tuned parameters, rates, the error at a round (Charles and Konečný, Table 2).

Conventions, q(x) being the mean message of the clients, i.e. the surrogate's gradient, and x_{-1} = x_0:

    none        x_{t+1} = x_t - eta q(x_t)
    nesterov    y = x_t + beta (x_t - x_{t-1});  x_{t+1} = y - eta q(y)
    heavy-ball  x_{t+1} = x_t - eta q(x_t) + beta (x_t - x_{t-1})

`tune` gives the (eta, beta) that attain Table 2's rho for a spectrum in [mu, L] (Lessard, Recht and Packard, 2016,
Proposition 1). Table 2 alone bounds no error at round T: with momentum a factor comes with rho^T (`transient`).
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parley.core.errors import InputError, nearest
from parley.theory.region import check_curvature
from parley.theory.theta import Array

__all__ = [
    "SERVERS",
    "ServerSetting",
    "advance",
    "check_server",
    "error_factors",
    "log_kappa_of",
    "rate",
    "spectral_radius",
    "transient",
    "tune",
]

SERVERS = ("none", "nesterov", "heavy-ball")
"""The server optimizers by the kind of momentum they use."""


@dataclass(frozen=True)
class ServerSetting:
    """Server step `eta` on the mean message, `momentum` beta, and the asymptotic rate `rho` they attain."""

    eta: float
    momentum: float
    rho: float


def check_server(server: str) -> None:
    """Refuse unknown server optimizers."""
    if server not in SERVERS:
        raise InputError(f"unknown server optimizer '{server}': {nearest(server, SERVERS)}")


def rate(log_kappa: npt.ArrayLike, server: str = "none") -> Array:
    """rho of Table 2 from log(kappa) >= 0, elementwise; takes the logarithm so that no kappa is too large."""
    check_server(server)
    logs = np.asarray(log_kappa, dtype=np.float64)
    if not (logs >= 0).all():
        raise InputError("a condition number must satisfy kappa >= 1; give log(kappa) >= 0.")
    if server == "none":
        return np.asarray(np.tanh(logs / 2), dtype=np.float64)
    if server == "heavy-ball":
        return np.asarray(np.tanh(logs / 4), dtype=np.float64)
    excess = 3 * np.expm1(np.minimum(logs, 600.0))  # 3 (kappa - 1); rho is 1 to the last bit far before e^600
    root = np.sqrt(4 + excess)
    return np.asarray(np.minimum(excess / (root * (root + 2)), 1.0), dtype=np.float64)  # 1 - 2/root, not cancelling


def log_kappa_of(rho: npt.ArrayLike, server: str = "none") -> Array:
    """The inverse of `rate` on 0 <= rho < 1."""
    check_server(server)
    rates = np.asarray(rho, dtype=np.float64)
    if not ((rates >= 0) & (rates < 1)).all():
        raise InputError("a convergence rate must satisfy 0 <= rho < 1.")
    if server == "none":
        return np.asarray(2 * np.arctanh(rates), dtype=np.float64)
    if server == "heavy-ball":
        return np.asarray(4 * np.arctanh(rates), dtype=np.float64)
    return np.asarray(np.log1p(4 * rates * (2 - rates) / (3 * (1 - rates) ** 2)), dtype=np.float64)


def tune(server: str, L: float, mu: float) -> ServerSetting:
    """The step and momentum that attain `rate(log(L / mu), server)` on any quadratic with spectrum in [mu, L]."""
    check_server(server)
    check_curvature(L, mu)
    rho = float(rate(np.log(L / mu), server))
    if server == "none":
        return ServerSetting(2 / (L + mu), 0.0, rho)
    if server == "heavy-ball":
        return ServerSetting(4 / (math.sqrt(L) + math.sqrt(mu)) ** 2, rho * rho, rho)
    return ServerSetting(4 / (3 * L + mu), rho / (2 - rho), rho)  # beta = (s - 2)/(s + 2), s = sqrt(3 kappa + 1)


def transient(rho: npt.ArrayLike, rounds: npt.ArrayLike, server: str = "none") -> Array:
    """The least factor F with ||x_T - x~|| <= F rho^T ||x_0 - x~|| for every quadratic with spectrum in [mu, L].

    1 without momentum, 1 + (1 + rho) T for heavy ball (attained at L), 1 + (1 - rho) T for Nesterov (attained at mu).
    """
    check_server(server)
    rates, counts = np.asarray(rho, dtype=np.float64), np.asarray(rounds, dtype=np.float64)
    if not ((rates >= 0) & (rates <= 1)).all() or not (np.isfinite(counts) & (counts >= 0)).all():
        raise InputError("a transient needs rates 0 <= rho <= 1 and a finite number of rounds of at least 0.")
    slope = {"none": 0 * rates, "nesterov": 1 - rates, "heavy-ball": 1 + rates}[server]
    return np.asarray(1 + slope * counts, dtype=np.float64)


def error_factors(server: str, eta: npt.ArrayLike, momentum: npt.ArrayLike, eigenvalues: Array, rounds: int) -> Array:
    """What `rounds` server rounds multiply the error along each Hessian eigenvalue by; all arguments broadcast."""
    check_server(server)
    step, beta, _ = np.broadcast_arrays(np.asarray(eta) * eigenvalues, momentum, eigenvalues)
    left = 1 - step
    if server == "none":
        return np.asarray(left**rounds, dtype=np.float64)
    companion = np.zeros((*left.shape, 2, 2))
    companion[..., 0, 0] = left + beta * left if server == "nesterov" else left + beta
    companion[..., 0, 1] = -beta * left if server == "nesterov" else -beta
    companion[..., 1, 0] = 1.0
    powers = np.linalg.matrix_power(companion, rounds)
    return np.asarray(powers[..., 0, 0] + powers[..., 0, 1], dtype=np.float64)  # x_{-1} = x_0


def advance(server: str, setting: ServerSetting, hessian: Array, minimiser: Array, start: Array, rounds: int) -> Array:
    """x_T of a server optimizer that sees exact gradients hessian @ (x - minimiser), from x_0 = `start`, [d]."""
    eigenvalues, vectors = np.linalg.eigh(hessian)
    factors = error_factors(server, setting.eta, setting.momentum, eigenvalues, rounds)
    return np.asarray(minimiser + vectors @ (factors * (vectors.T @ (start - minimiser))), dtype=np.float64)


def spectral_radius(server: str, eta: npt.ArrayLike, momentum: npt.ArrayLike, eigenvalues: Array) -> Array:
    """The asymptotic rate [...] of server settings [...] on quadratics with Hessian eigenvalues [..., d]."""
    check_server(server)
    beta = np.asarray(momentum, dtype=np.float64)[..., None]
    left = 1 - np.asarray(eta, dtype=np.float64)[..., None] * np.asarray(eigenvalues)
    trace = left * (1 + beta) if server == "nesterov" else left + beta
    product = left * beta if server == "nesterov" else beta
    root = np.sqrt((trace / 2) ** 2 - product + 0j)
    return np.asarray(np.maximum(np.abs(trace / 2 + root), np.abs(trace / 2 - root)).max(axis=-1), dtype=np.float64)
