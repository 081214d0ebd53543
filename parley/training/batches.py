"""Which samples each local step sees. A plan depends on the key and the number of samples alone.

Passes come in the order of random numbers that belong to (key, pass, sample), so those of a whole stack of clients are
drawn at once, and are the same as each client's alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from parley.core.errors import InputError
from parley.core.key import Key

Order = Literal["shuffle", "independent"]
Counts = np.ndarray[Any, np.dtype[np.int64]]
Words = np.ndarray[Any, np.dtype[np.uint64]]
ORDER = 2
"""The version of the orders that `shuffled` draws: runs of another one cannot be resumed."""
MOST = 2**27
"""Samples that a client may draw in a round: all are drawn beforehand, and so many take a gigabyte."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Sample indices of all steps, one after the other, and how many belong to each step.

    `indices` is None where every step sees all samples in their own order (full batches).
    """

    indices: Tensor | None
    lengths: tuple[int, ...]

    @property
    def steps(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True, slots=True)
class StackPlan:
    """The plans of a stack of clients."""

    indices: Tensor
    """[S, steps, B]: each client's samples of each step; one step stands for all where every batch is full."""
    weights: Tensor
    """[S, steps, B] in float64: 1/length on real samples, 0 on padding and on steps beyond a client's own."""
    steps: tuple[int, ...]
    """Steps of each client."""


