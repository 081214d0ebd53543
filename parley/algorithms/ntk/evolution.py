"""How the outputs of a linearised network evolve under gradient descent (Yue et al., (5), (9a), (10)), without steps.

With f = f_0 - c H S the network at time t is known by the cumulative residual S alone, and so are its weights,
w = w_0 - c J'S. With r(f) = f - Y (mean squares, c = eta/(N d_2)) or softmax f - Y (cross-entropy, c = eta/N):

    flow      S' = r(f_0 - c H S): gradient flow
    steps     S_{u+1} = S_u + r(f_0 - c H S_u): gradient descent, step by step
    printed   f by the flow, S = sum_{u<t} r(f_u) as (10) has it; of mean squares only

For mean squares S = phi_t(H) (f_0 - Y), where phi_t(h) is (1 - e^{-cht})/(ch), (1 - (1 - ch)^t)/(ch) or
(1 - e^{-cht})/(1 - e^{-ch}); it is applied as a Chebyshev polynomial, for all t at once. The flow of cross-entropy is
integrated by the stabilised explicit method of Sommeijer, Shampine and Verwer (RKC, 1998): s products with H for a step
of about s^2 times the length that is stable without, with error control, for all t in one go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Literal

import numpy as np
import torch
from scipy.fft import dct
from torch import Tensor

from parley.core.errors import InputError
from parley.core.key import Key
from parley.theory.theta import Array

Dynamics = Literal["flow", "steps", "printed"]
Product = Callable[[Tensor], Tensor]
"""R [n, outputs] -> H R."""
_STAGES = 2**16
"""Products with H that a step may take at most."""
_STEPS = 8
"""After so many steps the spectral radius is estimated again: it falls as the outputs become certain."""


@dataclass(frozen=True, eq=False)
class Evolution:
    """A linearised network under training: what it starts from, and how fast it goes."""

    product: Product
    """H, the kernel."""
    start: Tensor
    """f_0 at the samples, [n, outputs]."""
    targets: Tensor
    """Y, [n, outputs]; of classes one-hot."""
    rate: float
    """c: eta/N, of mean squares eta/(N d_2)."""
    classes: bool
    """Cross-entropy; otherwise mean squares."""
    dynamics: Dynamics = "flow"
    tolerance: float = 1e-4
    """Relative error of S that the integration allows in a step, and the Chebyshev polynomials altogether."""

    def residual(self, f: Tensor) -> Tensor:
        return (f.softmax(1) if self.classes else f) - self.targets

    def outputs(self, cumulative: Tensor) -> Tensor:
        """f of a cumulative residual."""
        return torch.add(self.start, self.product(cumulative), alpha=-self.rate)

    def slope(self, cumulative: Tensor) -> Tensor:
        """S'."""
        return self.residual(self.outputs(cumulative))

    def cumulative(self, grid: Sequence[int], largest: float | None = None) -> Tensor:
        """S at every t of the grid, [t, n, outputs]; `largest`: a bound of H's largest eigenvalue, if it is known."""
        if not grid or sorted(set(grid)) != list(grid) or grid[0] < 1:
            raise InputError(f"the times must rise from 1 or more, not {list(grid)}.")
        if not bool(self.start.isfinite().all()):
            raise InputError("the network's outputs are not all finite, so they cannot evolve: lower lr.")
        bound = largest_eigenvalue(self.product, self.start) if largest is None else largest
        if not self.classes:
            return self._squares(grid, bound)
        if self.dynamics == "steps":
            return self._steps(grid)
        if self.dynamics == "printed":
            raise InputError("(10) is printed for mean squares; cross-entropy has the dynamics flow and steps.")
        return self._flow(grid, bound * self.rate / 2)  # softmax has derivatives of at most 1/2

    def _radius(self, f: Tensor, v: Tensor, times: int) -> tuple[float, Tensor]:
        """The spectral radius of the derivative of S' at outputs f, by power iterations from v, and where they end."""
        p, size = f.softmax(1), 0.0
        for _ in range(times):
            u = self.product(v) * self.rate
            v = p * (u - (p * u).sum(1, keepdim=True))
            size = float(v.norm())
            v = v / size if size > 0 else v
        return size, v

    def _steps(self, grid: Sequence[int]) -> Tensor:
        states, s = [], torch.zeros_like(self.start)
        for t in range(1, grid[-1] + 1):
            s = s + self.slope(s)
            if t in grid:
                states.append(s)
        return torch.stack(states)

    def _squares(self, grid: Sequence[int], bound: float) -> Tensor:
        """phi_t(H) (f_0 - Y)."""
        coefficients = torch.from_numpy(_coefficients(self.dynamics, grid, self.rate, bound, self.tolerance))
        scale = 2 / bound if bound > 0 else 0.0
        before, now = None, self.start - self.targets
        result = coefficients[:, 0].to(now).view(-1, 1, 1) * now
        for degree in range(1, coefficients.shape[1]):
            ahead = torch.sub(self.product(now) * scale, now)
            before, now = now, ahead if before is None else 2 * ahead - before
            result += coefficients[:, degree].to(now).view(-1, 1, 1) * now
        return result

    def _flow(self, grid: Sequence[int], largest: float) -> Tensor:
        """RKC from 0 to the last t; `largest` bounds the spectral radius of the derivative of S' at any f."""
        y, f = torch.zeros_like(self.start), self.start
        slope, t, end = self.residual(f), 0.0, float(grid[-1])
        unit = _size(slope)
        radius, v = self._radius(f, slope / slope.norm().clamp(min=1e-30), 8)
        h = min(1 / largest, end) if largest > 0 else end
        taken, states = 0, list[Tensor]()
        while len(states) < len(grid):
            h = min(h, end - t)
            ahead = _rkc(self.slope, y, slope, h, min(1.2 * radius, largest))
            f = self.outputs(ahead)
            slope_ahead = self.residual(f)
            wrong = _size(0.8 * (y - ahead) + 0.4 * h * (slope + slope_ahead))
            allowed = self.tolerance * max(_size(ahead), unit)
            error = wrong / allowed if allowed > 0 else float("inf")
            if not error <= 1:
                if not h > 1e-10 * end:
                    raise InputError("the network's outputs cannot be evolved to this tolerance; raise it.")
                h *= max(0.1, 0.8 * error ** (-1 / 3)) if error < float("inf") else 0.1
                radius = largest  # a wrong estimate of it shows as an error
                continue
            t = end if end - t - h < 1e-9 * end else t + h
            while len(states) < len(grid) and grid[len(states)] <= t:
                states.append(_between(y, slope, ahead, slope_ahead, h, 1 - (t - grid[len(states)]) / h))
            y, slope, taken = ahead, slope_ahead, taken + 1
            h *= min(2.0, 0.8 * max(error, 1e-6) ** (-1 / 3))
            if taken % _STEPS == 0 or radius == largest:
                radius, v = self._radius(f, v, 2)
        return torch.stack(states)


