"""What methods that boost trees have in common: a sum of trees that grows, and what its outputs mean.

The state has the trees of every round as `trees/<round>/...` and, where there is one, what is predicted before the
first as `bins/first`, from the round `begun` on. Each round adds as many trees per output as it likes, those of the
outputs in turn. Leaf values have so few digits that their sums are exact: what is evaluated round by round is what is
evaluated from scratch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import torch
from torch import Tensor

from parley.algorithms.protocol import Algorithm, Learned, Needs
from parley.algorithms.trees.ensemble import Trees, check_depth, stacked
from parley.algorithms.trees.histograms import Objective
from parley.algorithms.trees.tree_module import TreeModule
from parley.core.errors import InputError, WireError
from parley.core.form import Form
from parley.core.message import Memory, Message, State
from parley.core.tree import Tree
from parley.data.checks import MEASUREMENTS
from parley.training.losses import losses
from parley.training.task import Task


class BoostedTrees(Algorithm):
    """Trees for squares or cross-entropy. Of two classes the logit of the first is 0, so one tree serves both."""

    lr: float
    depth: int

    @property
    def needs(self) -> Needs:
        return Needs(network=False, missing=True, cpu=True)

    def learned(self, task: Task) -> Learned:
        return SumOfTrees(task, incremental=True, read=grown_since, depth=self.depth)


@dataclass(frozen=True)
class SumOfTrees(Learned):
    """What is predicted before the first tree, plus all trees."""

    depth: int = field(kw_only=True)

    def check(self, message: Message, memory: Memory | None = None) -> None:
        first = (torch.float64, (outputs_of(self.task),))
        form = Form.of(bins={"first": first}) if "bins" in message else Form()
        Form(form | trees_form(message, self.depth, prod(self.task.info.shape))).check(message.tensors)

    def outputs(self, message: Message, memory: Memory | None, x: Tensor, before: Tensor | None = None) -> Tensor:
        many = outputs_of(self.task)
        raw = first_of(message, many) + sum_of(message.get("trees"), x, many)
        raw = raw if before is None else before[:, -many:] + raw
        return torch.cat([torch.zeros_like(raw), raw], dim=1) if objective(self.task) == "logistic" else raw

    def module(self, message: Message, memory: Memory | None = None) -> TreeModule:
        task, trees = self.task, joined(message.get("trees"))
        if trees is None:
            raise InputError("there are no trees yet; train a round first.")
        return TreeModule(trees, first_of(message, outputs_of(task)), task.info.shape, objective(task) == "logistic")


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


def grown_since(state: State, since: int | None) -> Message:
    """The trees of later rounds, and what is predicted before the first where that is later too."""
    begun = int(state.scalars.get("begun", 0))
    new = begun > 0 and (since is None or since < begun)
    return Message.of(trees=trees_since(state, since), bins={"first": state["bins"]["first"]} if new else {})


def of_round(number: int, trees: Trees) -> Tree:
    """A round's trees under the names they have in states and messages."""
    return {f"{number:06}/{name}": value for name, value in trees.tensors().items()}


def trees_form(message: Message, depth: int, columns: int) -> Form:
    """The form of the trees of some rounds in a message, as many as it has; a WireError for what are none."""
    form, parts = Form(), Trees.form(None, depth, 1, columns, torch.float64, missing=True)
    trees = message.get("trees")
    for number in sorted({name.partition("/")[0] for name in trees}):
        if not (len(number) == 6 and number.isascii() and number.isdigit()):
            raise WireError(f"'{number[:40]}' is no round of trees.")
        form |= Form.of(**{f"trees/{number}": parts})
        tensors = {name: trees.get(f"{number}/{name}") for name in parts}
        if len({len(value) for value in tensors.values() if value is not None and value.ndim}) > 1:
            raise WireError(f"the trees of round {number} are not whole.")
        features = tensors["features"]
        if features is not None and features.numel() and not 0 <= int(features.min()) <= int(features.max()) < columns:
            raise WireError(f"a tree of round {number} splits on a column that there is not.")
    return Form(form)


def joined(trees: Tree) -> Trees | None:
    """The trees of all rounds, in their order; None if there are none yet."""
    rounds = sorted({name.partition("/")[0] for name in trees})
    parts = ("features", "thresholds", "values", "missing")
    trees_of_rounds = [Trees.of({name: trees[f"{number}/{name}"] for name in parts}) for number in rounds]
    return stacked(trees_of_rounds) if trees_of_rounds else None


def ensembles(trees: Tree, outputs: int) -> list[Trees]:
    """The trees of each output, in the order of rounds; empty if there are none yet."""
    whole = joined(trees)
    if whole is None:
        return []
    return [Trees.of({name: value[k::outputs] for name, value in whole.tensors().items()}) for k in range(outputs)]


def sum_of(trees: Tree, x: Tensor, outputs: int) -> Tensor:
    """The sum of the trees of each output, [n, outputs]."""
    groups = ensembles(trees, outputs)
    if not groups:
        return torch.zeros(len(x), outputs, dtype=torch.float64)
    return torch.cat([group.sum(x) for group in groups], dim=1)


def grown(trees: Tree, number: int, x: Tensor, rows: Tensor, level: int) -> Tensor:
    """What a round's trees, one per output, give to rows that have come to these nodes [outputs, n] of a level:
    [n, outputs]."""
    own_trees = Trees.of(
        {name.partition("/")[2]: value for name, value in trees.items() if name.startswith(f"{number:06}/")}
    )
    leaves = own_trees.below(x, rows.numpy(), level)
    return torch.from_numpy(np.take_along_axis(own_trees.values[..., 0].numpy(), leaves, axis=1).T)
