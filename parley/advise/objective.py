"""A client's loss as a function of one flat float64 vector: value, gradient, Hessian products, minimiser.

Networks are taken in evaluation mode (no dropout, BatchNorm with its statistics), so that the function is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from torch import Tensor

from parley.data import ClientData
from parley.training.task import Task

Array = npt.NDArray[np.float64]

CHUNK = 512
"""Samples per pass; the sums over chunks are exact, only memory depends on it."""


@contextmanager
def torch_on_one_thread() -> Iterator[None]:
    """As in training: small products are no faster with more threads, and far slower on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Objective:
    """f(x) = mean loss over the samples + ridge/2 ||x||^2, all trainable parameters in x, [d].

    `weights` [n], summing to one, replace the samples' equal ones.
    """

    def __init__(
        self, task: Task, data: ClientData, ridge: float = 0.0, weights: Array | None = None, chunk: int = CHUNK
    ) -> None:
        # A copy in double precision: Lanczos on float32 products would see rounding as curvature.
        self.module = deepcopy(task.network).double().eval()
        self.loss, self.ridge, self.chunk = task.loss, ridge, chunk
        self.data = ClientData(_double(data.x), _double(data.y))
        self.weights = torch.full((len(data),), 1 / len(data), dtype=torch.float64)
        if weights is not None:
            self.weights = torch.from_numpy(weights)
        self.leaves = [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    @property
    def dimension(self) -> int:
        return sum(leaf.numel() for leaf in self.leaves)

    def value_and_gradient(self, x: Array) -> tuple[float, Array]:
        """f(x) and its gradient, [d]."""
        self._load(x)
        value, total = self.ridge / 2 * float(x @ x), self.ridge * x
        for part in self._parts():
            value += float(part.detach())
            total = total + _flat(torch.autograd.grad(part, self.leaves, materialize_grads=True))
        return value, total

    def product(self, x: Array, v: Array) -> Array:
        """The Hessian at x times v, [d]."""
        self._load(x)
        direction = self._split(v)
        total = self.ridge * v
        for part in self._parts():
            gradients = torch.autograd.grad(part, self.leaves, create_graph=True, materialize_grads=True)
            along = torch.stack([(g * d).sum() for g, d in zip(gradients, direction, strict=True)]).sum()
            if along.requires_grad:
                total = total + _flat(torch.autograd.grad(along, self.leaves, materialize_grads=True))
        return total

    def minimiser(self, start: Array, iterations: int = 500) -> tuple[Array, float]:
        """Where L-BFGS gets from `start`, and the norm of the gradient there."""
        solution = minimize(
            self.value_and_gradient,
            start,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": iterations, "maxfun": 2 * iterations, "ftol": 1e-15, "gtol": 1e-10},
        )
        x = np.asarray(solution.x, dtype=np.float64)
        return x, float(np.linalg.norm(self.value_and_gradient(x)[1]))

    def _parts(self) -> Iterator[Tensor]:
        """The mean loss in pieces that add up to it."""
        for begin in range(0, len(self.data), self.chunk):
            rows = slice(begin, begin + self.chunk)
            with torch.enable_grad():
                part = torch.dot(self.loss(self.module(self.data.x[rows]), self.data.y[rows]), self.weights[rows])
            yield part

    def _load(self, x: Array) -> None:
        with torch.no_grad():
            for leaf, values in zip(self.leaves, self._split(x), strict=True):
                leaf.copy_(values)

    def _split(self, x: Array) -> list[Tensor]:
        parts = torch.from_numpy(np.ascontiguousarray(x)).split([leaf.numel() for leaf in self.leaves])
        return [part.view_as(leaf) for part, leaf in zip(parts, self.leaves, strict=True)]


def _flat(values: tuple[Tensor, ...]) -> Array:
    return np.asarray(torch.cat([value.detach().double().reshape(-1) for value in values]).numpy(), dtype=np.float64)


def _double(values: Tensor) -> Tensor:
    return values.double() if values.is_floating_point() else values
