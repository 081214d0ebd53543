"""Metrics against scikit-learn and against their definitions, on labels and probabilities, and where they have none."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from parley.core.errors import InputError
from parley.data import DataInfo
from parley.training.losses import IGNORE
from parley.training.metrics import metric, metrics, scorers, smaller_is_better

NUMBERS, CLASSES = (DataInfo("made up", (1,), 2, kind) for kind in ("regression", "classification"))


def value(name: str, y, outputs) -> float:
    regression = name in ("r2", "mae", "rmse")
    return scorers([name], NUMBERS if regression else CLASSES)[name](torch.as_tensor(outputs), torch.as_tensor(y))


@given(st.integers(0, 10**6), st.integers(2, 5))
@settings(max_examples=25, deadline=None)
def test_classes_against_scikit_learn(seed: int, classes: int):
    random = np.random.default_rng(seed)
    y = np.r_[np.arange(classes), random.integers(classes, size=40)]
    logits = random.normal(size=(len(y), classes))
    p, predicted = np.exp(logits) / np.exp(logits).sum(1, keepdims=True), logits.argmax(1)
    two = classes == 2
    wanted = {
        "auc": sk.roc_auc_score(y, p[:, 1] if two else p, multi_class="ovr"),
        "average-precision": sk.average_precision_score(y, p[:, 1] if two else p),
        "f1": sk.f1_score(y, predicted, average="macro"),
        "recall": sk.recall_score(y, predicted, average="binary" if two else "macro"),
        "precision": sk.precision_score(y, predicted, average="binary" if two else "macro", zero_division=0),
        "balanced-accuracy": sk.balanced_accuracy_score(y, predicted),
        "log-loss": sk.log_loss(y, p),
    }
    for name, number in wanted.items():
        assert value(name, y, logits) == pytest.approx(number, rel=1e-9), name


def test_numbers_against_scikit_learn():
    random = np.random.default_rng(0)
    y, predicted = random.normal(size=(30, 2)), random.normal(size=(30, 2))
    assert value("r2", y, predicted) == pytest.approx(sk.r2_score(y, predicted))
    assert value("mae", y, predicted) == pytest.approx(sk.mean_absolute_error(y, predicted))
    assert value("rmse", y, predicted) == pytest.approx(np.sqrt(sk.mean_squared_error(y, predicted)))
    assert value("mae", y[:, 0], predicted[:, :1]) == pytest.approx(np.abs(y[:, 0] - predicted[:, 0]).mean())
    assert math.isnan(value("r2", np.ones((4, 1)), predicted[:4, :1]))


def test_a_model_that_never_finds_the_rare_class():
    """98% accurate, and worthless: what the other metrics say of it."""
    y = np.r_[np.zeros(98, int), np.ones(2, int)]
    outputs = np.tile([2.0, 0.0], (100, 1))
    assert value("recall", y, outputs) == 0
    assert value("precision", y, outputs) == 0
    assert value("auc", y, outputs) == value("balanced-accuracy", y, outputs) == 0.5
    assert value("average-precision", y, outputs) == pytest.approx(0.02)
    assert value("f1", y, outputs) == pytest.approx((2 * 0.98 / 1.98) / 2)


def test_calibration_error_by_hand():
    """Confidence 0.8 on 10 samples of which 6 are right, 0.6 on 10 of which 6 are: |0.8 - 0.6| / 2."""
    p = np.r_[np.full(10, 0.8), np.full(10, 0.6)]
    logits = np.log(np.stack([p, 1 - p], 1))
    y = np.r_[np.zeros(6, int), np.ones(4, int), np.zeros(6, int), np.ones(4, int)]
    assert value("calibration-error", y, logits) == pytest.approx(0.1)
    certain = np.array([[1000.0, 0.0]])
    assert value("calibration-error", [0], certain) == pytest.approx(0)
    assert value("calibration-error", [1], certain) == pytest.approx(1)


@pytest.mark.parametrize("name", ["auc", "average-precision"])
def test_one_class_only_is_not_defined(name: str):
    assert math.isnan(value(name, [1, 1, 1], np.random.default_rng(0).normal(size=(3, 2))))
    assert math.isnan(value(name, np.zeros(0, int), np.zeros((0, 2))))


def test_recall_and_precision_without_the_class():
    for name in ("recall", "precision"):
        assert math.isnan(value(name, [0, 0], [[0.0, 1.0], [1.0, 0.0]]))


def test_outputs_that_are_not_finite_are_wrong():
    y, outputs = [0, 0, 1], [[math.nan, math.nan], [1.0, 0.0], [0.0, math.inf]]
    assert value("balanced-accuracy", y, outputs) == pytest.approx(0.25)
    assert value("recall", y, outputs) == 0
    for name in ("auc", "log-loss", "calibration-error"):
        assert math.isnan(value(name, y, outputs))


def test_sequences_are_judged_at_every_position_that_counts():
    random = torch.Generator().manual_seed(0)
    outputs, y = torch.randn(4, 3, 6, generator=random), torch.randint(3, (4, 6), generator=random)
    y[0, :4] = IGNORE
    flat, counted = outputs.movedim(1, -1).reshape(-1, 3), y.reshape(-1) != IGNORE
    for name in ("auc", "f1", "log-loss"):
        assert value(name, y, outputs) == pytest.approx(value(name, y.reshape(-1)[counted], flat[counted]))


def test_auc_does_not_add_up_over_chunks():
    y, outputs = torch.tensor([0, 1, 0, 1]), torch.tensor([[0.0, 2], [0, 3], [0, 0], [0, 1]])
    parts = [value("auc", y[rows], outputs[rows]) for rows in (slice(2), slice(2, 4))]
    assert parts == [1.0, 1.0]
    assert value("auc", y, outputs) == 0.75


def brier(outputs, targets):
    return (torch.softmax(outputs, 1) - torch.nn.functional.one_hot(targets, outputs.shape[1])).square().sum(1).mean()


def test_any_function_is_a_metric():
    own = scorers([brier, "auc", "loss", "accuracy"], CLASSES)
    assert list(own) == ["brier", "auc"]
    assert own["brier"](torch.zeros(1, 2), torch.tensor([0])) == pytest.approx(0.5)
    assert not own["brier"].smaller
    brier.smaller = True
    assert scorers([brier], CLASSES)["brier"].smaller
    with pytest.raises(InputError, match="two metrics are called 'brier'"):
        scorers([brier, type("Other", (), {"__name__": "brier", "__call__": lambda self, o, y: 0})()], CLASSES)
    with pytest.raises(InputError, match="the metric 'broken' raised ZeroDivisionError"):
        scorers([metric_that_raises()], CLASSES)["broken"](torch.zeros(1, 2), torch.zeros(1))


def metric_that_raises():
    def broken(outputs, targets):
        return 1 / 0

    return broken


def old(targets, outputs):
    return 0.0


class Old:
    def __call__(self, y_true, y_pred):
        return 0.0


@pytest.mark.parametrize(
    "function",
    [old, Old(), sk.r2_score, sk.mean_absolute_error, lambda y, p: 0.0, lambda a, outputs: 0.0],
    ids=["function", "object", "r2_score", "mean_absolute_error", "y", "second"],
)
def test_a_metric_written_for_targets_first_is_refused(function):
    """It would give other numbers without a word: r2_score is not symmetric."""
    with pytest.raises(
        InputError, match=r"the metric '.*' takes \(.*\), targets first; metrics and losses take \(outputs, t"
    ):
        scorers([function], NUMBERS)


@pytest.mark.parametrize(
    "function",
    [lambda outputs, targets: 0.0, lambda a, b: 0.0, lambda *both: 0.0, lambda logits, y, k=2: 0.0, torch.dist, max],
)
def test_other_names_are_taken_at_their_word(function):
    assert scorers([function], NUMBERS)


def test_names_are_checked():
    with pytest.raises(InputError, match=r"unknown metric 'acu': did you mean 'auc'\?"):
        scorers(["acu"], CLASSES)
    with pytest.raises(InputError, match="'auc' judges classes, but the task is a regression; choose one of mae"):
        scorers(["auc"], NUMBERS)
    with pytest.raises(InputError, match="no metric: it must be a name"):
        scorers([3], CLASSES)


def test_which_way_is_better():
    assert smaller_is_better("central/loss") is smaller_is_better("clients/log-loss") is True
    assert smaller_is_better("clients/auc") is smaller_is_better("central/accuracy") is False
    assert smaller_is_better("server/something") is None
    directions = {name: smaller_is_better(name) for name in metrics}
    assert {name for name, smaller in directions.items() if smaller} == {"calibration-error", "log-loss", "mae", "rmse"}


def test_a_registered_metric_can_be_registered_again():
    """A notebook's cell is run twice."""
    try:
        for _ in range(2):
            metric("brier-score", smaller=True)(brier)
        assert scorers(["brier-score"], CLASSES)["brier-score"].smaller
    finally:
        metrics._items.pop("brier-score")
