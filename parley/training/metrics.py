"""Metrics by name: numbers that judge all outputs of one owner's samples at once, besides loss and accuracy.

A metric is any function (outputs, targets) -> number, in the order of losses. It is given tensors on the CPU: logits
[n, C] and classes [n] (of sequences [n, C, T] and [n, T], with IGNORE where no target counts), or values of a
regression in the same shape. NaN says that it is not defined for these samples; means are then taken over the clients
where it is.

    @metric("brier", smaller=True)
    def brier(outputs, targets): ...
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from parley.core.errors import InputError, nearest
from parley.core.plugins import is_file_name
from parley.core.registry import Registry
from parley.data import DataInfo
from parley.training.losses import IGNORE, check_order

Function = Callable[[Tensor, Tensor], Any]
F = TypeVar("F", bound=Function)
Kind = Literal["classes", "numbers"]
ALWAYS = {"loss": True, "accuracy": False}
"""What is measured in any case -> whether smaller is better."""
_SHARES = ("accuracy", "auc", "average-precision", "balanced-accuracy", "f1", "precision", "recall")
_BINS = 15
"""Bins of the calibration error."""


@dataclass(frozen=True)
class Scorer:
    """A metric as it is used: the function, its name, and whether smaller is better."""

    name: str
    function: Function
    smaller: bool = False
    judges: Kind | None = None
    """What it can be computed for; None: anything."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        try:
            return float(self.function(outputs, targets))
        except Exception as error:
            text = (str(error).strip().splitlines() or [""])[0].rstrip(".")
            raise InputError(f"the metric '{self.name}' raised {type(error).__name__}: {text}.") from error


metrics: Registry[Function] = Registry("metric")


def metric(name: str, *, smaller: bool = False, judges: Kind | None = None) -> Callable[[F], F]:
    """Register a metric under a name that studies can use; `smaller`: smaller is better.

    A function that is given without being registered says so by an attribute `smaller = True`.
    """

    def register(function: F) -> F:
        function.smaller, function.judges = smaller, judges  # type: ignore[attr-defined]
        return metrics(name)(function)

    return register


def scorers(wanted: Iterable[str | Function], info: DataInfo) -> dict[str, Scorer]:
    """The metrics by the names under which they are recorded, of values in the target's own unit; `wanted` are names
    or functions."""
    regression = info.kind == "regression"
    by_name: dict[str, Scorer] = {}
    for each in wanted:
        if isinstance(each, str) and each in ALWAYS:
            continue
        scorer = _scorer(each)
        if "/" in scorer.name or scorer.name in ALWAYS:
            raise InputError(f"a metric cannot be called '{scorer.name}'; rename the function.")
        if by_name.get(scorer.name, scorer) != scorer:
            raise InputError(f"two metrics are called '{scorer.name}'; rename one of them.")
        if scorer.judges is not None and (scorer.judges == "numbers") != regression:
            task = "a regression" if regression else "to tell classes apart"
            fitting = [n for n in metrics if _scorer(n).judges in (None, "numbers" if regression else "classes")]
            raise InputError(
                f"the metric '{scorer.name}' judges {scorer.judges}, but the task is {task}; choose one of "
                f"{', '.join(fitting)}."
            )
        by_name[scorer.name] = scorer
    if not info.target_scale:
        return by_name
    return {name: replace(known, function=partial(_in_units, known.function, info)) for name, known in by_name.items()}


def _in_units(function: Function, info: DataInfo, outputs: Tensor, targets: Tensor) -> float | Tensor:
    value: float | Tensor = function(info.in_units(outputs), info.in_units(targets))
    return value


def smaller_is_better(name: str, known: Mapping[str, Scorer] | None = None) -> bool | None:
    """Whether smaller values of a recorded metric, such as `clients/auc`, are better; None if nothing says so."""
    last = name.rpartition("/")[2]
    if last in ALWAYS:
        return ALWAYS[last]
    if known and last in known:
        return known[last].smaller
    return _scorer(last).smaller if last in metrics else None


