"""Which samples each local step sees. A plan depends on the key and the number of samples alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from parley.core.errors import InputError
from parley.core.key import Key

Order = Literal["shuffle", "independent"]
MOST = 2**27
"""Samples that a client may draw in a round: all are drawn beforehand, and so many take a gigabyte."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Sample indices of all steps, one after the other, and how many belong to each step.

    `indices` is None where every step sees all samples in their own order (full batches).
    """

    indices: Tensor | None
    lengths: tuple[int, ...]

    @property
    def steps(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True, slots=True)
class Work:
    """How much a client does in a round: K steps, or E passes over its data (exactly one of the two)."""

    steps: int | None = None
    epochs: int | None = None
    batch: int | None = None
    """Samples per step; None takes all of a client's samples, i.e. its exact gradient."""
    order: Order = "shuffle"
    """`shuffle`: passes without replacement, each in a new order, the last batch of a pass being smaller.
    `independent`: each step draws its own samples, which paper 001's Theorem 1 needs to hold in expectation."""

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

    def plan(self, samples: int, key: Key) -> Plan:
        steps = self.count(samples)
        batch = min(self.batch or samples, samples)
        if (drawn := steps * (1 if batch == samples else batch)) > MOST:
            raise InputError(
                f"a client with {samples} samples would draw {drawn} in a round, and at most {MOST} fit; lower steps, "
                "epochs or batch."
            )
        if batch == samples:
            return Plan(None, (samples,) * steps)
        random = key.numpy()
        if self.order == "independent":
            draws = [random.choice(samples, batch, replace=False) for _ in range(steps)]
            return Plan(torch.from_numpy(np.concatenate(draws)), (batch,) * steps)
        lengths, passes = _passes(samples, batch, steps)
        order = [random.permutation(samples) for _ in range(passes)]
        indices = order[0] if passes == 1 else np.concatenate(order)
        return Plan(torch.from_numpy(indices[: sum(lengths)]), lengths)


@lru_cache(maxsize=1024)
def _passes(samples: int, batch: int, steps: int) -> tuple[tuple[int, ...], int]:
    """The lengths of so many batches, and how many passes over the samples they are from."""
    full, rest = divmod(samples, batch)
    one_pass = (batch,) * full + ((rest,) if rest else ())
    passes = -(-steps // len(one_pass))
    return (one_pass * passes)[:steps], passes


def pad(plans: Sequence[Plan], sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
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
        own = np.tile(np.arange(size), plan.steps) if plan.indices is None else plan.indices.numpy()
        if own.size == real.size:  # every batch is full
            indices[row, : plan.steps] = own.reshape(real.shape)
        else:
            indices[row, : plan.steps][real] = own
        weights[row, : plan.steps] = shares
    return torch.from_numpy(indices), torch.from_numpy(weights)
