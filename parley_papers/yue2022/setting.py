"""Paper 003's federations (Section 6, Appendix A): 300 clients, 20 a round, an MLP of 100 units, standardised pixels.

Every client draws q ~ Dir(alpha) over the classes and about 200 samples by q, as the paper's code does; MNIST by
writer stands in for FEMNIST. Settings are chosen on the first 2,000 test samples, results are of the others.

The authors' own federations are the index sets that their code comes with (`ntk-fed/partitions.npz`), the first for
every alpha, and 21 clients a round. (Their example does not read them: the file that it names does not exist, and then
it silently deals the samples in their order, which is iid.) At scale smoke ours take their place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

import parley as pl
from parley_papers.gholami2025.image_problem import small_network
from parley_papers.harness import Scale
from parley_papers.training_problem import TrainingProblem, between, halved, official_test

Images = Literal["fashion", "mnist", "writers", "cifar"]
CLIENTS, COHORT, SAMPLES = 300, 20, 200
AUTHORS_COHORT = 21
"""7% of 300, as the authors' code has it."""
_AUTHORS: dict[Images, str] = {"fashion": "fmnist300", "mnist": "mnist300"}
GLOBAL = 0.1
"""DataShare's global set, as a share of all samples."""
_NAMES: dict[Images, str] = {
    "fashion": "Fashion-MNIST",
    "mnist": "MNIST",
    "writers": "MNIST by writer",
    "cifar": "CIFAR-10 at 16x16",
}


def clients(
    scale: Scale,
    images: Images = "fashion",
    alpha: float = 0.1,
    projected: int = 0,
    shared: bool = False,
    on: Literal["network", "inputs", "fourier"] = "network",
    authors: bool = False,
) -> TrainingProblem:
    """The paper's clients.

    `projected`: inputs become their products with so many random Gaussian vectors, as CP-NTK-FL's are. `shared`: the
    rows of a global set join every client's own, which is what DataShare trains on. `on`: what is linear in its
    weights, for the one-shot methods, which ask all clients at once. `authors`: the authors' own index sets.
    """
    small = scale == "smoke"
    data = _standardised(pl.data.digits() if small else _data(images))
    if projected:
        data = _projected(data, projected)
    if images == "writers" and not small:
        federation = data.split("natural", seed=0)
    elif authors and not small:
        federation = data.split(pl.Fixed("ntk-fed/partitions.npz", f"{_AUTHORS[images]}_a{alpha:.2f}_0"))
    else:
        count, samples = (12, 40) if small else (CLIENTS, SAMPLES)
        federation = data.split(pl.Dirichlet(alpha, samples=samples, overlap=True), count, seed=0)
    if shared:
        federation = _with_global_set(federation)
    test = official_test(data)
    first = 60 if small else 2000
    cohort, name = (4, "scikit-learn's digits") if small else (COHORT, _NAMES[images])
    if authors and not small:
        cohort, name = AUTHORS_COHORT, f"{name}, the authors' clients"
    if on != "network":
        cohort = len(federation)
    how = "" if images == "writers" else f", Dir({alpha:g})"
    width = f", projected to {projected}" if projected else ""
    return TrainingProblem(
        federation,
        _model(images, small, on),
        between(test, 0, first),
        between(test, first, None),
        cohort,
        SAMPLES,
        f"{name}{how}{width}; {len(federation)} clients, {cohort} a round",
    )


def _data(images: Images) -> pl.Dataset:
    if images == "cifar":
        return halved(pl.data.cifar10())
    if images == "writers":
        return pl.data.mnist_writers()
    return pl.data.mnist() if images == "mnist" else pl.data.fashion_mnist()


def _model(images: Images, small: bool, on: str) -> pl.Model:
    if on == "inputs":
        return pl.models.linear()
    if on == "fourier":
        return pl.models.features(
            pl.models.RandomFourierFeatures(40 if small else 1000, lengthscale=8.0 if small else 28.0)
        )
    if images != "cifar":
        return pl.models.mlp(20 if small else 100)
    return small_network(1, 10, (4, 8), False) if small else small_network(3, 10, (16, 32, 32), False)


def _standardised(data: pl.Dataset) -> pl.Dataset:
    """All pixels of the training samples with mean 0 and variance 1."""
    mean, spread = data.x.mean(), data.x.std()
    test = official_test(data)
    return replace(data, x=(data.x - mean) / spread, test=pl.ClientData((test.x - mean) / spread, test.y))


def _projected(data: pl.Dataset, width: int) -> pl.Dataset:
    """x P / sqrt(d') with standard Gaussian P: samples keep their lengths on average, hence the kernel its size."""
    test = official_test(data)
    d = data.x[0].numel()
    P = torch.from_numpy(pl.Key(0).fold("projection").numpy().standard_normal((d, width)) / width**0.5).float()

    def project(x: Tensor) -> Tensor:
        return x.flatten(1) @ P

    info = replace(data.info, shape=(width,))
    return replace(data, info=info, x=project(data.x), test=pl.ClientData(project(test.x), test.y))


def _with_global_set(federation: pl.Federation) -> pl.Federation:
    """The rows of a global set, drawn from those of all clients, join every client's (Zhao et al., 2018)."""
    source = federation.source
    assert isinstance(source, pl.data.Pooled)
    held = source.index.unique().numpy()
    chosen = pl.Key(0).fold("global set").numpy().choice(held, round(GLOBAL * len(source.index)), replace=False)
    common = torch.from_numpy(chosen)
    rows = [torch.cat([indices, common]) for indices in source.index.tensor_split(source.offsets[1:-1])]
    edges = torch.tensor([0, *(len(indices) for indices in rows)]).cumsum(0)
    joined = replace(source, index=torch.cat(rows), offsets=edges)
    return pl.Federation(federation.info, federation.ids, joined, test=federation.test)