@dataclass(frozen=True, slots=True)
class Work:
    """How much a client does in a round: K steps, or E passes over its data (exactly one of the two)."""

    steps: int | None = None
    epochs: int | None = None
    batch: int | None = None
    """Samples per step; None takes all of a client's samples, i.e. its exact gradient."""
    order: Order = "shuffle"
    """`shuffle`: passes without replacement, each in a new order, the last batch of a pass being smaller.
    `independent`: each step draws its own samples, as Charles and Konečný's Theorem 1 needs in expectation."""

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise InputError("say how much a client does: either steps or epochs, not both and not neither.")
        for name, value in (("steps", self.steps), ("epochs", self.epochs), ("batch", self.batch)):
            if value is not None and (not isinstance(value, int) or value < 1):
                every = ", or 0 for all of a client's samples" if name == "batch" else ""
                raise InputError(f"{name} must be a whole number of at least 1{every}, not {value}.")
            if value is not None and value > MOST and name != "batch":
                raise InputError(f"{name} must be at most {MOST}, not {value}.")

    def count(self, samples: int) -> int:
        """The number of steps for a client with that many samples."""
        if self.steps is not None:
            return self.steps
        return (self.epochs or 0) * -(-samples // min(self.batch or samples, samples))

    def plan(self, samples: int, key: Key) -> BatchPlan:
        steps = self.count(samples)
        batch = min(self.batch or samples, samples)
        self._check_draws(np.array([samples]), np.array([batch]))
        if batch == samples:
            return BatchPlan(None, (samples,) * steps)
        if self.order == "independent":
            random = key.numpy()
            draws = [random.choice(samples, batch, replace=False) for _ in range(steps)]
            return BatchPlan(torch.from_numpy(np.concatenate(draws)), (batch,) * steps)
        lengths, passes = _passes(samples, batch, steps)
        order = shuffled(np.array([samples]), [key], passes).reshape(-1)
        return BatchPlan(torch.from_numpy(order[: sum(lengths)]), lengths)

    def stacked(self, sizes: Sequence[int], keys: Sequence[Key]) -> StackPlan:
        """The plans of clients with so many samples, padded to one shape."""
        samples = np.asarray(sizes)
        batch = np.minimum(self.batch or int(samples.max()), samples)
        full = batch == samples
        self._check_draws(samples, batch)
        if full.all():
            inside = np.arange(samples.max()) < samples[:, None]
            indices, weights = np.where(inside, np.arange(samples.max()), 0), inside / samples[:, None]
            counts = tuple(self._steps(samples, batch).tolist())
            return StackPlan(torch.from_numpy(indices[:, None]), torch.from_numpy(weights[:, None]), counts)
        if self.order == "independent":
            plans = [self.plan(size, key) for size, key in zip(sizes, keys, strict=True)]
            return StackPlan(*pad(plans, sizes), tuple(plan.steps for plan in plans))
        if (samples == samples[0]).all():
            return self._of_one_size(samples, keys)
        a_pass, steps = -(-samples // batch), self._steps(samples, batch)
        number = np.arange(steps.max())
        begin = number % a_pass[:, None] * batch[:, None]
        lengths = np.where(number < steps[:, None], np.minimum(batch[:, None], samples[:, None] - begin), 0)
        slots = np.arange(lengths.max())
        real = slots < lengths[..., None]
        weights = real / np.maximum(lengths, 1)[..., None]
        positions = np.where(real, begin[..., None] + slots, 0)
        indices = positions  # of full batches
        for rows in _alike(samples, ~full):
            passes = int((-(-steps[rows] // a_pass[rows])).max())
            order = shuffled(samples[rows], [keys[row] for row in rows], passes)
            which = np.minimum(number // a_pass[rows, None], passes - 1) + np.arange(len(rows))[:, None] * passes
            indices[rows] = np.where(
                real[rows], order.reshape(-1)[which[..., None] * order.shape[-1] + positions[rows]], 0
            )
        return StackPlan(torch.from_numpy(indices), torch.from_numpy(weights), tuple(steps.tolist()))

    def _of_one_size(self, samples: Counts, keys: Sequence[Key]) -> StackPlan:
        """The plans of clients with equally many samples, more than a batch: the shape of all is that of one."""
        size, count = int(samples[0]), len(samples)
        lengths, passes = _passes(size, self.batch or size, self.count(size))
        positions, real, weights = _shape(lengths)
        order = shuffled(samples, keys, passes).reshape(count, -1)
        indices = order[:, : len(lengths) * real.shape[1]].reshape(count, *real.shape) if real.all() else None
        if indices is None:
            indices = np.where(real, order[:, positions], 0)
        return StackPlan(torch.from_numpy(indices), weights.expand(count, *weights.shape), (len(lengths),) * count)

    def _steps(self, samples: Counts, batch: Counts) -> Counts:
        if self.steps is not None:
            return np.full(len(samples), self.steps)
        return (self.epochs or 0) * -(-samples // batch)

    def _check_draws(self, samples: Counts, batch: Counts) -> None:
        steps = self._steps(samples, batch)
        drawn = steps * np.where(batch == samples, 1, batch)
        if drawn.max() > MOST:
            most = int(drawn.argmax())
            raise InputError(
                f"a client with {samples[most]} samples would draw {drawn[most]} in a round, and at most {MOST} fit; "
                "lower steps, epochs or batch."
            )


def shuffled(samples: Counts, keys: Sequence[Key], passes: int) -> Counts:
    """[clients, passes, most samples]: in row (c, p) the first samples[c] are the order of the c-th client's pass p."""
    words = np.frombuffer(b"".join([key.digest for key in keys]), "<u8").reshape(-1, 2)[..., None, None]
    most = int(samples.max())
    counter = (np.arange(passes, dtype=np.uint64) << np.uint64(32))[:, None] + np.arange(1, most + 1, dtype=np.uint64)
    begun: Words = np.asarray(words[:, 0] + counter * _GOLDEN, np.uint64)
    numbers = _mixed(_mixed(begun) ^ words[:, 1])
    if samples.min() < most:
        numbers[np.broadcast_to((np.arange(most) >= samples[:, None])[:, None], numbers.shape)] = _LARGEST
    return numbers.argsort(axis=-1)


_GOLDEN, _LARGEST = np.uint64(0x9E3779B97F4A7C15), np.uint64(2**64 - 1)


def _mixed(z: Words) -> Words:
    """SplitMix64's finaliser (Steele, Lea and Flood, 2014), in place."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z ^= z >> np.uint64(shift)
        z *= np.uint64(factor)
    z ^= z >> np.uint64(31)
    return z


def _alike(samples: Counts, chosen: np.ndarray[Any, np.dtype[np.bool_]]) -> list[Counts]:
    """The chosen clients in groups whose numbers of samples are within a factor of two of each other."""
    size = np.where(chosen, np.frexp(samples)[1], 0)
    return [np.flatnonzero(size == count) for count in np.unique(size[chosen])]


@lru_cache(maxsize=1024)
def _passes(samples: int, batch: int, steps: int) -> tuple[tuple[int, ...], int]:
    """The lengths of so many batches, and how many passes over the samples they are from."""
    full, rest = divmod(samples, batch)
    one_pass = (batch,) * full + ((rest,) if rest else ())
    passes = -(-steps // len(one_pass))
    return (one_pass * passes)[:steps], passes


@lru_cache(maxsize=64)
def _shape(lengths: tuple[int, ...]) -> tuple[Counts, np.ndarray[Any, np.dtype[np.bool_]], Tensor]:
    """[steps, B] of batches that follow one another: the place of each sample, which are there, and their weights."""
    sizes = np.array(lengths)[:, None]
    slots = np.arange(sizes.max())
    real = slots < sizes
    positions = np.where(real, np.cumsum(sizes, 0) - sizes + slots, 0)
    return positions, real, torch.from_numpy(real / sizes)


def pad(plans: Sequence[BatchPlan], sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Index and weight matrices [S, steps, B] of a stack of plans; weights are 1/length on real samples, else 0.

    Steps beyond a client's own have weight 0 throughout.
    """
    steps = max(plan.steps for plan in plans)
    width = max(max(plan.lengths) for plan in plans)
    indices = np.zeros((len(plans), steps, width), dtype=np.int64)
    weights = np.zeros((len(plans), steps, width), dtype=np.float64)
    masks: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = {}  # most clients of a stack have the same lengths
    for row, (plan, size) in enumerate(zip(plans, sizes, strict=True)):
        if plan.lengths not in masks:
            lengths = np.asarray(plan.lengths)[:, None]
            real = np.arange(width) < lengths
            masks[plan.lengths] = real, real / lengths
        real, shares = masks[plan.lengths]
        order = np.tile(np.arange(size), plan.steps) if plan.indices is None else plan.indices.numpy()
        if order.size == real.size:  # every batch is full
            indices[row, : plan.steps] = order.reshape(real.shape)
        else:
            indices[row, : plan.steps][real] = order
        weights[row, : plan.steps] = shares
    return torch.from_numpy(indices), torch.from_numpy(weights)
