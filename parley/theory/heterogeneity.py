"""How far clients' distributions are from each other and from their mixture: total variation and Wasserstein-1.

    omega_TV = 1/N sum_i TV(alpha, alpha_i),   omega_W1 = 1/N sum_i W1(alpha, alpha_i),   alpha = 1/N sum_i alpha_i

(Shen et al., (12) and (16)), alpha_i being the empirical distribution of client i: of its inputs, its labels, or both.
Distances between samples of different clients are Euclidean; two labels are `label_cost` apart if they differ, or
label_cost |y - y'| if they are numbers, and the distance of pairs (input, label) is the sum.

W1 is exact in one dimension, for labels, and for supports of up to `limit` points (POT, extra `transport`). Larger
supports are sampled: W1 of two samples is too large on average, at most by the mean W1 between samples of the same
distribution (triangle inequality), and W1 of any projection is at most W1. So every result has two ends between which
the distance lies, apart from twice the standard error of the repetitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.stats import wasserstein_distance

from parley.core.errors import InputError
from parley.core.extras import how_to_install
from parley.core.show import Brief
from parley.theory.theta import Array

__all__ = [
    "PROJECTIONS",
    "REPEATS",
    "Distance",
    "Heterogeneity",
    "Metric",
    "Sample",
    "heterogeneity",
    "mixture",
    "total_variation",
    "wasserstein1",
]

Metric = Literal["tv", "w1"]
REPEATS, PROJECTIONS = 5, 50
"""Samples drawn of a large support, and directions that it is projected on."""


@dataclass(frozen=True, eq=False)
class Sample:
    """An empirical distribution: inputs [n, d], labels [n] or both, and how much each counts."""

    inputs: Array | None = None
    labels: Array | None = None
    weights: Array | None = None
    """Positive; by default all the same."""
    numeric: bool = False
    """Labels are numbers with distances, not classes."""

    def __post_init__(self) -> None:
        if self.inputs is None and self.labels is None:
            raise InputError("a sample needs inputs, labels or both.")
        for name in ("inputs", "labels", "weights"):
            value = getattr(self, name)
            if value is None:
                continue
            array = np.asarray(value, dtype=None if name == "labels" and not self.numeric else np.float64)
            array = array.reshape(len(array), -1) if name == "inputs" and array.size else array
            if len(array) != len(self) or not len(array) or (name != "inputs" and array.ndim != 1):
                raise InputError(f"a sample's {name} must be as many as its other parts, and at least one.")
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise InputError(f"a sample's {name} must be finite.")
            object.__setattr__(self, name, array)
        if self.weights is not None and not (self.weights > 0).all():
            raise InputError("a sample's weights must be positive.")

    def __len__(self) -> int:
        return len(self.inputs if self.inputs is not None else self.labels)  # type: ignore[arg-type]

    @property
    def shares(self) -> Array:
        """The chance of each point, summing to one."""
        weights = np.ones(len(self)) if self.weights is None else self.weights
        return np.asarray(weights / weights.sum(), np.float64)

    def part(self, rows: NDArray[np.int64]) -> Sample:
        """Some of its points, all counting the same."""
        inputs, labels = (None if part is None else part[rows] for part in (self.inputs, self.labels))
        return Sample(inputs, labels, None, self.numeric)


def mixture(clients: Sequence[Sample]) -> Sample:
    """1/N sum_i alpha_i: every client counts the same, whatever its size."""
    if not clients:
        raise InputError("a mixture needs at least one client.")
    joined = {
        name: None
        if getattr(clients[0], name) is None
        else np.concatenate([getattr(client, name) for client in clients])
        for name in ("inputs", "labels")
    }
    weights = np.concatenate([client.shares for client in clients])
    return Sample(joined["inputs"], joined["labels"], weights, clients[0].numeric)


@dataclass(frozen=True)
class Distance:
    """A distance between two distributions, and between which ends it lies; they are equal where it is exact."""

    value: float
    low: float
    high: float

    @property
    def exact(self) -> bool:
        return self.low == self.high

    @classmethod
    def known(cls, value: float) -> Distance:
        return cls(value, value, value)


def total_variation(a: Sample, b: Sample) -> Distance:
    """1/2 sum over all points of |alpha - beta|, exactly; points are the same if all their numbers are.

    Between samples of continuous inputs it is 1 as soon as they share no point: look at W1 for those.
    """
    _check_alike(a, b)
    points = np.concatenate([_points(a), _points(b)])
    _, index = np.unique(points, axis=0, return_inverse=True)
    signed = np.concatenate([a.shares, -b.shares])
    return Distance.known(min(float(np.abs(np.bincount(index.ravel(), signed)).sum() / 2), 1.0))


def wasserstein1(
    a: Sample, b: Sample, *, label_cost: float = 1.0, limit: int = 1000, rng: np.random.Generator | None = None
) -> Distance:
    """min over couplings of the mean distance; supports above `limit` points are sampled with `rng`."""
    _check_alike(a, b)
    if not 0 < label_cost < np.inf:
        raise InputError(f"label_cost must be positive and finite, not {label_cost}.")
    if a.inputs is None:
        if a.numeric:
            return Distance.known(label_cost * wasserstein_distance(_labels(a), _labels(b), a.shares, b.shares))
        return Distance.known(label_cost * total_variation(a, b).value)  # the distance of classes is 0 or 1
    if a.labels is None and a.inputs.shape[1] == 1:
        return Distance.known(_on_a_line(a, b, np.ones(1)))
    if max(len(a), len(b)) <= limit:
        return Distance.known(_transport(a, b, label_cost))
    if rng is None:
        raise InputError(f"a sample has more than {limit} points, so it is sampled; give a random generator.")
    return _sampled(a, b, label_cost, limit, rng)


def _sampled(a: Sample, b: Sample, label_cost: float, limit: int, rng: np.random.Generator) -> Distance:
    """The mean over samples of `limit` points, less what distances of a distribution to itself explain."""

    def draw(of: Sample) -> Sample:
        return of.part(rng.choice(len(of), limit, p=of.shares))

    each = np.array([_transport(draw(a), draw(b), label_cost) for _ in range(REPEATS)])
    noise = 2 * each.std(ddof=1) / np.sqrt(REPEATS)
    bias = sum(_transport(draw(side), draw(side), label_cost) for side in (a, b))
    assert a.inputs is not None
    directions = rng.standard_normal((PROJECTIONS, a.inputs.shape[1]))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    gap = np.average(a.inputs, axis=0, weights=a.shares) - np.average(_inputs(b), axis=0, weights=b.shares)
    length = float(np.linalg.norm(gap))
    if length > 0:
        directions[0] = gap / length
    least = max(_on_a_line(a, b, direction) for direction in directions)
    if a.labels is not None:
        least = max(least, wasserstein1(_only_labels(a), _only_labels(b), label_cost=label_cost).value)
    value = float(each.mean())
    low = max(least, value - bias - noise, 0.0)
    return Distance(max(value, low), low, max(value + noise, low))


def _transport(a: Sample, b: Sample, label_cost: float) -> float:
    """W1 by linear programming."""
    ot = _pot()
    cost = cdist(_inputs(a), _inputs(b))
    if a.labels is not None:
        x, y = _labels(a)[:, None], _labels(b)[None, :]
        cost = cost + label_cost * (np.abs(x - y) if a.numeric else x != y)
    return max(float(ot.emd2(a.shares, b.shares, np.ascontiguousarray(cost), numItermax=10**7)), 0.0)


def _on_a_line(a: Sample, b: Sample, direction: Array) -> float:
    return float(wasserstein_distance(_inputs(a) @ direction, _inputs(b) @ direction, a.shares, b.shares))


@dataclass(frozen=True, eq=False, repr=False)
class Heterogeneity(Brief):
    """Distances of all clients."""

    between: Array
    """[N, N], between clients; NaN where they were not asked for."""
    to_mixture: tuple[Distance, ...]

    @property
    def omega(self) -> Distance:
        """The mean distance to the mixture: omega_TV (12), or omega_W1 (16)."""
        ends = np.array([[distance.value, distance.low, distance.high] for distance in self.to_mixture])
        value, low, high = ends.mean(axis=0).tolist()
        return Distance(value, low, high)


def heterogeneity(
    clients: Sequence[Sample],
    metric: Metric,
    *,
    label_cost: float = 1.0,
    limit: int = 1000,
    pairs: bool = True,
    rng: np.random.Generator | None = None,
) -> Heterogeneity:
    """Every client against the mixture and, with `pairs`, against every other one."""
    if metric not in ("tv", "w1"):
        raise InputError(f"metric must be 'tv' or 'w1', not '{metric}'.")

    def distance(a: Sample, b: Sample) -> Distance:
        if metric == "tv":
            return total_variation(a, b)
        return wasserstein1(a, b, label_cost=label_cost, limit=limit, rng=rng)

    whole, count = mixture(clients), len(clients)
    between = np.full((count, count), np.nan)
    np.fill_diagonal(between, 0.0)
    for i in range(count if pairs else 0):
        for j in range(i):
            between[i, j] = between[j, i] = distance(clients[i], clients[j]).value
    return Heterogeneity(between, tuple(distance(whole, client) for client in clients))


def _inputs(sample: Sample) -> Array:
    assert sample.inputs is not None
    return sample.inputs


def _labels(sample: Sample) -> Any:
    assert sample.labels is not None
    return sample.labels


def _only_labels(sample: Sample) -> Sample:
    return Sample(None, sample.labels, sample.weights, sample.numeric)


def _points(sample: Sample) -> Array:
    """A row of numbers for each point."""
    parts = [] if sample.inputs is None else [sample.inputs]
    if sample.labels is not None:
        parts.append(np.asarray(sample.labels, np.float64)[:, None])
    return np.concatenate(parts, axis=1)


def _check_alike(a: Sample, b: Sample) -> None:
    width = [None if sample.inputs is None else sample.inputs.shape[1] for sample in (a, b)]
    if width[0] != width[1] or (a.labels is None) != (b.labels is None) or a.numeric != b.numeric:
        raise InputError("two samples must both have inputs of one width, labels of one kind, or both, to be compared.")


def _pot() -> Any:
    try:
        import ot
    except ImportError:
        raise InputError(
            f"distances between inputs of several dimensions need the package POT: {how_to_install('transport')}."
        ) from None
    return ot
