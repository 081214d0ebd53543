"""What a method promises: the point it settles at on quadratics with exact gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from parley.theory.surrogate import All, Quadratics, ThetaLike
from parley.theory.theta import Array


class Promise(Protocol):
    """Where a method should end on these clients."""

    def point(self, clients: Quadratics) -> Array: ...


@dataclass(frozen=True)
class Optimum:
    """The minimiser of sum_i p_i f_i: SCAFFOLD, FedDyn, centralised training."""

    def point(self, clients: Quadratics) -> Array:
        return clients.empirical_minimiser


@dataclass(frozen=True)
class Surrogate:
    """The minimiser of the surrogate loss (paper 001, Lemma 11): FedAvg, FedProx and their kin."""

    lr: float
    """Local step size (gamma)."""
    theta: ThetaLike | int
    """Which local gradients count: K for the sum of K of them, or a Theta."""
    alpha: float = 0.0
    """Strength of a proximal term alpha/2 ||y - x||^2."""

    def point(self, clients: Quadratics) -> Array:
        theta = All(self.theta) if isinstance(self.theta, int) else self.theta
        return clients.minimiser(self.lr, theta, self.alpha)
