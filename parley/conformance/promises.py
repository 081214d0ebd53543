"""What a method promises: the point it settles at on quadratics with exact gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from parley.theory.surrogate import All, Quadratics, ThetaLike
from parley.theory.theta import Array


class Promise(Protocol):
    """Where a method should end on these clients: a point [d], or one for each client [clients, d]."""

    def point(self, clients: Quadratics) -> Array: ...


@dataclass(frozen=True)
class Optimum:
    """The minimiser of sum_i p_i f_i: SCAFFOLD, FedDyn, centralised training."""

    partial: bool = False
    """Also with some of the clients in a round, and with replies that never arrive."""

    def point(self, clients: Quadratics) -> Array:
        return clients.empirical_minimiser


@dataclass(frozen=True)
class Surrogate:
    """The minimiser of the surrogate loss (Charles and Konečný, Lemma 11): FedAvg, FedProx and their kin."""

    lr: float
    """Local step size (gamma)."""
    theta: ThetaLike | int
    """Which local gradients count: K for the sum of K of them, or a Theta."""
    alpha: float = 0.0
    """Strength of a proximal term alpha/2 ||y - x||^2."""

    def point(self, clients: Quadratics) -> Array:
        theta = All(self.theta) if isinstance(self.theta, int) else self.theta
        return clients.minimiser(self.lr, theta, self.alpha)


@dataclass(frozen=True)
class OwnOptimum:
    """Every client's own model at the minimiser of its own f_i: local training, personal methods without a pull."""

    partial: bool = False
    """Also with some of the clients in a round, and with replies that never arrive."""

    def point(self, clients: Quadratics) -> Array:
        return clients.c


@dataclass(frozen=True)
class Averaged:
    """The mean of the last iterates at another promise's point, where the last one itself goes on oscillating."""

    of: Promise
    """Where the mean should be."""
    last: int = 2
    """Rounds whose models are averaged."""
    within: float = 1e-10
    """Distance allowed."""
    rounds: int = 1_000
    """Rounds to run."""

    def point(self, clients: Quadratics) -> Array:
        return self.of.point(clients)
