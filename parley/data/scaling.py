"""Standardisation with statistics that clients share without showing a sample.

Each client would send its number of samples and, per column, a sum; then, knowing the pooled mean, per column a sum of
squares about it: 1 + 2 * columns numbers in two exchanges. (Squares about 0 in one exchange would lose all digits
of a column such as 1,000,000.1.) Whoever has a single sample shows it by that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from parley.core.errors import InputError
from parley.core.show import Brief


@dataclass(frozen=True, repr=False)
class Scaling(Brief):
    """Inputs become (x - mean) / deviation, per column of a table or channel of an image."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    """Constant columns have mean 0 and deviation 1 here: they are left alone."""
    samples: int = 0
    """How many samples the statistics are of, where that is known."""
    numbers_sent: int = 0
    """What every client would have to send: a count, and a sum and a sum of squares per column."""
    fill: tuple[float, ...] = ()
    """What stands for missing values (NaN) before all else; they stay missing without it."""

    @property
    def fills(self) -> bool:
        """Whether no value stays missing."""
        return bool(self.fill)

    def apply(self, x: Tensor) -> Tensor:
        """Inputs [n, columns] or [n, channels, ...], standardised, in their own dtype."""
        return scaled(x, *self.tensors(x.ndim - 1))

    def tensors(self, dimensions: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Mean, deviation and fill in float64, for samples of so many dimensions."""
        shape = (len(self.mean), *[1] * (dimensions - 1))
        mean, deviation = (torch.tensor(v, dtype=torch.float64).reshape(shape) for v in (self.mean, self.deviation))
        return mean, deviation, torch.tensor(self.fill, dtype=torch.float64).reshape(shape) if self.fill else None


class Scaler(nn.Module):
    """The same as a module, of which a state dict holds nothing."""

    mean: Tensor
    deviation: Tensor
    fill: Tensor | None

    def __init__(self, scaling: Scaling, dimensions: int) -> None:
        """For samples of so many dimensions."""
        super().__init__()
        for name, value in zip(("mean", "deviation", "fill"), scaling.tensors(dimensions), strict=True):
            self.register_buffer(name, value, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return scaled(x, self.mean, self.deviation, self.fill)


def scaled(x: Tensor, mean: Tensor, deviation: Tensor, fill: Tensor | None = None) -> Tensor:
    """(x - mean) / deviation in float64, rounded to the dtype of `x`; NaN becomes `fill` before that, if given."""
    values = x.double() if fill is None else torch.where(x.isnan(), fill, x.double())
    return ((values - mean) / deviation).to(x.dtype)


def pooled_scaling(clients: Callable[[], Iterable[Tensor]], shape: tuple[int, ...]) -> Scaling:
    """The scaling of all clients' inputs, from sums of each; `clients()` is gone through twice."""
    if not shape:
        raise InputError("only samples with columns or channels can be standardised, not single numbers.")
    columns = shape[0]
    count, samples = 0, 0
    total = torch.zeros(columns, dtype=torch.float64)
    for x in clients():
        if not x.is_floating_point():
            raise InputError("token ids cannot be standardised.")
        samples += len(x)
        count += x.numel() // columns
        total += _by_column(x).sum(dim=1)
    mean = total / count
    squares = torch.zeros_like(total)
    for x in clients():
        squares += (_by_column(x) - mean[:, None]).square().sum(dim=1)
    deviation = (squares / count).sqrt()
    # What rounding leaves of a constant column is not a spread.
    constant = deviation <= 1e-12 * mean.abs().clamp_min(1e-300)
    mean, deviation = mean.masked_fill(constant, 0.0), deviation.masked_fill(constant, 1.0)
    if not (mean.isfinite().all() and deviation.isfinite().all()):
        raise InputError("the inputs are too large to be standardised: their squares exceed float64.")
    return Scaling(tuple(mean.tolist()), tuple(deviation.tolist()), samples, 1 + 2 * columns)


def _by_column(x: Tensor) -> Tensor:
    return x.double().transpose(0, 1).reshape(x.shape[1], -1)
