"""Folds for judging a federation: which samples a model is trained on, which it is judged on, and at which rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from parley.algorithms.protocol import Algorithm
from parley.core.key import Key
from parley.data import ClientData, Federation
from parley.data.sources import Cached, Index, Source
from parley.engine.settings import Faults, Sampling
from parley.theory.gain.interval import FEWEST, Groups
from parley.training.task import Task

Array = npt.NDArray[np.float64]
Tell = Callable[[str, int, int], None]
"""Told what is being done, how many steps of it are over, and of how many."""

DENSE, LATER = 40, 30
"""Every round up to the first number is looked at, then so many more in equal ratios."""


@dataclass(frozen=True)
class Setup:
    """What is trained, and how: the arguments of `engine.train`."""

    algorithm: Algorithm
    federation: Federation
    task: Task
    rounds: int
    sampling: Sampling
    faults: Faults
    seed: int
    runtime: str = "auto"
    workers: int | None = None


@dataclass(frozen=True)
class Deal:
    """Deals each client's samples to folds: a client's folds are as equal as can be, and empty ones fall anywhere."""

    folds: int
    key: Key
    source: Source
    known: dict[int, Groups] = field(default_factory=dict, repr=False, compare=False)

    def groups(self, i: int) -> Groups:
        """The fold of each sample of client number i; -1 throughout where there are too few to hold any out."""
        if i not in self.known:
            n, random = self.source.size(i), self.key.fold(i).numpy()
            count = min(n, self.folds)
            names = random.permutation(self.folds)[:count]
            dealt = names[random.permutation(n) % max(count, 1)] if n >= FEWEST else np.full(n, -1)
            self.known[i] = np.asarray(dealt, dtype=np.intp)
        return self.known[i]

    def federation(self, whole: Federation, out: Sequence[int]) -> Federation:
        """The federation without the folds `out`."""
        return Federation(whole.info, whole.ids, Cached(_Rest(self, tuple(out))), public=whole.public)


@dataclass(frozen=True)
class _Rest(Source):
    """Every client's samples outside some folds; never empty while there are two of them at most."""

    deal: Deal
    out: tuple[int, ...]

    def size(self, i: int) -> int:
        return int(self._kept(i).sum())

    def sizes(self, numbers: Sequence[int]) -> Index:
        return np.array([self.size(i) for i in numbers], dtype=np.int64)

    def load(self, i: int) -> ClientData:
        return rows(self.deal.source.load(i), self._kept(i))

    def _kept(self, i: int) -> npt.NDArray[np.bool_]:
        return ~np.isin(self.deal.groups(i), self.out)


def rows(data: ClientData, kept: npt.NDArray[Any]) -> ClientData:
    """Some samples, by mask or number."""
    index = torch.from_numpy(np.flatnonzero(kept) if kept.dtype == bool else kept)
    return ClientData(data.x[index], data.y[index])


def looked_at(rounds: int) -> list[int]:
    """The rounds at which models are judged, 0 (untrained) and the last among them."""
    late = np.geomspace(DENSE, rounds, LATER).round() if rounds > DENSE else np.zeros(0)
    return sorted({*range(min(rounds, DENSE) + 1), *late.astype(int).tolist()})