def check_measured(name: str, measured: Iterable[str], setting: str) -> None:
    """Refuse the name of a metric that is not measured."""
    if name not in (known := [*ALWAYS, *measured]):
        hint = f"add it to evaluate.metrics, ['{name}']." if name in metrics else nearest(name, known)
        raise InputError(f"{setting} names '{name}', which is not measured: {hint}")


def check_target(name: str, target: float | None, setting: str) -> None:
    """Refuse a target in percent of a metric that is a share, such as `central/accuracy`."""
    last = name.rpartition("/")[2]
    if target is not None and last in _SHARES and not 0 <= target <= 1:
        raise InputError(f"{setting} is {target:g}, but {last} lies between 0 and 1; for 95% write 0.95.")


def _scorer(wanted: str | Function) -> Scorer:
    function = metrics[wanted] if isinstance(wanted, str) else wanted
    if not callable(function):
        raise InputError(f"{function!r} is no metric: it must be a name, or a function of outputs and targets.")
    called = str(getattr(function, "__name__", type(function).__name__))
    if isinstance(wanted, str):
        called = wanted.rpartition(":")[2] if is_file_name(wanted) else wanted
    elif metrics.knows(function):
        called = metrics.name_of(function)
    check_order(function, f"the metric '{called}'")
    return Scorer(called, function, bool(getattr(function, "smaller", False)), getattr(function, "judges", None))


# --- classes ---


@dataclass(frozen=True)
class _Judged:
    """Every position that counts: its class, and what the model says of it."""

    y: np.ndarray
    """[m]"""
    logits: Tensor
    """[m, C] in float64"""

    @classmethod
    def of(cls, outputs: Tensor, targets: Tensor) -> _Judged:
        if outputs.ndim < 2 or outputs.shape[1] < 2:
            raise InputError(f"it needs logits of two classes or more, not outputs {list(outputs.shape)}")
        logits = outputs.movedim(1, -1).reshape(-1, outputs.shape[1]).double()
        y = targets.reshape(-1)
        counted = y != IGNORE
        return cls(y[counted].numpy(), logits[counted])

    @property
    def classes(self) -> list[int]:
        """Those that occur."""
        return [int(each) for each in np.unique(self.y)]

    @property
    def positive(self) -> list[int]:
        """The classes that are averaged over: of two, class 1; of more, all that occur."""
        occurring = self.classes
        return occurring if self.logits.shape[1] > 2 else [each for each in occurring if each == 1]

    @property
    def predicted(self) -> np.ndarray:
        """[m]; -1, which is never right, where outputs are not finite."""
        finite = torch.isfinite(self.logits).all(1)
        return torch.where(finite, self.logits.argmax(1), -1).numpy()

    @property
    def sound(self) -> bool:
        """Whether scores can be compared: there is something, and all of it is finite."""
        return len(self.y) > 0 and bool(torch.isfinite(self.logits).all())

    def score(self, each: int) -> np.ndarray:
        """What speaks for a class; of two the difference of the logits, which does not saturate."""
        if self.logits.shape[1] == 2:
            return (self.logits[:, each] - self.logits[:, 1 - each]).numpy()
        return torch.softmax(self.logits, 1)[:, each].numpy()


def _one_against_rest(outputs: Tensor, targets: Tensor, score: Callable[..., Any]) -> float:
    judged = _Judged.of(outputs, targets)
    if len(judged.classes) < 2 or not judged.sound:
        return math.nan
    return float(np.mean([score(judged.y == each, judged.score(each)) for each in judged.positive]))


@metric("auc", judges="classes")
def auc(outputs: Tensor, targets: Tensor) -> float:
    """Area under the ROC curve; of more than two classes the mean, each that occurs against the rest."""
    from sklearn.metrics import roc_auc_score

    return _one_against_rest(outputs, targets, roc_auc_score)


