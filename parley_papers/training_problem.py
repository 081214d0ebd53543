"""What studies train on: clients, a network, the samples settings are chosen by and those results are measured on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from torch.nn import functional as F

import parley as pl

SampleSet = Literal["validation", "test"]


@dataclass(frozen=True)
class TrainingProblem:
    """Clients and a network, with validation samples for choosing settings and test samples for results."""

    federation: pl.Federation
    model: pl.Model | None
    """None for methods that train no network."""
    validation: pl.ClientData
    test: pl.ClientData
    cohort: int
    batch: int
    about: str

    def evaluated_on(self, samples: SampleSet) -> pl.Federation:
        """The same clients with these samples as the central test set."""
        chosen = self.validation if samples == "validation" else self.test
        federation = self.federation
        return pl.Federation(federation.info, federation.ids, federation.source, test=chosen, public=federation.public)


@dataclass(frozen=True)
class Recipe:
    """A problem as the function of a module that makes it: it can be compared, stored, and made in another process."""

    make: Callable[..., TrainingProblem]
    arguments: tuple[Any, ...] = ()

    def __call__(self) -> TrainingProblem:
        return _made(self)

    def plain(self) -> dict[str, Any]:
        """For a trial's fingerprint and settings."""
        family = self.make.__module__.split(".")[1:2]  # the same wherever in its family the function stands
        return {"problem": "/".join([*family, self.make.__qualname__]), "arguments": list(self.arguments)}


@lru_cache(maxsize=2)
def _made(recipe: Recipe) -> TrainingProblem:
    return recipe.make(*recipe.arguments)


def halved(data: pl.Dataset) -> pl.Dataset:
    """Images of half the side, averaged over 2x2 pixels."""
    test = official_test(data)
    x = F.avg_pool2d(data.x, 2)
    return replace(
        data,
        info=replace(data.info, shape=tuple(x.shape[1:])),
        x=x,
        test=pl.ClientData(F.avg_pool2d(test.x, 2), test.y),
    )


def official_test(data: pl.Dataset) -> pl.ClientData:
    """The official test set of a data set that has one."""
    assert data.test is not None
    return data.test


def between(data: pl.ClientData, begin: int, end: int | None) -> pl.ClientData:
    """The samples from number `begin` to before `end`."""
    return pl.ClientData(data.x[begin:end], data.y[begin:end])


def made_up_text(clients: int) -> dict[str, pl.ClientData]:
    """Clients that repeat phrases of their own with mistakes: 80 windows of 10 tokens each, without any file.

    Tokens are 0 to 11, a mistake is 0; the target is the next token at every position.
    """
    made = {}
    for client in range(clients):
        random = pl.Key(0).fold("made-up text", client).numpy()
        phrase = random.integers(0, 12, 6)
        text = phrase[(random.integers(0, 6, (80, 1)) + np.arange(11)) % 6]
        tokens = torch.from_numpy(np.where(random.random(text.shape) > 0.05, text, 0))
        made[str(client)] = pl.ClientData(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    return made
