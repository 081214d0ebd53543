"""Models linear in their weights with a squared loss, in closed form: each client's Hessian and minimiser.

These are a single linear layer, and least squares on fixed features (the model `features`: polynomials, random Fourier
features, Nystroem's approximation of a kernel).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parley.data import ClientData
from parley.models.feature_model import FeatureModel
from parley.models.structure import Step
from parley.theory.surrogate import Quadratics
from parley.training.losses import half_squares, mse
from parley.training.task import Task

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LinearProblem:
    """f_i(W) = scale/2 mean_n ||Z_n W' - y_n||^2 + ridge/2 ||W||^2, W [outputs, width], one design Z per client.

    A vector of parameters is W's rows one after the other (`coordinates`), so that a client's Hessian repeats
    scale Z'Z/n + ridge I once per output.
    """

    designs: list[Array]
    """[n_i, width] inputs, with a last column of ones where the model has a bias."""
    targets: list[Array]
    """[n_i, outputs]."""
    shares: Array
    """[m] weights in the mean loss, summing to one."""
    scale: float
    ridge: float
    bias: bool

    @property
    def width(self) -> int:
        return int(self.designs[0].shape[1])

    @property
    def outputs(self) -> int:
        return int(self.targets[0].shape[1])

    @property
    def dimension(self) -> int:
        return self.width * self.outputs

    def coordinates(self, x: Array) -> Array:
        """W's rows, [d], from a module's weight matrix and bias one after the other, [d]."""
        if not self.bias:
            return x
        split = self.outputs * (self.width - 1)
        return np.hstack([x[:split].reshape(self.outputs, -1), x[split:, None]]).ravel()

    def blocks(self) -> Array:
        """scale Z'Z/n + ridge I of every client and, last, of the mean loss, [m + 1, width, width]."""
        hessians = np.stack([self.scale * Z.T @ Z / len(Z) + self.ridge * np.eye(self.width) for Z in self.designs])
        return np.concatenate([hessians, np.einsum("i,ijk->jk", self.shares, hessians)[None]])

    def spectra(self) -> Array:
        """Smallest and largest eigenvalue of every client and, last, of the mean loss, [m + 1, 2]."""
        return np.asarray(np.linalg.eigvalsh(self.blocks())[:, [0, -1]], dtype=np.float64)

    def minimisers(self, start: Array) -> tuple[Array, Array]:
        """Every client's minimiser [m, d] and that of the mean loss [d]; of several, the one nearest to `start`."""
        minimisers = [self._solve([i], np.ones(1), start) for i in range(len(self.designs))]
        return np.stack(minimisers), self._solve(range(len(self.designs)), self.shares, start)

    def quadratics(self, optima: Array) -> Quadratics:
        """The clients as the theory room takes them."""
        hessians = np.stack([np.kron(np.eye(self.outputs), block) for block in self.blocks()[:-1]])
        return Quadratics(hessians, optima, self.shares)

    def _solve(self, which: Sequence[int], shares: Array, start: Array) -> Array:
        W = start.reshape(self.outputs, self.width)
        rows, right = [], []
        for share, i in zip(shares, which, strict=True):
            factor = np.sqrt(share * self.scale / len(self.designs[i]))
            rows.append(factor * self.designs[i])
            right.append(factor * (self.targets[i] - self.designs[i] @ W.T))
        if self.ridge:
            rows.append(np.sqrt(self.ridge) * np.eye(self.width))
            right.append(-np.sqrt(self.ridge) * W.T)
        # The step of least norm from the start: gradient descent from there ends in the same minimiser.
        step = np.linalg.lstsq(np.vstack(rows), np.vstack(right), rcond=None)[0]
        return np.asarray((W + step.T).ravel(), dtype=np.float64)


def is_least_squares(task: Task) -> bool:
    """Whether the model is linear in its weights and the loss a squared one, so that every client is a quadratic."""
    plain = len(_layers(task)) == 1 and _layers(task)[0].kind == "linear"
    return (plain or isinstance(task.module, FeatureModel)) and task.loss in (half_squares, mse)


def least_squares(task: Task, data: Sequence[ClientData], shares: Array, ridge: float) -> LinearProblem | None:
    """The task in closed form, or None if its model is not linear in its weights or its loss not a squared one."""
    if not is_least_squares(task):
        return None
    module = task.module
    bias = not isinstance(module, FeatureModel) and _layers(task)[0].bias is not None
    designs, targets = [], []
    for client in data:
        inputs = module.features(client.x) if isinstance(module, FeatureModel) else client.x
        Z = inputs.double().flatten(1).numpy()
        designs.append(np.hstack([Z, np.ones((len(Z), 1))]) if bias else Z)
        targets.append(client.y.double().reshape(len(Z), -1).numpy())
    scale = 1.0 if task.loss is half_squares else 2.0 / targets[0].shape[1]
    return LinearProblem(designs, targets, shares, scale, ridge, bias)


def _layers(task: Task) -> list[Step]:
    """The layers that compute something, where the model is a plain chain of dense ones."""
    return [step for step in task.traits.dense or () if step.kind not in ("flatten", "identity")]
