"""The four estimators: any method with any network, and boosted trees, for classes and for numbers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.multiclass import check_classification_targets

from parley.algorithms import Algorithm, algorithms
from parley.algorithms.protocol import as_algorithm
from parley.algorithms.trees.histogram_boosting import HistogramBoosting
from parley.channels import Chain, Channel
from parley.core.errors import InputError
from parley.engine.settings import Faults, Sampling
from parley.models import models
from parley.privacy import Privacy
from parley.sklearn.base import Array, Federated
from parley.sklearn.nested import made
from parley.study.study import Model
from parley.training.losses import Loss


class _Classes(ClassifierMixin, Federated):
    """Targets are classes of any kind, numbered over all clients: a client may have one class only."""

    kind = "classification"

    def targets(self, y: Array) -> Array:
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        return numbers

    def width(self, targets: torch.Tensor) -> int:
        return len(self.classes_)

    def predict(self, X: ArrayLike, groups: ArrayLike | None = None) -> Array:
        """The likeliest class of every row; with `groups`, by the model of each row's client."""
        likeliest = self.outputs(X, groups).argmax(axis=1)
        return np.asarray(self.classes_[likeliest])

    def predict_proba(self, X: ArrayLike, groups: ArrayLike | None = None) -> Array:
        """Probabilities [n, classes] in the order of `classes_`."""
        return np.asarray(torch.from_numpy(self.outputs(X, groups)).softmax(dim=1).numpy())

    def score(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> float:
        """Accuracy over all rows."""
        return float(accuracy_score(y, self.predict(X, groups), sample_weight=sample_weight))


class _Numbers(RegressorMixin, Federated):
    """Targets are numbers, [n] or [n, outputs]."""

    kind = "regression"

    def targets(self, y: Array) -> Array:
        values = y.astype(np.float64)
        self.target_mean_, self.target_scale_ = np.zeros(values.shape[1:]), np.ones(values.shape[1:])
        if self.standardises:
            deviation = values.std(axis=0)
            self.target_mean_, self.target_scale_ = values.mean(axis=0), np.where(deviation > 0, deviation, 1.0)
        return np.asarray((values - self.target_mean_) / self.target_scale_)

    def width(self, targets: torch.Tensor) -> int:
        return 1 if targets.ndim == 1 else targets.shape[1]

    def predict(self, X: ArrayLike, groups: ArrayLike | None = None) -> Array:
        """The value of every row, of the targets' scale; with `groups`, by the model of each row's client."""
        outputs = self.outputs(X, groups)
        return outputs.reshape(len(outputs), *self.target_mean_.shape) * self.target_scale_ + self.target_mean_

    def score(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> float:
        """R2 over all rows."""
        return float(r2_score(y, self.predict(X, groups), sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class _AnyMethod(Federated):
    """Settings of `pl.train`."""

    def __init__(
        self,
        algorithm: str | Algorithm = "fedavg",
        model: str | Model = "linear",
        *,
        rounds: int = 100,
        cohort: int | Sampling | None = None,
        standardise: bool = True,
        shape: tuple[int, ...] | None = None,
        loss: str | Loss | None = None,
        channels: Channel | Chain | Sequence[Channel] = (),
        privacy: Privacy | None = None,
        faults: Faults | None = None,
        runtime: str = "auto",
        workers: int | None = None,
        random_state: Any = 0,
    ) -> None:
        self.algorithm = algorithm
        self.model = model
        self.rounds = rounds
        self.cohort = cohort
        self.standardise = standardise
        self.shape = shape
        self.loss = loss
        self.channels = channels
        self.privacy = privacy
        self.faults = faults
        self.runtime = runtime
        self.workers = workers
        self.random_state = random_state

    def method(self) -> Algorithm:
        method: Algorithm = made(algorithms, self.algorithm)
        return method

    @property
    def sample_shape(self) -> tuple[int, ...] | None:
        return self.shape

    @property
    def standardises(self) -> bool:
        if self.standardise and self.privacy is not None:
            raise InputError(
                "standardise takes means and deviations from the rows without noise, which privacy does not cover; "
                "set standardise=False and scale by public numbers."
            )
        return self.standardise

    def settings(self, network: bool) -> dict[str, Any]:
        names = ("cohort", "loss", "channels", "privacy", "faults", "runtime", "workers")
        model = {"model": made(models, self.model)} if network else {}
        return model | {name: getattr(self, name) for name in names}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        with suppress(InputError):  # an unknown name is told by `fit`
            tags.input_tags.allow_nan = as_algorithm(self.method()).needs.missing
        return tags


class _Boosted(Federated):
    """Settings of `pl.HistogramBoosting`."""

    def __init__(
        self,
        *,
        rounds: int = 100,
        lr: float = 0.1,
        depth: int = 6,
        min_leaf: int = 20,
        min_hessian: float = 1e-3,
        min_gain: float = 0.0,
        l2: float = 0.0,
        bins: int = 64,
        ranges: tuple[tuple[float, float], ...] = (),
        rows: float = 1.0,
        columns: float = 1.0,
        monotone: tuple[int, ...] = (),
        cohort: int | Sampling | None = None,
        channels: Channel | Chain | Sequence[Channel] = (),
        faults: Faults | None = None,
        runtime: str = "auto",
        workers: int | None = None,
        random_state: Any = 0,
    ) -> None:
        self.rounds = rounds
        self.lr = lr
        self.depth = depth
        self.min_leaf = min_leaf
        self.min_hessian = min_hessian
        self.min_gain = min_gain
        self.l2 = l2
        self.bins = bins
        self.ranges = ranges
        self.rows = rows
        self.columns = columns
        self.monotone = monotone
        self.cohort = cohort
        self.channels = channels
        self.faults = faults
        self.runtime = runtime
        self.workers = workers
        self.random_state = random_state

    def method(self) -> Algorithm:
        names = [field.name for field in fields(HistogramBoosting) if hasattr(self, field.name)]
        return HistogramBoosting(**{name: getattr(self, name) for name in names})

    def settings(self, network: bool) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("cohort", "channels", "faults", "runtime", "workers")}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class FederatedClassifier(_Classes, _AnyMethod):
    """Classes by any method of Parley's and any network: `algorithm` and `model` by name or as in `pl.train`.

    The rest is as in `pl.train` (`random_state` is its seed), and `standardise`: inputs of mean 0 and deviation 1 over
    all clients; `shape`: what a row is made into, (1, 8, 8) for pictures. After `fit`: `classes_`, `clients_`, `run_`.
    """


class FederatedRegressor(_Numbers, _AnyMethod):
    """Numbers by any method of Parley's and any network, with settings as of `FederatedClassifier`.

    `standardise` covers the targets too; predictions come on the targets' own scale.
    """


class FederatedBoostingClassifier(_Classes, _Boosted):
    """Classes by histogram boosting, with the settings of `pl.HistogramBoosting`: the trees of pooled rows.

    Missing values may be NaN. After `fit`: `classes_`, `clients_`, `run_`.
    """


class FederatedBoostingRegressor(_Numbers, _Boosted):
    """Numbers by histogram boosting, with the settings of `pl.HistogramBoosting`: the trees of pooled rows."""
