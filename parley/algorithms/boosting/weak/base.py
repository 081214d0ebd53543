"""What a weak learner is: fitted to values at a client's inputs, kept as tensors, summed with others like it.

The tensors of several learners of a kind are joined along their first axis, so a round's learners are one tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from parley.core.errors import InputError, UnsupportedError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.registry import Registry
from parley.core.tree import Tree
from parley.data.checks import MEASUREMENTS
from parley.training.task import Task

learners: Registry[type[Learner]] = Registry("weak learner")

Norm = Literal["l2", "l-infinity", "lipschitz"]
"""In which norm a learner should be close to what it is fitted to (Shen et al.: (5), (10), or (14) and (15))."""


@dataclass(frozen=True)
class Slopes:
    """What a fit in the Lipschitz norm looks at besides the values at the client's inputs (Shen et al., (21))."""

    x: Tensor
    """[m, ...]: inputs at which the slopes count."""
    values: Tensor
    """[m, outputs]."""
    gradients: Tensor
    """[m, outputs, inputs]: by the flattened input."""


@dataclass(frozen=True)
class Learner:
    """A kind of weak learner."""

    norms: ClassVar[tuple[Norm, ...]] = ("l2",)
    """What it can be fitted in."""
    needs_model: ClassVar[bool] = False
    """Is a network of the study's model."""
    discloses: ClassVar[tuple[str, ...]] = ()
    """What of a client's samples can be read off it (see `Exchange.discloses`)."""

    def check(self, task: Task, norm: Norm) -> None:
        """Refuse a task that it cannot be used for."""
        if norm not in self.norms:
            known = ", ".join(f'"{name}"' for name in self.norms)
            raise UnsupportedError(
                f'the weak learner {type(self).__name__} cannot be fitted in the norm "{norm}", only in {known}; '
                "choose another learner or oracle."
            )
        if task.info.tokens and not self.needs_model:
            raise InputError(
                f"the weak learner {type(self).__name__} takes floats, but the inputs are integers, which are taken "
                f"for token ids; {MEASUREMENTS}."
            )

    def fit(
        self, task: Task, x: Tensor, phi: Tensor, key: Key, norm: Norm = "l2", slopes: Slopes | None = None
    ) -> Tree:
        """One learner, fitted to phi [n, outputs] at x [n, ...]; its tensors have a first axis for joining."""
        raise NotImplementedError

    def sum(self, task: Task, learners: Tree, coefficients: Tensor, x: Tensor) -> Tensor:
        """sum_j c_j h_j(x), [n, outputs] in float64, added in their order."""
        raise NotImplementedError

    def form(self, task: Task, count: int | None) -> Form | None:
        """The form of `count` learners joined, None for any number; None if it is not known beforehand."""
        return None

    def sound(self, task: Task, learners: Tree) -> bool:
        """Whether received learners, which have the form they must have, can be evaluated."""
        return True

    def joined(self, learners: Sequence[Tree]) -> Tree:
        """Several learners as one tree."""
        return {name: torch.cat([each[name] for each in learners]) for name in learners[0]}

    def values(self, task: Task, learner: Tree, x: Tensor) -> Tensor:
        """One learner at x, [n, outputs] in float64."""
        return self.sum(task, learner, torch.ones(1, dtype=torch.float64), x)

    def slopes(self, task: Task, learner: Tree, x: Tensor) -> Tensor:
        """One learner's gradients at x, [n, outputs, inputs] in float64; needed for the Lipschitz norm alone."""
        raise UnsupportedError(f"the weak learner {type(self).__name__} has no gradient.")

    def fold(self, task: Task, rounds: Sequence[Increment], x: Tensor, before: Tensor | None) -> Tensor:
        """f(x) after these rounds, given its values before them: f <- decay f + sum_j c_j h_j(x), round by round."""
        total = torch.zeros(len(x), task.info.outputs, dtype=torch.float64) if before is None else before
        for boosted in rounds:
            total = total * boosted.decay + self.sum(task, boosted.learners, boosted.coefficients, x)
        return total


@dataclass(frozen=True)
class Increment:
    """What one round adds to an ensemble."""

    learners: Tree
    coefficients: Tensor
    """[learners], float64."""
    decay: Tensor
    """[], float64: what the function before the round is multiplied by."""
