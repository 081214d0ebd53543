"""One round with minibatches as an affine map theta -> T theta + c (Su et al., Section 7.1).

Each of the s passes visits the client's batches once, in order: FedAvg with the step eta / n_i on the sum over the
batch, FedProx with (6) on the batch (its loss divided by n_i) and the prox centred at the latest local iterate.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from parley.core.errors import InputError
from parley.theory.kernel.methods import KernelStep, ProximalStep
from parley.theory.kernel.points import as_numbers, as_points, check_finite
from parley.theory.theta import Array


@dataclass(frozen=True, eq=False)
class AffineRound:
    """theta -> matrix theta + shift."""

    matrix: Array
    shift: Array

    def __call__(self, theta: Array) -> Array:
        return np.asarray(self.matrix @ theta + self.shift, dtype=np.float64)

    def then(self, other: "AffineRound") -> "AffineRound":
        """This map, followed by the other one."""
        return AffineRound(other.matrix @ self.matrix, other.matrix @ self.shift + other.shift)

    def power(self, times: int) -> "AffineRound":
        """The map applied `times` >= 1 times, by repeated squaring."""
        if times < 2:
            return self
        half = self.power(times // 2)
        twice = half.then(half)
        return twice.then(self) if times % 2 else twice

    def limit(self) -> Array:
        """The fixed point; refuses a map without a unique one."""
        shrink = np.eye(len(self.matrix)) - self.matrix
        if np.linalg.cond(shrink) > 1e14:
            raise InputError("this round has no unique fixed point: some direction is reached by no client's data.")
        return np.asarray(np.linalg.solve(shrink, self.shift), dtype=np.float64)


def minibatch_round(
    features: Sequence[npt.ArrayLike], targets: Sequence[npt.ArrayLike], method: KernelStep, batch: int
) -> AffineRound:
    """A round with batches of `batch` samples, the last one perhaps smaller; features [n_i, d], targets [n_i]."""
    if not isinstance(batch, int | np.integer) or batch < 1:
        raise InputError(f"a batch needs a whole number of samples, at least one, not {batch!r}.")
    if not len(features) or len(features) != len(targets):
        raise InputError(f"give one target array per client; got {len(features)} clients and {len(targets)} targets.")
    rounds, sizes = [], []
    for number, (x, y) in enumerate(zip(features, targets, strict=True)):
        X, values = as_points(x, f"client {number}'s features"), as_numbers(y, f"client {number}'s targets")
        if values.shape != X.shape[:1]:
            raise InputError(f"client {number} has {len(X)} samples but targets of shape {values.shape}.")
        check_finite(values, f"client {number}'s targets")
        one_pass = AffineRound(np.eye(X.shape[1]), np.zeros(X.shape[1]))
        for start in range(0, len(X), batch):
            part = slice(start, start + batch)
            one_pass = one_pass.then(_batch_step(X[part], values[part], method, len(X)))
        rounds.append(one_pass.power(method.s))
        sizes.append(len(X))
    weights = np.array(sizes) / sum(sizes)
    return AffineRound(
        np.asarray(sum(w * client.matrix for w, client in zip(weights, rounds, strict=True))),
        np.asarray(sum(w * client.shift for w, client in zip(weights, rounds, strict=True))),
    )


def _batch_step(X: Array, y: Array, method: KernelStep, n: int) -> AffineRound:
    d = X.shape[1]
    gram, right = method.eta / n * (X.T @ X), method.eta / n * (X.T @ y)
    if isinstance(method, ProximalStep):
        factor = cho_factor(np.eye(d) + gram)
        return AffineRound(cho_solve(factor, np.eye(d)), cho_solve(factor, right))
    return AffineRound(np.eye(d) - gram, right)
