"""Bagging and cyclic boosting of local trees: what the field offers where only whole trees travel (as in NVFlare).

    tree-bagging   every round, each client boosts the common model by some trees on its own rows; the model gets all of
                   them, weighted by the clients' shares
    tree-cyclic    every round, the next client alone boosts the common model

Clients grow trees with LightGBM (the extra `trees`). A tree is sent as columns, thresholds and leaf values alone:
LightGBM's own text has the rows and hessians of every node, from which much of the data can be rebuilt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parley.algorithms.exchange import Reply, ask, exchange
from parley.algorithms.protocol import Cohort, Contexts, Questions, algorithm
from parley.algorithms.trees.boosted import (
    BoostedTrees,
    check_settings,
    objective,
    of_round,
    outputs_of,
    sum_of,
    trees_form,
    trees_since,
)
from parley.algorithms.trees.ensemble import Trees, stacked
from parley.algorithms.trees.light_trees import boosted, check_installed
from parley.algorithms.trees.splits import leaf_values
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.data import ClientData
from parley.training.stack import Data
from parley.training.task import Task


@dataclass(frozen=True)
class LocalTrees(BoostedTrees):
    """What both have in common."""

    lr: float = 0.1
    """Step size: factor of each leaf's value."""
    trees: int = 1
    """Trees per output that a client adds in a round."""
    depth: int = 6
    """Levels of splits in a tree."""
    bins: int = 255
    """Bins of a column, each client's own."""
    min_leaf: int = 20
    """Fewest rows in a leaf; a client with fewer than two leaves' worth adds a constant."""
    l2: float = 0.0
    """Penalty on the square of leaf values."""

    def __post_init__(self) -> None:
        check_settings(self, at_least_one=("trees", "min_leaf"))

    def init(self, task: Task, key: Key) -> State:
        objective(task)
        check_installed()
        return State()

    def chosen(self, cohort: Cohort, number: int) -> Sequence[str]:
        """Who boosts in this round."""
        raise NotImplementedError

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Questions:
        messages = {}
        for client in self.chosen(cohort, number):
            since = cohort.since.get(client)
            # The memory of round r has the predictions that round began with.
            messages[client] = Message.of(trees=trees_since(state, None if since is None else since - 1))
        replies = yield ask(self.client, messages)
        shares = cohort.shares([client for client in messages if client in replies])
        if not shares:
            return state
        grown = [Trees.of(replies[client]["grown"]) for client in shares]
        values = [tree.values * share for tree, share in zip(grown, shares.values(), strict=True)]
        unit = float(state.scalars.get("unit", 0)) or _power_above(torch.cat(values))
        added = [
            replace(tree, values=torch.from_numpy(leaf_values(value.numpy(), unit)))
            for tree, value in zip(grown, values, strict=True)
        ]
        return state.replace(trees=state.get("trees") | of_round(number, stacked(added)), unit=unit)

    @exchange(
        form=lambda self, task, message: self._grown_form(task),
        accepts=lambda self, task, message: trees_form(message, self.depth, prod(task.info.shape)),
        feedback=False,
        stack=False,
    )
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        assert isinstance(data, ClientData)
        many, y = outputs_of(task), data.y.numpy()
        raw = memory.tensors.get("raw", torch.zeros(len(data), many, dtype=torch.float64))
        raw = raw + sum_of(message.get("trees"), data.x, many)
        table: Any = np.asarray(data.x.reshape(len(data), -1).double().numpy())
        settings = {
            "learning_rate": self.lr,
            "max_depth": self.depth,
            "num_leaves": 2**self.depth,
            "max_bin": self.bins,
            "min_data_in_leaf": self.min_leaf,
            "lambda_l2": self.l2,
        }
        grown = boosted(objective(task), table, y, raw.numpy(), self.trees, self.depth, settings)
        return Reply(Message.of(grown=grown.tensors()), Memory.of(raw=raw))

    def _grown_form(self, task: Task) -> Form:
        many = self.trees * outputs_of(task)
        return Form.of(grown=Trees.form(many, self.depth, 1, prod(task.info.shape), torch.float64, missing=True))


@algorithm("tree-bagging")
@dataclass(frozen=True)
class TreeBagging(LocalTrees):
    """Bagging of boosted trees: each round every client adds trees grown on its own rows, weighted by its share."""

    def chosen(self, cohort: Cohort, number: int) -> Sequence[str]:
        return cohort.ids


@algorithm("tree-cyclic")
@dataclass(frozen=True)
class TreeCyclic(LocalTrees):
    """Cyclic boosting: each round the next client of the cohort adds trees grown on its own rows."""

    def chosen(self, cohort: Cohort, number: int) -> Sequence[str]:
        return cohort.ids[(number - 1) % len(cohort) :][:1]


def _power_above(values: Tensor) -> float:
    """A power of two not below any of them."""
    return float(2.0 ** np.ceil(np.log2(max(float(values.abs().max()), 2.0**-40))))