@metric("average-precision", judges="classes")
def average_precision(outputs: Tensor, targets: Tensor) -> float:
    """Area under the precision-recall curve, as a sum of steps; of more than two classes as auc."""
    from sklearn.metrics import average_precision_score

    return _one_against_rest(outputs, targets, average_precision_score)


def _per_class(outputs: Tensor, targets: Tensor, which: int, every: bool = False) -> float:
    """The mean of precision (0), recall (1) or F1 (2) over classes that occur."""
    from sklearn.metrics import precision_recall_fscore_support

    judged = _Judged.of(outputs, targets)
    labels = judged.classes if every else judged.positive
    if not labels:
        return math.nan
    values = precision_recall_fscore_support(judged.y, judged.predicted, labels=labels, zero_division=0.0)
    return float(np.mean(values[which]))


@metric("f1", judges="classes")
def f1(outputs: Tensor, targets: Tensor) -> float:
    """Harmonic mean of precision and recall, averaged over the classes that occur (macro), of two over both."""
    return _per_class(outputs, targets, 2, every=True)


@metric("recall", judges="classes")
def recall(outputs: Tensor, targets: Tensor) -> float:
    """Share of class 1 that is found; of more than two classes the mean over those that occur."""
    return _per_class(outputs, targets, 1)


@metric("precision", judges="classes")
def precision(outputs: Tensor, targets: Tensor) -> float:
    """Share of what is taken for class 1 that is it, 0 where nothing is; of more classes the mean as in recall."""
    return _per_class(outputs, targets, 0)


@metric("balanced-accuracy", judges="classes")
def balanced_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Mean over the classes that occur of the share that is found, however rare they are."""
    return _per_class(outputs, targets, 1, every=True)


@metric("log-loss", smaller=True, judges="classes")
def log_loss(outputs: Tensor, targets: Tensor) -> float:
    """Mean of -log of the probability given to the true class."""
    judged = _Judged.of(outputs, targets)
    if not judged.sound:
        return math.nan
    return float(torch.nn.functional.cross_entropy(judged.logits, torch.from_numpy(judged.y)))


@metric("calibration-error", smaller=True, judges="classes")
def calibration_error(outputs: Tensor, targets: Tensor) -> float:
    """Expected calibration error: |confidence - accuracy| in 15 equal bins of the largest probability, weighted."""
    judged = _Judged.of(outputs, targets)
    if not judged.sound:
        return math.nan
    confidence, predicted = (part.numpy() for part in torch.softmax(judged.logits, 1).max(1))
    gap = (predicted == judged.y).astype(np.float64) - confidence
    bins = np.minimum(np.ceil(confidence * _BINS).astype(int) - 1, _BINS - 1)
    return float(np.abs(np.bincount(bins, weights=gap, minlength=_BINS)).sum() / len(gap))


# --- numbers ---


def _values(outputs: Tensor, targets: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """[n, outputs] each, in float64."""
    flat = outputs.double().reshape(len(outputs), -1)
    return targets.double().reshape(flat.shape).numpy(), flat.numpy()


@metric("r2", judges="numbers")
def r2(outputs: Tensor, targets: Tensor) -> float:
    """Share of the targets' variance that is explained, the mean over outputs; not defined for constant targets."""
    y, predicted = _values(outputs, targets)
    if len(y) < 2 or not (total := np.square(y - y.mean(0)).sum(0)).all():
        return math.nan
    return float(np.mean(1 - np.square(y - predicted).sum(0) / total))


@metric("mae", smaller=True, judges="numbers")
def mae(outputs: Tensor, targets: Tensor) -> float:
    """Mean absolute error."""
    y, predicted = _values(outputs, targets)
    return float(np.abs(y - predicted).mean()) if y.size else math.nan


@metric("rmse", smaller=True, judges="numbers")
def rmse(outputs: Tensor, targets: Tensor) -> float:
    """Root of the mean squared error."""
    y, predicted = _values(outputs, targets)
    return float(np.sqrt(np.square(y - predicted).mean())) if y.size else math.nan
