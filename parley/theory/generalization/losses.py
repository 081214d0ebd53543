"""Stacks of quadratic losses: what the empirical and population risks of the problems here are."""

from dataclasses import dataclass

import numpy as np

from parley.theory.theta import Array


@dataclass(frozen=True, eq=False)
class Losses:
    """1/2 t'Ht - b't + c for H [..., d, d], b [..., d], c [...]; leading axes broadcast."""

    hessian: Array
    linear: Array
    constant: Array

    def at(self, theta: Array) -> Array:
        """The losses at theta [..., d]."""
        slope = 0.5 * self._apply(theta) - self.linear
        return np.asarray((slope * theta).sum(axis=-1) + self.constant, dtype=np.float64)

    def gradient(self, theta: Array) -> Array:
        return np.asarray(self._apply(theta) - self.linear, dtype=np.float64)

    def minimiser(self) -> Array:
        """[..., d]"""
        return np.asarray(np.linalg.solve(self.hessian, self.linear[..., None])[..., 0], dtype=np.float64)

    def pooled(self) -> "Losses":
        """The mean over the second axis: all groups of a sample together."""
        return Losses(self.hessian.mean(axis=1), self.linear.mean(axis=1), self.constant.mean(axis=1))

    def group(self, number: int) -> "Losses":
        """Entry `number` of the second axis; arrays that have only one there share it."""
        H, b, c = (a[:, min(number, a.shape[1] - 1)] for a in (self.hessian, self.linear, self.constant))
        return Losses(H, b, c)

    def as_sample(self) -> "Losses":
        """A single loss as the empirical risk of one trial and one group."""
        return Losses(self.hessian[None, None], self.linear[None, None], self.constant[None, None])

    def _apply(self, theta: Array) -> Array:
        return np.asarray((self.hessian @ theta[..., None])[..., 0], dtype=np.float64)
