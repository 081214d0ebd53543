"""Who takes part in a round: a function of the settings, the key and the round, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from parley.algorithms.protocol import Cohort
from parley.core.key import Key
from parley.data import Federation
from parley.engine.settings import Faults, Sampling


@dataclass
class Sampler:
    """Draws cohorts. Only schemes whose probabilities depend on all sizes ever look at the whole population."""

    federation: Federation
    sampling: Sampling
    faults: Faults
    key: Key
    _shares: np.ndarray | None = field(default=None, repr=False)

    def draw(self, number: int) -> Cohort:
        """The cohort of a round, in the federation's order of clients."""
        random = self.key.fold("cohort", number).numpy()
        population, ids = len(self.federation), self.federation.ids
        size = min(self.sampling.size or population, population)
        if self.sampling.scheme == "with-replacement":
            drawn = self._available(random, self._by_share(random, size))
            chosen, times = np.unique(drawn, return_counts=True)
            weights = tuple((times / max(len(drawn), 1)).tolist())
            return Cohort(tuple(ids[i] for i in chosen.tolist()), weights, everyone=ids)
        if self.sampling.scheme == "poisson":
            return self._poisson(random, population, size)
        chosen = np.sort(self._uniform(random, population, size))
        members = tuple([ids[i] for i in chosen.tolist()])
        if self.sampling.scheme == "unbiased":
            weights = self.shares()[chosen] * population / max(len(chosen), 1)
            return Cohort(members, tuple(weights.tolist()), normalise=False, everyone=ids)
        if self.sampling.weights == "uniform":
            return Cohort(members, (1.0 / max(len(members), 1),) * len(members), everyone=ids)
        sizes = self.federation.source.sizes(chosen.tolist())
        return Cohort(members, tuple((sizes / max(sizes.sum(), 1)).tolist()), everyone=ids)

    def absences(self, cohort: Cohort, number: int) -> Callable[[str], str | None]:
        """Why a client will not answer in this round (simulated), whether it is of the cohort or not."""
        if not self.faults.dropout and (not self.faults.straggling or self.faults.patience is None):
            return lambda client: None
        slowness = [self._slowness(client) for client in cohort.ids] if self.faults.straggling else []
        median = float(np.median(slowness)) if slowness else 1.0

        def reason(client: str) -> str | None:
            if self.faults.dropout and self.key.fold("dropout", number, client).numpy().random() < self.faults.dropout:
                return "dropped out (simulated)."
            if self.faults.straggling and self.faults.patience is not None:
                slower = self._slowness(client) / median
                if slower > self.faults.patience:
                    return f"took {slower:.1f} times as long as the median client (simulated)."
            return None

        return reason

    def shares(self) -> np.ndarray:
        """p_k of the whole population."""
        if self._shares is None:
            if self.sampling.weights == "uniform":
                self._shares = np.full(len(self.federation), 1.0 / len(self.federation))
            else:
                sizes = self.federation.sizes().astype(np.float64)
                self._shares = sizes / sizes.sum()
        return self._shares

    def _poisson(self, random: np.random.Generator, population: int, size: int) -> Cohort:
        """Each client with chance size / population: given how many come, all sets of so many are equally likely."""
        count = int(random.binomial(population, size / population))
        drawn = np.arange(population) if count == population else random.choice(population, count, replace=False)
        chosen = np.sort(self._available(random, drawn))
        if self.sampling.weights == "uniform":
            weights = np.full(len(chosen), 1.0 / size)
        else:
            weights = self.shares()[chosen] * population / size
        ids = self.federation.ids
        members = tuple(ids[i] for i in chosen.tolist())
        return Cohort(members, tuple(weights.tolist()), normalise=False, everyone=ids, expected=float(size))

    def _slowness(self, client: str) -> float:
        return float(np.exp(self.faults.straggling * self.key.fold("slowness", client).numpy().standard_normal()))

    def _by_share(self, random: np.random.Generator, size: int) -> np.ndarray:
        if self.sampling.weights == "uniform":
            return random.integers(len(self.federation), size=size)
        return random.choice(len(self.federation), size=size, p=self.shares())

    def _uniform(self, random: np.random.Generator, population: int, size: int) -> np.ndarray:
        """Up to `size` distinct clients, uniformly among those available."""
        if self.faults.availability == 1.0:
            return np.arange(population) if size == population else random.choice(population, size, replace=False)
        most = min(population, int(2 * size / self.faults.availability) + 100)
        candidates = self._available(random, random.choice(population, most, replace=False))
        if len(candidates) < size and most < population:  # rare: look at everyone
            candidates = self._available(random, random.permutation(population))
        return candidates[:size]

    def _available(self, random: np.random.Generator, clients: np.ndarray) -> np.ndarray:
        if self.faults.availability == 1.0:
            return clients
        return clients[random.random(len(clients)) < self.faults.availability]
