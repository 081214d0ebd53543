"""The real problems of paper 001's Section 6 and Appendix F, at the paper's sizes and at sizes for two cores.

MNIST by writer stands in for FEMNIST (both are the NIST forms, one client per writer). At scale `cpu` images are
averaged over 2x2 pixels and the networks are small; `smoke` needs no files.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

import parley as pl
from parley_papers.harness import Scale
from parley_papers.training_problem import TrainingProblem, between, halved, made_up_text, official_test


def writers(scale: Scale) -> TrainingProblem:
    """Digits by writer; settings are chosen on 2,000 test samples, results are measured on the others."""
    if scale == "smoke":
        data = pl.data.digits()
        federation = data.split("dirichlet", 20, seed=0)
        test = official_test(data)
        return TrainingProblem(
            federation,
            pl.models.mlp(16),
            between(test, 0, 150),
            between(test, 150, None),
            5,
            20,
            "scikit-learn's digits, MLP",
        )
    data = pl.data.mnist_writers()
    about = "MNIST by writer, the paper's CNN"
    model: pl.Model = pl.models.Cnn001()
    if scale == "cpu":
        # Dense layers stack, so that several hundred rounds of 50 steps fit into minutes.
        data, model, about = halved(data), pl.models.mlp(50), "MNIST by writer at 14x14, MLP of 50 units"
    test = official_test(data)
    federation = data.split("natural", seed=0)
    return TrainingProblem(federation, model, between(test, 0, 2000), between(test, 2000, None), 10, 20, about)


def dirichlet_images(scale: Scale) -> TrainingProblem:
    """CIFAR-10 dealt by Dirichlet(0.1); evaluated on training samples, for the paper's training loss."""
    if scale == "smoke":
        return _digits_on_training()
    data = pl.data.cifar10()
    model: pl.Model = pl.models.ResNet18(crop=24)
    about = "CIFAR-10, Dirichlet(0.1), ResNet-18 with 24x24 crops"
    if scale == "cpu":
        data, model, about = halved(data), _small_cnn(3, 16, 10), "CIFAR-10 at 16x16, Dirichlet(0.1), a small CNN"
    clients = 100 if scale == "cpu" else 500
    federation = data.split("dirichlet", clients, seed=0)
    test = official_test(data)
    return _on_training(TrainingProblem(federation, model, test, test, 10, 20, about), 2000)


def pachinko_images(scale: Scale) -> TrainingProblem:
    """CIFAR-100 dealt by Pachinko to 500 clients of 100, as the paper has it; evaluated on training samples."""
    if scale == "smoke":
        return _digits_on_training()
    data = pl.data.cifar100()
    model: pl.Model = pl.models.ResNet18(crop=24)
    about = "CIFAR-100, Pachinko, ResNet-18 with 24x24 crops"
    if scale == "cpu":
        data, model = halved(data), _small_cnn(3, 16, 100)
        about = "CIFAR-100 at 16x16, Pachinko, a small CNN"
    federation = data.split(pl.Pachinko(0.1, 10.0), 500, seed=0)
    test = official_test(data)
    return _on_training(TrainingProblem(federation, model, test, test, 10, 20, about), 2000)


def _digits_on_training() -> TrainingProblem:
    return _on_training(replace(writers("smoke"), federation=pl.data.digits().split("dirichlet", 20, seed=0)), 300)


def characters(scale: Scale) -> TrainingProblem:
    """Shakespeare by role, every next character; evaluated on training samples."""
    if scale == "smoke":
        return _on_training(_made_up_text(), 200)
    length = 20 if scale == "cpu" else 80
    data = _every_character(pl.data.shakespeare(length=length, stride=length))
    model = pl.models.Lstm(every=True) if scale == "paper" else pl.models.Lstm(hidden=64, layers=1, every=True)
    federation = data.split("natural", seed=0)
    about = f"Shakespeare by role, {length} characters, LSTM of {model.layers} x {model.hidden}"
    test = official_test(data)
    return _on_training(
        TrainingProblem(federation, model, test, test, 10, 4, about), 2000 if scale == "paper" else 1000
    )


def _on_training(problem: TrainingProblem, count: int) -> TrainingProblem:
    """Evaluated on `count` training samples, drawn from all clients alike."""
    federation, random = problem.federation, pl.Key(0).fold("001/training samples").numpy()
    owners, counts = np.unique(random.integers(len(federation), size=count), return_counts=True)
    x, y = [], []
    for owner, drawn in zip(owners.tolist(), counts.tolist(), strict=True):
        data = federation.client(federation.ids[owner])
        rows = torch.from_numpy(random.integers(len(data), size=drawn))
        x.append(data.x[rows])
        y.append(data.y[rows])
    seen = pl.ClientData(torch.cat(x), torch.cat(y))
    return replace(problem, validation=seen, test=seen)


def _small_cnn(channels: int, side: int, outputs: int) -> pl.Model:
    """Twice conv 3x3 and max-pool, 16 and 32 channels, and a dense layer."""
    last = ((side - 2) // 2 - 2) // 2

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels, 16, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * last * last, outputs),
        )

    return build


def _every_character(data: pl.Dataset) -> pl.Dataset:
    """The target of a window is the window itself, one character on."""
    test = official_test(data)
    return replace(data, y=_shifted(data.x, data.y), test=pl.ClientData(test.x, _shifted(test.x, test.y)))


def _shifted(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x[:, 1:], y[:, None]], dim=1)


def _made_up_text() -> TrainingProblem:
    clients = made_up_text(12)
    federation = pl.Federation.from_arrays(clients, info=pl.DataInfo("made-up text", (10,), 12, "text", vocabulary=12))
    model = pl.models.Lstm(embedding=4, hidden=16, layers=1, every=True)
    return TrainingProblem(federation, model, clients["0"], clients["0"], 4, 8, "made-up text, LSTM of 1 x 16")
