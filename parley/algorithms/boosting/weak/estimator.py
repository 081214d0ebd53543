"""Any regressor of scikit-learn's kind as a weak learner, in a simulation in one process.

A fitted object of unknown code cannot travel: it would have to be unpickled. It stays in the process that fitted it,
and what is sent is its number. Elsewhere, on the wire or after a restart, it is refused.
"""

from __future__ import annotations

import os
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parley.algorithms.boosting.weak.base import Learner, Norm, Slopes
from parley.core.errors import UnsupportedError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.tree import Tree
from parley.training.task import Task

_fitted: dict[int, Any] = {}
"""What this process has fitted, by number."""
_home: list[int] = []
"""The processes in which a run with such learners began; others inherit the list, but not their number."""


@dataclass(frozen=True)
class Estimator(Learner):
    """A regressor with `fit(X, y)` and `predict(X)`; every learner is a fresh copy of it."""

    regressor: Any
    """An unfitted regressor, such as `sklearn.svm.SVR()`; one output each is enough."""

    def check(self, task: Task, norm: Norm) -> None:
        super().check(task, norm)
        _home[:] = [os.getpid()]

    def fit(
        self, task: Task, x: Tensor, phi: Tensor, key: Key, norm: Norm = "l2", slopes: Slopes | None = None
    ) -> Tree:
        if _home != [os.getpid()]:
            raise UnsupportedError(
                f"the weak learner {type(self.regressor).__name__} cannot leave the process it was fitted in: use "
                'runtime = "inline", or a learner that travels as tensors (tree, network, linear, kernel-ridge).'
            )
        inputs = x.cpu().flatten(1).numpy()
        models = []
        for number, target in enumerate(phi.T.cpu().numpy()):
            model = deepcopy(self.regressor)
            if "random_state" in getattr(model, "get_params", dict)():
                model.set_params(random_state=key.fold(number).seed % 2**32)
            models.append(model.fit(inputs, target))
        known = key.seed
        _fitted[known] = models
        return {"number": torch.tensor([known])}

    def form(self, task: Task, count: int | None) -> Form:
        return Form.of(number=(torch.int64, (count,)))

    def sound(self, task: Task, learners: Tree) -> bool:
        return all(number in _fitted for number in learners["number"].tolist())

    def sum(self, task: Task, learners: Tree, coefficients: Tensor, x: Tensor) -> Tensor:
        inputs, total = x.cpu().flatten(1).numpy(), np.zeros((len(x), task.info.outputs))
        for number, coefficient in zip(learners["number"].tolist(), coefficients.tolist(), strict=True):
            if number not in _fitted:
                raise UnsupportedError(
                    f"a fitted {type(self.regressor).__name__} is gone with the process that fitted it; such runs can "
                    "neither be resumed nor loaded."
                )
            total += coefficient * np.stack([model.predict(inputs) for model in _fitted[number]], axis=1)
        return torch.from_numpy(total)
