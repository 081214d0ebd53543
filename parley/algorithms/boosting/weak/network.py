"""Small networks as weak learners: the task's own model, started afresh and trained on the shared local core.

network = Network(epochs=100)
h = network.fit(task, x, phi, key)          # one learner, tensors [1, ...]
network.values(task, h, x)                  # [n, outputs]
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from parley.algorithms.boosting.weak.base import Learner, Norm, Slopes, learners
from parley.core.errors import InputError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.tree import Tree
from parley.data import ClientData
from parley.training.batches import Work
from parley.training.local import train
from parley.training.losses import Loss, half_squares
from parley.training.optimizers import LocalOptimizer
from parley.training.task import Task

_CHUNK = 1024
"""Rows that a network is evaluated on at once."""
_POWER = 8
"""||.||_8 over the samples stands for the maximum, which has no useful gradient."""


@learners("network")
@dataclass(frozen=True)
class Network(Learner):
    """A network of the study's [model], with weights of its own drawn afresh for every learner."""

    norms: ClassVar[tuple[Norm, ...]] = ("l2", "l-infinity", "lipschitz")
    needs_model: ClassVar[bool] = True

    epochs: int = 100
    """Passes over the client's data."""
    batch: int | None = 64
    """Samples per step; 0 takes all."""
    lr: float = 0.001
    """Step size."""
    optimizer: str = "adam"
    """sgd or any elementwise one of torch.optim."""
    clip: float | None = 5.0
    """Largest norm of a step's gradient."""
    slope_weight: float = 1.0
    """How much a squared error of the slopes counts beside one of the values (Lipschitz norm)."""

    def __post_init__(self) -> None:
        if self.batch == 0:
            object.__setattr__(self, "batch", None)
        if self.clip is not None and not self.clip > 0:
            raise InputError(f"clip must be above 0, not {self.clip}.")
        self._work()
        self._steps()

    def _work(self) -> Work:
        return Work(epochs=self.epochs, batch=self.batch)

    def _steps(self) -> LocalOptimizer:
        return LocalOptimizer(self.optimizer, self.lr)

    def check(self, task: Task, norm: Norm) -> None:
        super().check(task, norm)
        fresh_weights(task.network, Key())

    def fit(
        self, task: Task, x: Tensor, phi: Tensor, key: Key, norm: Norm = "l2", slopes: Slopes | None = None
    ) -> Tree:
        start = {name: value.to(x.device) for name, value in fresh_weights(task.network, key.fold("weights")).items()}
        y = phi.to(next(iter(start.values())).dtype)
        if norm == "lipschitz":
            assert slopes is not None
            return self._fit_slopes(task, start, x, y, slopes, key)
        fitted = self._trained(task, half_squares, start, x, y, key)
        if norm == "l-infinity":  # from the least squares on towards the least maximum, wherever that is smaller
            largest = self._largest(task, fitted, x, phi)
            parameters = {name: value[0] for name, value in fitted.items() if name in start}
            further = self._trained(task, _Largest(largest), parameters, x, y, key.fold("maximum"))
            fitted = further if self._largest(task, further, x, phi) < largest else fitted
        return fitted

    def _trained(self, task: Task, loss: Loss, start: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
        trained = train(
            replace(task, loss=loss),
            start,
            ClientData(x, y),
            key,
            work=self._work(),
            optimizer=self._steps(),
            clip=self.clip,
        )
        return {name: value[None] for name, value in {**trained.parameters, **trained.buffers}.items()}

    def _largest(self, task: Task, learner: Tree, x: Tensor, phi: Tensor) -> float:
        return float((self.values(task, learner, x) - phi.cpu()).norm(dim=1).max())

    def _fit_slopes(self, task: Task, start: Tree, x: Tensor, y: Tensor, slopes: Slopes, key: Key) -> Tree:
        """(21): the values at the client's inputs, and values and slopes in between."""
        module = _WithSlopes(task.network, self.slope_weight)
        names = {f"module.{name}": value for name, value in start.items()}
        points = torch.cat([slopes.x, x])
        outside = torch.cat([slopes.values.to(y), y])
        gradients = slopes.gradients.to(y).flatten(1) * self.slope_weight**0.5
        unknown = torch.full((len(x), gradients.shape[1]), torch.nan, dtype=y.dtype, device=y.device)
        targets = torch.cat([outside, torch.cat([gradients, unknown])], dim=1)
        sobolev = Task(module, _known_half_squares, task.info, task.population, device=task.device)
        trained = train(
            sobolev, names, ClientData(points, targets), key, work=self._work(), optimizer=self._steps(), clip=self.clip
        )
        return {name.removeprefix("module."): value[None] for name, value in trained.parameters.items()}

    def sum(self, task: Task, learners: Tree, coefficients: Tensor, x: Tensor) -> Tensor:
        total = torch.zeros(len(x), task.info.outputs, dtype=torch.float64)
        with torch.no_grad():
            for number, coefficient in enumerate(coefficients.tolist()):
                predict = task.predictor({name: value[number] for name, value in learners.items()})
                for start in range(0, len(x), _CHUNK):
                    rows = slice(start, start + _CHUNK)
                    total[rows] += coefficient * predict(x[rows]).cpu().double()
        return total

    def slopes(self, task: Task, learner: Tree, x: Tensor) -> Tensor:
        module, weights = task.network, {name: value[0] for name, value in learner.items()}
        module.eval()
        jacobian = vmap(jacrev(lambda point: functional_call(module, weights, (point[None],))[0]))(x)
        return cast(Tensor, jacobian.reshape(len(x), task.info.outputs, -1).detach().double())

    def form(self, task: Task, count: int | None) -> Form:
        return Form({name: (dtype, (count, *shape)) for name, (dtype, shape) in _specs(task).items()})


def fresh_weights(module: nn.Module, key: Key) -> Tree:
    """Trainable parameters drawn anew as the module's layers draw theirs; the global random state stays as it was."""
    again = deepcopy(module)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key.seed)
        for name, layer in again.named_modules():
            parameters = [parameter for parameter in layer.parameters(recurse=False) if parameter.requires_grad]
            reset: Any = getattr(layer, "reset_parameters", None)
            if parameters and reset is None:
                where = f"'{name}' of " if name else ""
                raise InputError(
                    f"the layer {where}{type(layer).__name__} cannot draw its weights anew (reset_parameters), as a "
                    "weak learner must; give it that method, or take another model or learner."
                )
            if parameters:
                reset()
    return {name: parameter.detach() for name, parameter in again.named_parameters() if parameter.requires_grad}


def _specs(task: Task) -> dict[str, Any]:
    return {**task.form, **task.buffer_form}


class _Largest:
    """(||h - phi|| / largest)^8 / 8 of each sample: its mean is least where the largest error nearly is."""

    def __init__(self, largest: float) -> None:
        self.largest = largest or 1.0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        squares = ((outputs - targets) / self.largest).square().flatten(1).sum(1)
        return squares ** (_POWER / 2) / _POWER


class _WithSlopes(nn.Module):
    """x -> a network's outputs and, behind them, its gradients by x, weighted."""

    def __init__(self, module: nn.Module, weight: float) -> None:
        super().__init__()
        self.module, self.scale = module, weight**0.5

    def forward(self, x: Tensor) -> Tensor:
        def one(row: Tensor) -> Tensor:
            return cast(Tensor, self.module(row[None])[0])

        slopes = vmap(jacrev(one))(x).reshape(len(x), -1)
        return torch.cat([self.module(x), slopes * self.scale], dim=1)


def _known_half_squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """1/2 of the squared errors of what is known: where a target is NaN, anything will do."""
    known = targets.isfinite()
    error = torch.where(known, outputs - torch.where(known, targets, 0.0), 0.0)
    return error.square().sum(1) / 2
