"""The Lipschitz extension of a client's labels, and what a fit in the Lipschitz norm is asked for (Shen et al., 4.3).

u(x) = min_j (y_j + L ||x - x_j||) agrees with the labels on the samples and is L-Lipschitz (13), output by output.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from parley.core.errors import InputError
from parley.core.key import Key


@dataclass(frozen=True)
class Extension:
    """u of one client; inputs are taken as flat vectors, everything is float64."""

    x: Tensor
    """[n, inputs]."""
    y: Tensor
    """[n, outputs]."""
    constant: float
    """L."""

    @classmethod
    def of(cls, x: Tensor, y: Tensor, constant: float | None = None) -> Extension:
        """With the smallest L that the labels allow, or with a larger one."""
        flat = x.detach().cpu().double().flatten(1)
        least = steepest(flat, y)
        if least == float("inf"):
            raise InputError(
                'has different labels at the same input, so no Lipschitz function goes through them; use oracle = "l2".'
            )
        if constant is not None and constant < least * (1 - 1e-9):
            raise InputError(
                f"has labels that change by {least:.4g} per unit of input, more than {constant:.4g}; "
                "raise algorithm.constant or leave it out."
            )
        return cls(flat, y, least if constant is None else constant)

    def values(self, at: Tensor) -> Tensor:
        """[m, outputs]."""
        return self._nearest(at)[0]

    def gradients(self, at: Tensor) -> Tensor:
        """[m, outputs, inputs]; 0 at a sample itself, the tip of its cone."""
        which = self._nearest(at)[1]
        away = at.detach().cpu().double().flatten(1)[:, None, :] - self.x[which]
        return self.constant * torch.nn.functional.normalize(away, dim=2)

    def _nearest(self, at: Tensor) -> tuple[Tensor, Tensor]:
        cones = self.constant * torch.cdist(at.detach().cpu().double().flatten(1), self.x, compute_mode=EXACT)
        least = (self.y[None] + cones[:, :, None]).min(dim=1)
        return least.values, least.indices


EXACT = "donot_use_mm_for_euclid_dist"


def steepest(x: Tensor, values: Tensor) -> float:
    """max |v_i - v_j| / ||x_i - x_j|| over all pairs and outputs; infinite where equal inputs have unequal values."""
    largest = 0.0
    for start in range(0, len(x), 512):
        apart = torch.cdist(x[start : start + 512], x, compute_mode=EXACT)
        rise = (values[start : start + 512, None] - values[None]).abs().amax(dim=2)
        slopes = torch.where(rise > 0, rise / apart, 0.0)
        largest = max(largest, float(slopes.max()))
    return largest


def between(x: Tensor, key: Key) -> Tensor:
    """One input for each sample, anywhere on the way from it to another: where slopes are looked at."""
    random = key.numpy()
    other = torch.from_numpy(random.permutation(len(x))).to(x.device)
    share = torch.from_numpy(random.random(len(x))).to(x).reshape(-1, *[1] * (x.ndim - 1))
    return x + share * (x[other] - x)
