"""Paper 004's image classification (Section 6, Table 4): five clients, iid or sorted by label.

Scale `paper` is the paper's: ResNet-20 with batch normalisation, batches of 64. Scale `cpu` averages CIFAR-10 over 2x2
pixels and trains six narrow convolutions and a dense layer, batches of 32. That
network has no normalisation: batch normalisation lets clients with two classes each read the class off their batches'
statistics, and in trials at this size (a seed that no result uses) the averaged model's accuracy fell again after a
while. Study `004/batchnorm` trains it with, and `004/resnet20` trains the paper's network on the paper's pictures.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

import parley as pl
from parley_papers.harness import Scale
from parley_papers.training_problem import TrainingProblem, between, halved, official_test

Network = Literal["plain", "normalised", "resnet20"]
"""The small network, the same with batch normalisation, or the paper's, which scale `paper` always has."""
CLIENTS = 5
WIDTHS = (8, 16, 16, 32, 32, 64)
"""Channels of the small network's convolutions; every second one, from the first, halves the image."""


def data_sets(scale: Scale, *paper: str) -> tuple[str, ...]:
    """The names of the data sets a study uses: the paper's at its scale, one at the others."""
    return {"smoke": ("digits",), "cpu": ("cifar10",), "paper": paper}[scale]


def five_client_images(scale: Scale, name: str, iid: bool, network: Network = "plain") -> TrainingProblem:
    """A data set dealt to five clients; settings are chosen on test samples that no result uses."""
    data, model, first, last, batch, about = _ingredients(scale, name, network)
    test = official_test(data)
    return TrainingProblem(
        data.split("iid" if iid else "sorted", CLIENTS, seed=0),
        model,
        between(test, 0, first),
        between(test, first, last),
        CLIENTS,
        batch,
        f"{about}, {'iid' if iid else 'sorted by label'}",
    )


def _ingredients(scale: Scale, name: str, network: Network) -> tuple[pl.Dataset, pl.Model, int, int | None, int, str]:
    """Data, network, where the validation samples end, where the test samples end, batch size, words."""
    norm = network == "normalised"
    if scale == "smoke":
        small: pl.Model = pl.models.ResNet20() if network == "resnet20" else small_network(1, 10, (4, 8, 8), norm)
        words = "ResNet-20" if network == "resnet20" else "three convolutions"
        return pl.data.digits(), small, 100, None, 16, f"scikit-learn's digits, {words}"
    if scale == "cpu" and network != "resnet20":
        words = f"CIFAR-10 at 16x16, six convolutions{' with batch normalisation' if norm else ''}"
        return halved(pl.data.cifar10()), small_network(3, 10, WIDTHS, norm), 2000, 6000, 32, words
    names = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN", "mnist": "MNIST"}
    last = 6000 if scale == "cpu" else None
    return pl.data.load(name), pl.models.ResNet20(), 2000, last, 64, f"{names[name]}, ResNet-20"


def small_network(channels: int, outputs: int, widths: tuple[int, ...], norm: bool) -> pl.Model:
    """3x3 convolutions with ReLU, the mean over pixels and a dense layer."""

    def build() -> nn.Module:
        chain: list[nn.Module] = []
        before = channels
        for depth, width in enumerate(widths):
            conv = nn.Conv2d(before, width, 3, 1 + (depth % 2 == 0), padding=1, bias=not norm)
            nn.init.kaiming_normal_(conv.weight)
            chain += [conv, nn.BatchNorm2d(width), nn.ReLU()] if norm else [conv, nn.ReLU()]
            before = width
        return nn.Sequential(*chain, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs))

    return build
