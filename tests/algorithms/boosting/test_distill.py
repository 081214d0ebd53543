"""Distillation on public inputs: closed forms for linear models, what is asked of teachers, what is refused."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from parley.algorithms.boosting.distill import Distillation, divergence, mean_outputs, outputs, public_inputs
from parley.core.errors import InputError
from parley.core.key import Key
from parley.data import DataInfo
from parley.training.losses import losses
from parley.training.task import Task


def task(public: Tensor | None, outputs: int = 2) -> Task:
    module = nn.Linear(3, outputs).double()
    return Task(module, losses["half-squares"], DataInfo("toy", (3,), outputs, "regression"), 2, public=public)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 5))
def test_the_mean_of_linear_functions_is_the_function_of_the_mean(seed: int, teachers: int):
    x = drawn(seed, 2100, 3)
    models = [drawn(seed + i + 1, 3, 2) for i in range(teachers)]
    weights = np.random.default_rng(seed).uniform(0.1, 3, teachers)
    found = mean_outputs([lambda rows, w=w: rows @ w for w in models], weights.tolist(), x)
    mean = sum(float(p) * w for p, w in zip(weights / weights.sum(), models, strict=True))
    torch.testing.assert_close(found, x @ mean, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_on_a_full_rank_public_set_a_linear_student_is_the_mean_exactly(seed: int):
    """Orthogonal public inputs: one step of size 1 from anywhere is least squares."""
    raw = np.hstack([np.random.default_rng(seed).normal(size=(40, 3)), np.ones((40, 1))])
    raw[:, :3] -= raw[:, :3].mean(0)  # the bias is a column of ones, to which the others are orthogonal
    public = torch.from_numpy(np.linalg.qr(raw[:, :3])[0] * np.sqrt(40))
    given_task = task(public)
    teachers = [(drawn(seed + i, 2, 3), drawn(seed + 10 + i, 2)) for i in range(3)]
    weights = [0.2, 0.5, 0.3]
    teacher = mean_outputs([lambda x, w=w, b=b: x @ w.T + b for w, b in teachers], weights, public)
    exact = Distillation("mse", epochs=1, batch=None, lr=1.0, optimizer="sgd", clip=None)
    start = {"weight": drawn(99, 2, 3), "bias": drawn(98, 2)}
    student = exact(given_task, start, {}, teacher, Key(0)).parameters
    mean = [sum(p * pair[i] for p, pair in zip(weights, teachers, strict=True)) for i in (0, 1)]
    torch.testing.assert_close(student["weight"], mean[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(student["bias"], mean[1], rtol=1e-12, atol=1e-12)
    # From the mean itself nothing moves, and clipping or Adam bring any start close.
    still = exact(given_task, dict(zip(("weight", "bias"), mean, strict=True)), {}, teacher, Key(0)).parameters
    torch.testing.assert_close(still["weight"], mean[0], rtol=1e-12, atol=1e-12)
    near = Distillation("mse", epochs=400, batch=20, lr=0.02)(given_task, start, {}, teacher, Key(0)).parameters
    torch.testing.assert_close(near["weight"], mean[0], rtol=0, atol=0.02)


@settings(deadline=None)
@given(st.floats(-4, 4), st.floats(-4, 4))
def test_the_divergence_of_two_coins(a: float, b: float):
    p, q = 1 / (1 + np.exp(-a)), 1 / (1 + np.exp(-b))
    expected = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    logits = [torch.tensor([[value, 0.0]], dtype=torch.float64) for value in (a, b)]
    assert float(divergence(logits[1], logits[0])) == pytest.approx(expected, abs=1e-9)
    words = [one.unsqueeze(2).expand(1, 2, 5) for one in logits]
    assert float(divergence(words[1], words[0])) == pytest.approx(expected, abs=1e-9)


def test_a_divergence_does_not_see_what_is_added_to_all_classes():
    teacher, student = drawn(0, 6, 4), drawn(1, 6, 4)
    torch.testing.assert_close(divergence(student + 3, teacher), divergence(student, teacher - 7))
    assert float(divergence(teacher, teacher).abs().max()) < 1e-14


def test_without_public_inputs():
    for public in (None, torch.zeros(0, 3, dtype=torch.float64)):
        with pytest.raises(InputError, match=r"public inputs, but there are none; set data.public"):
            public_inputs(task(public))


def test_bad_settings():
    for wrong, message in (({"clip": 0.0}, "clip must be above 0"), ({"epochs": 0}, "epochs must be"),
                              ({"lr": -1.0}, "lr"), ({"optimizer": "nothing"}, "nothing")):  # fmt: skip
        with pytest.raises(InputError, match=message):
            Distillation(**wrong)


def test_outputs_in_chunks():
    x = drawn(0, 2500, 3)
    torch.testing.assert_close(outputs(lambda rows: rows * 2, x), x * 2)
