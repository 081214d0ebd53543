"""Paper 002's pictures (Section 6): a set dealt to 100 clients, and another set, without labels, that everybody has.

Scale `paper` has the paper's pairs and networks. Scale `cpu` takes CIFAR-10 averaged over 4x4 pixels: 12,000 pictures
of five classes are the clients', 20,000 of the other five are public, and the network is an MLP of 100 units. Both sets
are CIFAR's, but no class is in both. Its other pair is the paper's CIFAR-100 (CIFAR-10) at 8x8: 20,000 pictures of all
100 classes, 20,000 public ones. `smoke` has scikit-learn's digits by halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

import parley as pl
from parley_papers.harness import Scale
from parley_papers.training_problem import TrainingProblem, between, halved, official_test

PAIRS = {
    "CIFAR-10 (CIFAR-100)": ("cifar10", "cifar100"),
    "CIFAR-100 (CIFAR-10)": ("cifar100", "cifar10"),
    "EMNIST letters (digits)": ("emnist-letters", "emnist-digits"),
    "EMNIST digits (letters)": ("emnist-digits", "emnist-letters"),
}
"""Table 2's first column: the clients' set and, in brackets, the public one."""
HALVES = "CIFAR-10 by halves"
HUNDRED = "CIFAR-100 (CIFAR-10) at 8x8"
DIGITS = "digits by halves"
_PRIVATE, _PUBLIC, _VALIDATION = 12_000, 20_000, 1000


def pairs(scale: Scale) -> tuple[str, ...]:
    """The pairs of a scale."""
    return {"smoke": (DIGITS,), "cpu": (HALVES,), "paper": tuple(PAIRS)}[scale]


def cifar100_pairs(scale: Scale) -> tuple[str, ...]:
    """The pairs of the studies of CIFAR-100."""
    return (DIGITS if scale == "smoke" else HUNDRED,)


def picture_pair(pair: str, s: float) -> TrainingProblem:
    """A pair by its name, dealt with homogeneity s; settings are chosen on test samples that no result uses."""
    if pair in PAIRS:
        data, public = (pl.data.load(name) for name in PAIRS[pair])
        return _problem(data, public.x, s, 100, _paper_network(data), f"{pair}, the paper's network")
    if pair == HALVES:
        private, public_x = by_halves(halved(halved(pl.data.cifar10())), _PRIVATE, _PUBLIC)
        return _problem(
            private, public_x, s, 100, _mlp(private, 100), "CIFAR-10 at 8x8, halves by class, an MLP of 100"
        )
    if pair == HUNDRED:
        private, others = (_some(halved(halved(whole)), _PUBLIC) for whole in (pl.data.cifar100(), pl.data.cifar10()))
        return _problem(private, others.x, s, 100, _mlp(private, 100), "CIFAR-100 at 8x8, an MLP of 100")
    private, public_x = by_halves(pl.data.digits(), 400, 600)
    return _problem(private, public_x, s, 5, _mlp(private, 16), "scikit-learn's digits, halves by class, an MLP of 16")


def _some(data: pl.Dataset, count: int) -> pl.Dataset:
    """So many samples, drawn once."""
    rows = torch.from_numpy(pl.Key(0).fold("some").numpy().permutation(len(data))[:count])
    return pl.Dataset(data.info, data.x[rows], data.y[rows], test=data.test)


def by_halves(data: pl.Dataset, private: int, public: int) -> tuple[pl.Dataset, Tensor]:
    """The first half of the classes, so many samples of them, and so many inputs of the other classes."""
    half = data.info.outputs // 2
    order = torch.from_numpy(pl.Key(0).fold("halves").numpy().permutation(len(data)))
    ours, others = order[data.y[order] < half][:private], order[data.y[order] >= half][:public]
    test = official_test(data)
    here = test.y < half
    info = replace(data.info, outputs=half, classes=data.info.classes[:half])
    chosen = pl.Dataset(info, data.x[ours], data.y[ours], test=pl.ClientData(test.x[here], test.y[here]))
    return chosen, data.x[others]


def _problem(data: pl.Dataset, public: Tensor, s: float, clients: int, model: pl.Model, about: str) -> TrainingProblem:
    test = official_test(data)
    first = min(_VALIDATION, len(test) // 3)
    federation = data.split(pl.SHomogeneity(s), clients, seed=0).with_public(public)
    return TrainingProblem(
        federation,
        model,
        between(test, 0, first),
        between(test, first, None),
        clients,
        64,
        f"{about}; {clients} clients, s = {s}",
    )


def _mlp(data: pl.Dataset, width: int) -> pl.Model:
    """One hidden layer with torch's own start, whose first outputs are small: the paper's functions begin near 0."""
    inputs, outputs = data.x[0].numel(), data.info.outputs

    def build() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs))

    return build


def _paper_network(data: pl.Dataset) -> pl.Model:
    """Two 5x5 convolutions of 64 with 2x2 max-pooling, two dense layers, leaky ReLU; CIFAR's pictures are augmented."""
    channels, side, _ = data.info.shape
    coloured, outputs = channels == 3, data.info.outputs
    left = ((side - 4) // 2 - 4) // 2
    widths: Sequence[int] = (384, 192) if coloured else (120, 84)

    def build() -> nn.Module:
        return nn.Sequential(
            pl.models.RandomCrop(side, padding=4, standardise=False) if coloured else nn.Identity(),
            nn.Conv2d(channels, 64, 5),
            nn.LeakyReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 5),
            nn.LeakyReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * left**2, widths[0]),
            nn.LeakyReLU(),
            nn.Linear(widths[0], widths[1]),
            nn.LeakyReLU(),
            nn.Linear(widths[1], outputs),
        )

    return build
