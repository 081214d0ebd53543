"""What methods that boost trees have in common: a sum of trees that grows, and what its outputs mean.

The state has the trees of every round as `trees/<round>/...` and, where there is one, what is predicted before the
first as `bins/first`, from the round `begun` on. Each round adds as many trees per output as it likes, those of the
outputs in turn. Leaf values have so few digits that their sums are exact: what is evaluated round by round is what is
evaluated from scratch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from parley.algorithms.base.protocol import Algorithm, Needs
from parley.core.errors import InputError
from parley.core.message import Memory, Message, State
from parley.core.tree import Tree
from parley.data.checks import MEASUREMENTS
from parley.learn.histograms import Objective
from parley.learn.losses import losses
from parley.learn.task import Predictor, Task
from parley.learn.tree_module import TreeModule
from parley.learn.trees import Trees, check_depth, stacked


class BoostedTrees(Algorithm):
    """Trees for squares or cross-entropy. Of two classes the logit of the first is 0, so one tree serves both."""

    incremental: ClassVar[bool] = True

    lr: float
    depth: int

    @property
    def needs(self) -> Needs:
        return Needs(network=False, missing=True, cpu=True)

    def model(self, task: Task, state: State, since: int | None = None) -> Message:
        begun = int(state.scalars.get("begun", 0))
        new = begun > 0 and (since is None or since < begun)
        return Message.of(trees=trees_since(state, since), bins={"first": state["bins"]["first"]} if new else {})

    def weights(self, task: Task, model: Message, memory: Memory | None = None) -> None:
        return None

    def module(self, task: Task, model: Message) -> TreeModule:
        many = outputs_of(task)
        whole = joined(model.get("trees"))
        if whole is None:
            raise InputError("there are no trees yet; train a round first.")
        return TreeModule(whole, first_of(model, many), task.info.shape, objective(task) == "logistic")

    def predictor(self, task: Task, model: Message, memory: Memory | None = None) -> Predictor:
        return lambda x: self.outputs(task, model, memory, x)

    def outputs(
        self, task: Task, model: Message, memory: Memory | None, x: Tensor, before: Tensor | None = None
    ) -> Tensor:
        many = outputs_of(task)
        raw = first_of(model, many) + sum_of(model.get("trees"), x, many)
        raw = raw if before is None else before[:, -many:] + raw
        return torch.cat([torch.zeros_like(raw), raw], dim=1) if objective(task) == "logistic" else raw


def check_settings(
    method: BoostedTrees,
    at_least_one: Sequence[str] = (),
    at_least_zero: Sequence[str] = (),
    shares: Sequence[str] = (),
) -> None:
    """Refuse trees of a depth, or a step size, that cannot be, and numbers outside what their names say."""
    check_depth(method.depth)
    for names, least in (("depth", *at_least_one), 1), (at_least_zero, 0):
        for name in names:
            if not getattr(method, name) >= least:
                raise InputError(f"{name} must be at least {least}, not {getattr(method, name)}.")
    for name in shares:
        if not 0 < getattr(method, name) <= 1:
            raise InputError(f"{name} is a share above 0 and up to 1, not {getattr(method, name)}.")
    if not 0 < method.lr <= 1:
        raise InputError(f"lr must lie above 0 and up to 1, not {method.lr}.")


def objective(task: Task) -> Objective:
    """What is minimised, from the task's data and loss."""
    if task.info.tokens:
        raise InputError(f"trees split on numbers, but the inputs are token ids; {MEASUREMENTS}.")
    regression = task.info.kind == "regression"
    if task.loss not in [losses[name] for name in (("mse", "half-squares") if regression else ("cross-entropy",))]:
        raise InputError("boosted trees minimise squares (mse, half-squares) or cross-entropy; leave out the loss.")
    return "squares" if regression else "logistic" if task.info.outputs == 2 else "softmax"


def outputs_of(task: Task) -> int:
    """How many sums of trees there are."""
    return 1 if objective(task) == "logistic" else task.info.outputs


def first_of(model: Message, outputs: int) -> Tensor:
    """What is predicted before the first tree, [outputs]."""
    return model.get("bins").get("first", torch.zeros(outputs, dtype=torch.float64))


def trees_since(state: State, since: int | None) -> Tree:
    """The trees of later rounds."""
    return {n: v for n, v in state.get("trees").items() if since is None or int(n.partition("/")[0]) > since}


def of_round(number: int, trees: Trees) -> Tree:
    """A round's trees under the names they have in states and messages."""
    return {f"{number:06}/{name}": value for name, value in trees.tensors().items()}


def joined(trees: Tree) -> Trees | None:
    """The trees of all rounds, in their order; None if there are none yet."""
    rounds = sorted({name.partition("/")[0] for name in trees})
    parts = ("features", "thresholds", "values", "missing")
    found = [Trees.of({name: trees[f"{number}/{name}"] for name in parts}) for number in rounds]
    return stacked(found) if found else None


def ensembles(trees: Tree, outputs: int) -> list[Trees]:
    """The trees of each output, in the order of rounds; empty if there are none yet."""
    whole = joined(trees)
    if whole is None:
        return []
    return [Trees.of({name: value[k::outputs] for name, value in whole.tensors().items()}) for k in range(outputs)]


def sum_of(trees: Tree, x: Tensor, outputs: int) -> Tensor:
    """The sum of the trees of each output, [n, outputs]."""
    found = ensembles(trees, outputs)
    if not found:
        return torch.zeros(len(x), outputs, dtype=torch.float64)
    return torch.cat([own.sum(x) for own in found], dim=1)


def grown(trees: Tree, number: int, x: Tensor, rows: Tensor, level: int) -> Tensor:
    """What a round's trees, one per output, give to rows that have come to these nodes [outputs, n] of a level:
    [n, outputs]."""
    own = Trees.of({name.partition("/")[2]: value for name, value in trees.items() if name.startswith(f"{number:06}/")})
    leaves = own.below(x, rows.numpy(), level)
    return torch.from_numpy(np.take_along_axis(own.values[..., 0].numpy(), leaves, axis=1).T)
