"""Problems that studies train on; training on them takes a setting that diverges for an answer, not an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn import functional as F

from parley.algorithms.base.protocol import Algorithm
from parley.core.errors import QuorumError
from parley.core.key import Key
from parley.data import ClientData, Dataset, Federation
from parley.engine.listeners import Listener
from parley.engine.run import Run
from parley.engine.settings import Evaluation, Sampling, Weights
from parley.study.train import Model, train
from parley.theory.theta import Array


@dataclass(frozen=True)
class Problem:
    """Clients, a network, the samples settings are chosen by and those results are told on."""

    federation: Federation
    model: Model
    choose: ClientData
    tell: ClientData
    cohort: int
    batch: int
    about: str

    def judged_by(self, samples: ClientData) -> Federation:
        """The same clients with these samples as the central test set."""
        return Federation(self.federation.info, self.federation.ids, self.federation.source, test=samples)


@dataclass(frozen=True, eq=False)
class Course:
    """Accuracy and loss at the evaluated rounds; what came after divergence is NaN."""

    rounds: Array
    accuracy: Array
    loss: Array
    run: Run | None
    """None if training broke down."""


def follow(
    method: Algorithm, problem: Problem, samples: ClientData, *, rounds: int, every: int, seed: int,
    listeners: Sequence[Listener] = (), runtime: str = "auto", weights: Weights = "uniform",
) -> Course:  # fmt: skip
    """Train; the seed fixes the start, the batches and which clients are sampled, alike for all methods."""
    planned = np.unique([*range(0, rounds + 1, every), rounds]).astype(np.float64)
    accuracy, loss = (np.full(len(planned), np.nan) for _ in range(2))
    try:
        trained = train(
            method, problem.judged_by(samples), model=problem.model, rounds=rounds,
            cohort=Sampling(problem.cohort, weights=weights), seed=seed, evaluation=Evaluation(every=every),
            listeners=listeners, runtime=runtime,
        )  # fmt: skip
    except QuorumError:  # most clients sent NaN: the setting diverges
        return Course(planned, accuracy, loss, None)
    accuracy, loss = trained.series("central/accuracy")[1], trained.series("central/loss")[1]
    return Course(planned, accuracy, np.where(loss < 1e6, loss, np.nan), trained)


def halved(data: Dataset) -> Dataset:
    """Pictures of half the side, averaged over 2x2 pixels."""
    test = official_test(data)
    x = F.avg_pool2d(data.x, 2)
    return replace(
        data, info=replace(data.info, shape=tuple(x.shape[1:])), x=x, test=ClientData(F.avg_pool2d(test.x, 2), test.y)
    )


def official_test(data: Dataset) -> ClientData:
    """The official test set of a data set that has one."""
    assert data.test is not None
    return data.test


def rows(data: ClientData, begin: int, end: int | None) -> ClientData:
    """A run of the samples."""
    return ClientData(data.x[begin:end], data.y[begin:end])


def made_up_text(clients: int) -> dict[str, ClientData]:
    """Clients that repeat phrases of their own with mistakes: 80 windows of 10 tokens each, without any file.

    Tokens are 0 to 11, a mistake is 0; the target is the next token at every position.
    """
    made = {}
    for client in range(clients):
        random = Key(0).fold("made-up text", client).numpy()
        phrase = random.integers(0, 12, 6)
        text = phrase[(random.integers(0, 6, (80, 1)) + np.arange(11)) % 6]
        tokens = torch.from_numpy(np.where(random.random(text.shape) > 0.05, text, 0))
        made[str(client)] = ClientData(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    return made