def largest_eigenvalue(product: Product, like: Tensor, steps: int = 12) -> float:
    """An upper bound of H's largest eigenvalue, close to it: Lanczos' Ritz value and the residual that is left."""
    v = torch.randn(like.shape, generator=Key(0).fold("lanczos").torch(), dtype=torch.float64).to(like)
    v, before, beta = v / v.norm(), torch.zeros_like(like), 0.0
    alphas, betas = [], []
    for _ in range(min(steps, like.numel())):
        w = product(v) - beta * before
        alpha = float((w * v).sum())
        w = w - alpha * v
        beta = float(w.norm())
        alphas.append(alpha)
        betas.append(beta)
        if not beta > 1e-12 * abs(alpha):
            break
        before, v = v, w / beta
    t = np.diag(alphas) + np.diag(betas[:-1], 1) + np.diag(betas[:-1], -1)
    values, vectors = np.linalg.eigh(t)
    # The Ritz vector's own residual, with a margin for what a few steps from a random start do not see.
    return float(max(values[-1] + betas[-1] * abs(vectors[-1, -1]), 0.0)) * 1.02


def _phi(dynamics: Dynamics, t: int, z: Array) -> Array:
    """phi_t at z = c h, for h >= 0; t at z = 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        if dynamics == "steps":
            power = np.where(z < 1, -np.expm1(t * np.log1p(-np.minimum(z, 0.999999999))), 1 - (1 - z) ** t)
            value = power / z
        else:
            value = np.expm1(-z * t) / (-z if dynamics == "flow" else np.expm1(-z))
    return np.where(z > 0, value, float(t))


def _coefficients(dynamics: Dynamics, grid: Sequence[int], rate: float, bound: float, tolerance: float) -> Array:
    """Chebyshev coefficients of phi_t on [0, bound], [t, degree + 1]: as many as the tolerance needs."""
    count = 64
    while True:
        nodes = np.cos(np.pi * (np.arange(count) + 0.5) / count)
        values = np.stack([_phi(dynamics, t, rate * bound * (nodes + 1) / 2) for t in grid])
        result: Array = dct(values, type=2, axis=1) / count
        result[:, 0] /= 2
        # What the coefficients beyond a degree can add, beside the largest value.
        tails = np.cumsum(np.abs(result[:, ::-1]), 1)[:, ::-1] / np.abs(values).max(1, keepdims=True)
        least = 4 * count * np.finfo(np.float64).eps  # what rounding alone leaves
        needed = int((tails > max(min(tolerance, 1e-4) * 1e-2, least)).any(0).sum())
        if needed <= count // 2 or count >= 2**17:
            return result[:, : max(needed, 1)]
        count *= 2


def _rkc(slope: Product, y: Tensor, first: Tensor, h: float, radius: float) -> Tensor:
    """One step of the second-order Runge-Kutta-Chebyshev method."""
    if not 1.54 * h * radius < _STAGES**2:
        raise InputError(
            f"the network's outputs are too stiff to evolve (a rate of {radius:.3g} over {h:.3g}): lower lr."
        )
    stages = max(2, 1 + int(sqrt(1.54 * h * radius + 1)))
    w0 = 1 + 2 / (13 * stages**2)
    t, dt, ddt = _chebyshev(stages, w0)
    w1 = dt[stages] / ddt[stages]
    b = np.empty(stages + 1)
    b[2:] = ddt[2:] / dt[2:] ** 2
    b[:2] = b[2]
    a = 1 - b * t
    before, now = y, torch.add(y, first, alpha=float(b[1] * w1 * h))
    for j in range(2, stages + 1):
        mu, nu, step = 2 * b[j] * w0 / b[j - 1], -b[j] / b[j - 2], 2 * b[j] * w1 / b[j - 1]
        ahead = now * mu
        ahead.add_(before, alpha=float(nu)).add_(y, alpha=float(1 - mu - nu))
        ahead.add_(slope(now), alpha=float(step * h)).add_(first, alpha=float(-a[j - 1] * step * h))
        before, now = now, ahead
    return now


def _chebyshev(degree: int, at: float) -> tuple[Array, Array, Array]:
    """T_j and its first two derivatives at a point, for j up to the degree."""
    values, slopes, bends = np.empty(degree + 1), np.zeros(degree + 1), np.zeros(degree + 1)
    values[:2] = 1, at
    slopes[1] = 1
    for j in range(2, degree + 1):
        values[j] = 2 * at * values[j - 1] - values[j - 2]
        slopes[j] = 2 * values[j - 1] + 2 * at * slopes[j - 1] - slopes[j - 2]
        bends[j] = 4 * slopes[j - 1] + 2 * at * bends[j - 1] - bends[j - 2]
    return values, slopes, bends


def _between(y: Tensor, slope: Tensor, ahead: Tensor, slope_ahead: Tensor, h: float, part: float) -> Tensor:
    """The cubic through both ends of a step with their slopes, at a part of it."""
    if part >= 1:
        return ahead
    p, q = part, 1 - part
    ends = y * (q * q * (1 + 2 * p)) + ahead * (p * p * (1 + 2 * q))
    return ends + slope * (h * p * q * q) - slope_ahead * (h * p * p * q)


def _size(value: Tensor) -> float:
    return float(value.norm()) / sqrt(max(value.numel(), 1))
