"""The exact state of a local update method after T rounds on known quadratics, for Theta_{1:K} and all clients in.

In the eigenbasis of the surrogate's Hessian round T is a closed form: x_T - x* = (x~ - x*) + p_T(Lambda) (x_0 - x~),
p_T being the server's `error_factors`. One setting costs one d x d decomposition, whatever K and T.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parley.core.errors import InputError
from parley.theory.quadratics import Quadratics, without_common_part
from parley.theory.region import check_counts, check_step
from parley.theory.servers import error_factors
from parley.theory.theta import Array, log_mean_all

__all__ = ["Rounds", "SurrogateDescent"]


@dataclass(frozen=True, eq=False)
class SurrogateDescent:
    """Surrogates in their eigenbases: `eigenvalues` ascending, `start` = x_0 - x~, `drift` = x~ - x*, each [..., d]."""

    eigenvalues: Array
    start: Array
    drift: Array

    def remaining(self, server: str, eta: npt.ArrayLike, momentum: npt.ArrayLike, rounds: int) -> Array:
        """x_T - x~ in the eigenbasis, [..., d]; eta and momentum broadcast against [...]."""
        step, beta = np.asarray(eta)[..., None], np.asarray(momentum)[..., None]
        return error_factors(server, step, beta, self.eigenvalues, rounds) * self.start

    def distance(self, server: str, eta: npt.ArrayLike, momentum: npt.ArrayLike, rounds: int) -> Array:
        """||x_T - x*||, [...]; infinite where the server diverges beyond floating point."""
        with np.errstate(over="ignore", invalid="ignore"):
            norms = np.linalg.norm(self.remaining(server, eta, momentum, rounds) + self.drift, axis=-1)
        return np.where(np.isfinite(norms), norms, np.inf)


class Rounds:
    """Settings tried on the same clients from the same start x_0 [d].

    >>> clients = Quadratics(np.array([[[1.0]], [[4.0]]]), np.array([[0.0], [1.0]]))
    >>> Rounds(clients, [0.0]).descent(gamma=0.1, K=5).drift.round(3)  # the stiffer client is heard less
    array([-0.107])
    """

    def __init__(self, clients: Quadratics, start: npt.ArrayLike) -> None:
        self.clients = clients
        offset = np.asarray(start, dtype=np.float64)
        if offset.shape != clients.c.shape[1:] or not np.isfinite(offset).all():
            raise InputError(f"the start must be {clients.c.shape[1]} finite numbers, one per dimension.")
        self._offset = offset - clients.empirical_minimiser
        # All clients' eigenvectors side by side, [d, m d]; p_i lam and c_i - x* along them, [m d].
        self._vectors = np.concatenate(list(clients.eigenvectors), axis=1)
        self._curvatures = (clients.p[:, None] * clients.eigenvalues).ravel()
        residuals = clients.c - clients.empirical_minimiser
        self._residuals = np.einsum("ijk,ij->ik", clients.eigenvectors, residuals).ravel()

    @property
    def start_distance(self) -> float:
        """||x_0 - x*||."""
        return float(np.linalg.norm(self._offset))

    def descent(self, gamma: npt.ArrayLike, K: npt.ArrayLike, alpha: npt.ArrayLike = 0.0) -> SurrogateDescent:
        """The surrogate of Theta_{1:K} as seen from x_0; arrays of settings broadcast to [...]."""
        check_step(gamma, alpha, self.clients.L)
        check_counts(K)
        step, count, strength = (np.asarray(value, dtype=np.float64)[..., None] for value in (gamma, K, alpha))
        logs = log_mean_all(step * (self.clients.eigenvalues.ravel() + strength), count)
        weighted = self._vectors * (np.exp(logs) * self._curvatures)[..., None, :]
        eigenvalues, basis = np.linalg.eigh(weighted @ self._vectors.T)
        pull = (without_common_part(logs, axis=-1) * self._curvatures * self._residuals) @ self._vectors.T
        drift = np.einsum("...ij,...i->...j", basis, pull) / eigenvalues
        return SurrogateDescent(count * eigenvalues, np.einsum("...ij,i->...j", basis, self._offset) - drift, drift)
