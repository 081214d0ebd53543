"""Linear and kernel-ridge models as weak learners, fitted by scikit-learn and kept as flat tensors."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from parley.algorithms.boosting.weak.base import Learner, Norm, Slopes, learners
from parley.algorithms.boosting.weak.lipschitz import EXACT
from parley.core.errors import InputError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.tree import Tree
from parley.theory.theta import Array
from parley.training.task import Task


@learners("linear")
@dataclass(frozen=True)
class Linear(Learner):
    """A linear model of the inputs: it sends one weight per input and output, and the intercepts."""

    norms: ClassVar[tuple[Norm, ...]] = ("l2", "l-infinity", "lipschitz")

    ridge: float = 1e-6
    """Penalty on the squared weights, against the sum over the samples."""
    slope_weight: float = 1.0
    """How much a squared error of the slopes counts beside one of the values (Lipschitz norm)."""

    def __post_init__(self) -> None:
        if not (self.ridge >= 0 and self.slope_weight >= 0):
            raise InputError(f"ridge and slope_weight must be at least 0, not {self.ridge} and {self.slope_weight}.")

    def fit(
        self, task: Task, x: Tensor, phi: Tensor, key: Key, norm: Norm = "l2", slopes: Slopes | None = None
    ) -> Tree:
        from sklearn.linear_model import Ridge

        inputs, targets = _rows(x), phi.cpu().numpy()
        if norm == "l-infinity":
            weight, bias = _least_maximum(inputs, targets)
        elif norm == "lipschitz":
            assert slopes is not None
            weight, bias = self._with_slopes(inputs, targets, slopes)
        else:
            fitted = Ridge(self.ridge, solver="svd").fit(inputs, targets)
            weight, bias = fitted.coef_.reshape(targets.shape[1], -1), np.atleast_1d(fitted.intercept_)
        return {
            name: torch.from_numpy(value).to(x.dtype).cpu()[None]
            for name, value in (("weight", weight), ("bias", bias))
        }

    def _with_slopes(self, x: Array, phi: Array, slopes: Slopes) -> tuple[Array, Array]:
        """(21) for a function whose gradient is its weight everywhere: least squares of values and slopes."""
        x = np.concatenate([x, _rows(slopes.x)])
        phi = np.concatenate([phi, slopes.values.cpu().numpy()])
        wanted, count = slopes.gradients.cpu().numpy().mean(0), self.slope_weight * len(slopes.x)
        away, middle = x - x.mean(0), phi.mean(0)
        gram = away.T @ away + (self.ridge + count) * np.eye(x.shape[1])
        weight = np.linalg.solve(gram, away.T @ (phi - middle) + count * wanted.T).T
        return weight, middle - weight @ x.mean(0)

    def form(self, task: Task, count: int | None) -> Form:
        outputs = task.info.outputs
        return Form.of(weight=(None, (count, outputs, prod(task.info.shape))), bias=(None, (count, outputs)))

    def sum(self, task: Task, learners: Tree, coefficients: Tensor, x: Tensor) -> Tensor:
        scale = coefficients.cpu()
        weight = (learners["weight"].cpu().double() * scale[:, None, None]).sum(0)
        return _rows_tensor(x) @ weight.T + (learners["bias"].cpu().double() * scale[:, None]).sum(0)

    def slopes(self, task: Task, learner: Tree, x: Tensor) -> Tensor:
        return learner["weight"].cpu().double().expand(len(x), -1, -1)


@learners("kernel-ridge")
@dataclass(frozen=True)
class KernelRidge(Learner):
    """Kernel ridge regression with an RBF kernel. It SENDS THE CLIENT'S INPUTS, at which the function is anchored."""

    discloses: ClassVar[tuple[str, ...]] = ("inputs",)

    width: float = 1.0
    """sigma of k(x, z) = exp(-||x - z||^2 / (2 sigma^2))."""
    ridge: float = 1.0
    """Penalty on the squared norm of the function."""

    def __post_init__(self) -> None:
        if not (self.width > 0 and self.ridge > 0):
            raise InputError(f"width and ridge must be above 0, not {self.width} and {self.ridge}.")

    def fit(
        self, task: Task, x: Tensor, phi: Tensor, key: Key, norm: Norm = "l2", slopes: Slopes | None = None
    ) -> Tree:
        from sklearn.kernel_ridge import KernelRidge as Fitted

        fitted = Fitted(alpha=self.ridge, kernel="rbf", gamma=self._gamma).fit(_rows(x), phi.cpu().numpy())
        return {
            "points": x.cpu().flatten(1),
            "dual": torch.from_numpy(fitted.dual_coef_).to(x.dtype),
            "sizes": torch.tensor([len(x)]),
        }

    @property
    def _gamma(self) -> float:
        return 1 / (2 * self.width**2)

    def sound(self, task: Task, learners: Tree) -> bool:
        points, dual, sizes = (learners.get(name, torch.empty(0)) for name in ("points", "dual", "sizes"))
        shapes = points.shape[1:] == (prod(task.info.shape),) and dual.shape == (len(points), task.info.outputs)
        return shapes and sizes.dtype == torch.int64 and bool((sizes > 0).all()) and int(sizes.sum()) == len(points)

    def sum(self, task: Task, learners: Tree, coefficients: Tensor, x: Tensor) -> Tensor:
        dual = learners["dual"].cpu().double() * coefficients.cpu().repeat_interleave(learners["sizes"].cpu())[:, None]
        square = torch.cdist(_rows_tensor(x), _rows_tensor(learners["points"]), compute_mode=EXACT).square()
        return torch.exp(-self._gamma * square) @ dual


def _rows_tensor(x: Tensor) -> Tensor:
    return x.detach().cpu().double().flatten(1)


def _rows(x: Tensor) -> Array:
    return np.asarray(_rows_tensor(x).numpy())


def _least_maximum(x: Array, phi: Array) -> tuple[Array, Array]:
    """The weights whose largest error is least, output by output: a linear program (20)."""
    from scipy.optimize import linprog

    ones = np.ones((len(x), 1))
    sides = np.block([[x, ones, -ones], [-x, -ones, -ones]])
    cost = np.append(np.zeros(x.shape[1] + 1), 1.0)
    bounds = [(None, None)] * (x.shape[1] + 1) + [(0, None)]
    results = []
    for target in phi.T:
        done = linprog(cost, A_ub=sides, b_ub=np.concatenate([target, -target]), bounds=bounds)
        if not done.success:
            raise InputError(f"the linear program of the least maximum was not solved: {done.message}")
        results.append(done.x)
    solution = np.array(results)
    return solution[:, :-2], solution[:, -2]
