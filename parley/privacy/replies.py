"""Replies of which only a noisy sum can be read: differential privacy on the server's side.

    mean change = (sum_i min(1, C / ||reply_i||) reply_i + N(0, (z C)^2)) / m

C bounds everything a client sent as one vector, so the joint release of all trees is one Gaussian mechanism. m is the
expected number of clients, not the number that answered, which would itself tell who was there. The noise is a function
of its place in the run: asked twice, the mean is the same, and nothing is gained by asking.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch import Tensor

from parley.algorithms.protocol import refuse_absent
from parley.algorithms.summed import FoldedReplies, SingleReplyError
from parley.core.context import Secrets
from parley.core.errors import UnsupportedError
from parley.core.form import Form
from parley.core.gaussian import gaussian
from parley.core.message import Message
from parley.core.tree import Tree, norm


@dataclass(frozen=True)
class Release:
    """What is done to the sum of one exchange before anyone reads it."""

    bound: float
    """C, the largest norm with which a client counts."""
    deviation: float
    """Standard deviation of the noise on every number of the sum, z C."""
    expected: float
    """m, the clients of a cohort on average."""
    secrets: Secrets
    """The server's, at this round and exchange."""


class PrivateReplies(FoldedReplies):
    """Replies whose noisy mean change is all that can be read; everything else raises."""

    __slots__ = ("__dict__", "_form", "_release", "_replies", "_total")

    def __init__(self, replies: Mapping[str, Message], form: Form, release: Release, total: Tree | None = None) -> None:
        """`total`: their sum in float64, where nothing else is known of them (secure sums)."""
        self._replies, self._form, self._release, self._total = replies, form, release, total or {}

    @property
    def count(self) -> float:
        """The expected number of clients; how many answered is not told."""
        return self._release.expected

    @property
    def answered(self) -> None:
        """Not told."""
        return None

    def sum(self, group: str, *, optional: bool = False) -> Tree:
        """The noisy sum."""
        return {name: value * self.count for name, value in self.mean_change(group, optional=optional).items()}

    def mean(self, group: str, *, optional: bool = False) -> Tree:
        """Refused: the sum is divided by the expected number of clients, fixed beforehand, because the number that came
        would have a sensitivity of its own. That is a mean of changes, not of absolute values."""
        if any(name.startswith(group + "/") for name in self._form) or not optional:
            raise SingleReplyError(
                f"it reads the mean of absolute values '{group}', but under central noise only a sum over the expected "
                "number of clients is released, which is right for changes alone."
            )
        return {}

    def mean_change(self, group: str, *, optional: bool = False) -> Tree:
        if not optional:
            refuse_absent(group, Message(self._noisy))
        prefix = group + "/"
        return {name[len(prefix) :]: value for name, value in self._noisy.items() if name.startswith(prefix)}

    @cached_property
    def _noisy(self) -> Tree:
        release, total = self._release, {}
        for name, spec in self._form.items():
            dtype, shape = real(name, spec)
            total[name] = (torch.zeros(shape, dtype=torch.float64), dtype)
            if name in self._total:
                total[name][0].add_(self._total[name])
        for message in self._replies.values():
            size = float(norm(message.tensors)) if message.tensors else 0.0
            factor = min(1.0, release.bound / size) if size > 0 else 1.0
            for name, (value, _) in total.items():
                value.add_(message.tensors[name].double(), alpha=factor)
        noisy: Tree = {}
        for name, (value, dtype) in total.items():
            noise = gaussian(release.secrets, f"noise {name}", value.shape)
            noisy[name] = ((value + release.deviation * noise) / release.expected).to(dtype)
        return noisy

    def __iter__(self) -> Iterator[Any]:
        self._refuse()

    def __len__(self) -> int:
        self._refuse()

    @property
    def weights(self) -> NoReturn:  # type: ignore[override]
        self._refuse()

    def _refuse(self, what: str = "it reads single replies") -> NoReturn:
        raise SingleReplyError(f"{what}, but under central noise only their mean can be read.")


def real(name: str, spec: Any) -> tuple[torch.dtype, tuple[int, ...]]:
    """The dtype and shape of a tensor that can be summed with noise; raises if the form leaves them open."""
    if spec is None or spec[0] is None or None in spec[1]:
        raise UnsupportedError(f"the form of its replies leaves '{name}' open, so noise cannot be added to a sum.")
    if not spec[0].is_floating_point:
        raise UnsupportedError(f"'{name}' of its replies is no tensor of real numbers, which noise needs.")
    return spec[0], tuple(spec[1])


def noisy_number(value: float, deviation: float, secrets: Secrets, label: str) -> float:
    """One number with noise of this standard deviation."""
    noise: Tensor = gaussian(secrets, label, ())
    return value + deviation * float(noise)
