"""How different a federation's clients are: omega_TV and omega_W1 of labels, inputs and both (Shen et al.).

measured = heterogeneity(federation)
measured.omega("inputs", "w1")         # its value and the two ends between which it lies
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.show import Brief
from parley.data import ClientData, Federation
from parley.theory import heterogeneity as distances
from parley.theory.heterogeneity import Distance, Heterogeneity, Metric, Sample
from parley.theory.theta import Array

Part = Literal["labels", "inputs", "joint"]
PARTS: tuple[Part, ...] = get_args(Part)
METRICS: tuple[Metric, ...] = get_args(Metric)
REPEATED = 2.0
"""How often a sample must come up, on average, for total variation to say something."""


@dataclass(frozen=True, eq=False, repr=False)
class FederationHeterogeneity(Brief):
    """Distances of clients from each other and from their mixture."""

    clients: tuple[str, ...]
    """Those that were measured."""
    population: int
    distances: dict[tuple[Part, Metric], Heterogeneity]
    label_cost: float
    """How far two different labels are apart; numbers are scaled by it."""
    repeats: dict[Part, float]
    """Samples that were measured, over how many of them are different."""

    def informative(self, part: Part, metric: Metric) -> bool:
        """Whether the distance says something of the clients: total variation does only where samples come up again.

        Of samples that are all different it is 1 - 1/N, be the clients alike or not.
        """
        return metric != "tv" or self.repeats[part] >= REPEATED

    def omega(self, part: Part, metric: Metric) -> Distance:
        """The mean distance from the mixture."""
        return self.distances[part, metric].omega

    def between(self, part: Part, metric: Metric) -> Array:
        """[N, N]: distances between the measured clients."""
        return self.distances[part, metric].between

    def farthest(self, part: Part, metric: Metric) -> str:
        """The client that is farthest from the mixture."""
        return self.clients[int(np.argmax([distance.value for distance in self.distances[part, metric].to_mixture]))]

    def plain(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "clients": list(self.clients),
            "population": self.population,
            "label_cost": self.label_cost,
            "omega": [
                {"of": part, "metric": metric, **vars(entry.omega)} for (part, metric), entry in self.distances.items()
            ],
        }


def heterogeneity(
    federation: Federation,
    *,
    clients: int = 20,
    samples: int = 200,
    limit: int = 500,
    label_cost: float | None = None,
    pairs: bool = True,
    seed: int = 0,
) -> FederationHeterogeneity:
    """omega_TV and omega_W1 of labels, inputs and pairs of both.

    Measured on at most `clients` evenly spaced clients and `samples` random samples of each; W1 is exact where no
    support has more than `limit` points, else sampled, with the ends between which it lies. `label_cost`: the distance
    of two different classes, or of numbers that differ by 1; by default the median distance between inputs, so that
    both parts of a pair count.
    """
    if min(clients, samples, limit) < 2:
        raise InputError("heterogeneity needs at least 2 clients, 2 samples of each, and a limit of at least 2.")
    if len(federation) < 2:
        raise InputError("heterogeneity is about clients that differ, but the federation has only one.")
    key = Key(seed).fold("heterogeneity")
    numbers = np.linspace(0, len(federation) - 1, min(clients, len(federation))).astype(int).tolist()
    chosen = [federation.ids[number] for number in numbers]
    drawn = [_drawn(federation.client(name), samples, key.fold("samples", name)) for name in chosen]
    numeric = federation.info.kind == "regression"
    cost = _median_distance(drawn, key) if label_cost is None else label_cost
    values: dict[tuple[Part, Metric], Heterogeneity] = {}
    repeats: dict[Part, float] = {}
    for part in PARTS:
        repeats[part] = _repeats(drawn, part)
        distributions = [
            Sample(None if part == "labels" else x, None if part == "inputs" else y, None, numeric) for x, y in drawn
        ]
        for metric in METRICS:
            scale = 1.0 if part == "labels" else cost
            rng = key.fold(part, metric).numpy()
            values[part, metric] = distances.heterogeneity(
                distributions, metric, label_cost=scale, limit=limit, pairs=pairs, rng=rng
            )
    return FederationHeterogeneity(tuple(chosen), len(federation), values, cost, repeats)


def _drawn(data: ClientData, most: int, key: Key) -> tuple[Array, Array]:
    """At most so many of a client's samples: inputs [n, d] and first labels [n]."""
    rows = np.arange(len(data))
    if len(rows) > most:
        rows = np.sort(key.numpy().choice(len(rows), most, replace=False))
    x, y = (part.cpu().numpy().reshape(len(part), -1)[rows] for part in (data.x, data.y))
    return x.astype(np.float64), y[:, 0]


def _repeats(drawn: list[tuple[Array, Array]], part: Part) -> float:
    x, y = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    points = {"labels": y[:, None], "inputs": x, "joint": np.column_stack([x, y])}[part]
    return len(points) / len(np.unique(points, axis=0))


def _median_distance(drawn: list[tuple[Array, Array]], key: Key) -> float:
    x = np.concatenate([inputs for inputs, _ in drawn])
    rng = key.fold("scale").numpy()
    a, b = (x[rng.integers(len(x), size=2000)] for _ in range(2))
    distances = np.linalg.norm(a - b, axis=1)
    return float(np.median(distances[distances > 0])) if (distances > 0).any() else 1.0
