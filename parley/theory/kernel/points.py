"""Checked samples: every client's points, stacked in client order, and the slices that lead back to the clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from parley.core.errors import InputError
from parley.theory.theta import Array


def as_points(x: npt.ArrayLike, where: str = "the data") -> Array:
    """Points as float64 [n, p]; a plain sequence of n numbers is n points on the line. Refuses NaN and infinity."""
    points = as_numbers(x, where)
    if points.ndim == 1:
        points = points[:, None]
    if points.ndim != 2 or not points.size:
        raise InputError(f"{where} must have the shape [n, p] with n, p >= 1, not {points.shape}.")
    check_finite(points, where)
    return points


def as_numbers(values: object, where: str) -> Array:
    """A float64 array; refuses text, complex numbers and rows of unequal length."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{where} must be an array of numbers.") from None


def check_finite(values: Array, where: str) -> None:
    """Refuses NaN and infinity, and says in which row the first one is."""
    if not np.isfinite(values).all():
        row = int(np.argmax(~np.isfinite(values).reshape(len(values), -1).all(axis=1)))
        raise InputError(f"{where} has a NaN or infinite value in row {row}; remove or impute it.")


@dataclass(frozen=True, eq=False)
class Samples:
    """The points of M clients; build it with `Samples.of([x_1, ..., x_M])`, x_i [n_i, p] or [n_i]."""

    x: Array
    """All points in client order, [N, p]."""
    sizes: tuple[int, ...]
    """n_i."""

    @classmethod
    def of(cls, clients: Sequence[npt.ArrayLike]) -> "Samples":
        if not len(clients):
            raise InputError("a federation needs at least one client.")
        parts = [as_points(x, f"client {number}'s data") for number, x in enumerate(clients)]
        widths = {part.shape[1] for part in parts}
        if len(widths) != 1:
            raise InputError(f"all clients must have the same number of columns, not {sorted(widths)}.")
        return cls(np.concatenate(parts), tuple(len(part) for part in parts))

    def __repr__(self) -> str:
        return f"Samples({len(self.sizes)} clients, {self.N} points of dimension {self.x.shape[1]})"

    @property
    def N(self) -> int:
        """The number of samples of all clients."""
        return len(self.x)

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        """Where each client's samples are in the stacked order."""
        ends = np.cumsum(self.sizes)
        return tuple(slice(int(end) - size, int(end)) for end, size in zip(ends, self.sizes, strict=True))

    def values(self, y: npt.ArrayLike | Sequence[npt.ArrayLike], name: str = "y") -> Array:
        """One number per sample as [N], from a stacked array or one array per client."""
        if isinstance(y, Sequence) and len(y) == len(self.sizes) and all(np.ndim(part) == 1 for part in y):
            parts = [as_numbers(part, name) for part in y]
            for number, (part, size) in enumerate(zip(parts, self.sizes, strict=True)):
                if len(part) != size:
                    raise InputError(f"client {number} has {size} samples but {len(part)} values in {name}.")
            values = np.concatenate(parts)
        else:
            values = as_numbers(y, name)
        if values.shape != (self.N,):
            raise InputError(f"{name} must have one value per sample, [{self.N}], not {values.shape}.")
        check_finite(values, name)
        return values
