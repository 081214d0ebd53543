"""What an attacker knows without having received anything: the range of inputs, a mean picture, the commonest label."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from parley.attack.matching import Rebuilt
from parley.data import Federation


@dataclass(frozen=True)
class Prior:
    """From public samples: the test set, else the public inputs, else the first client's range alone."""

    span: tuple[float, float]
    """Between which values inputs lie."""
    mean: Tensor
    """The mean input."""
    classes: int
    """0 where targets are numbers."""
    label: float
    """The commonest class, or the mean target."""

    @classmethod
    def of(cls, federation: Federation) -> Prior:
        info, test = federation.info, federation.test
        public = test.x if test is not None else federation.public
        x = (public if public is not None else federation.client(federation.ids[0]).x).double()
        low, high = float(x.min()), float(x.max())
        if not high > low:
            low, high = low - 1.0, high + 1.0
        mean = x.mean(0) if public is not None else torch.full_like(x[0], (low + high) / 2)
        classify = info.kind == "classification"
        label = float(test.y.mode().values) if classify and test is not None else 0.0
        if not classify and test is not None:
            label = float(test.y.mean())
        return cls((low, high), mean, info.outputs if classify else 0, label)

    @property
    def width(self) -> float:
        return self.span[1] - self.span[0]

    def blind(self, samples: int) -> Rebuilt:
        """The guess of one who received nothing."""
        x = self.mean.expand(samples, *self.mean.shape).clone()
        return Rebuilt(x, self.labels(samples), float("nan"))

    def labels(self, samples: int) -> Tensor:
        """As it is told apart from nothing, [samples], or [samples, 1] numbers."""
        return torch.full((samples,), int(self.label)) if self.classes else torch.full((samples, 1), self.label)
