"""Histogram boosting: gradient-boosted trees over all clients' rows, from sums of histograms (Chen & Guestrin, 2016;
Ke et al., 2017; as federated by FedTree, NVFlare and others).

    before round 1   bins of every column from counts that all clients add up (`learn.binning`), and the mean target
    every round      one tree per output, level by level:
                     server   the best split of each node from the sums of G, H and counts; then the next level
                     client   moves its rows down the tree and sends histograms of the nodes asked for
    next round       clients add the finished trees to the predictions of their rows

The server needs nothing but sums, and they are sums of whole numbers: over any partition of the rows the trees are, bit
for bit, those of pooled data with the same bins. A client's HISTOGRAMS SEEN ALONE REVEAL MUCH of its rows (a bin with
one row shows its gradient, hence nearly its target; together with the levels above, its other columns too). Clients see
the splits of the trees, and so the bins' edges, but no histograms of each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parley.algorithms.base.binned import BinnedTrees, summed, table_of
from parley.algorithms.base.boosted import check_settings, grown, objective, of_round, outputs_of, sum_of, trees_since
from parley.algorithms.base.exchange import Reply, ask, exchange
from parley.algorithms.base.protocol import Cohort, Contexts, Questions, algorithm
from parley.core.errors import InputError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.data import ClientData
from parley.learn import binning
from parley.learn.growth import Growth
from parley.learn.histograms import Nodes, below, chosen_rows, node_histograms, row_numbers, statistics
from parley.learn.splits import Rules
from parley.learn.stack import Data
from parley.learn.task import Task


@algorithm("histogram-boosting")
@dataclass(frozen=True)
class HistogramBoosting(BinnedTrees):
    """Gradient-boosted trees from sums of histograms: the model of pooled data, bit for bit. One tree per round.

    Needs no model. Missing values (NaN) have a bin of their own and learn a side at each split.
    """

    lr: float = 0.1
    """Step size: what each leaf's value is multiplied with."""
    depth: int = 6
    """Levels of splits in a tree; each costs an exchange."""
    min_leaf: int = 20
    """Fewest rows in a leaf."""
    min_hessian: float = 1e-3
    """Smallest sum of second derivatives in a leaf."""
    min_gain: float = 0.0
    """What a split must gain more than."""
    l2: float = 0.0
    """Penalty on the square of leaf values (lambda)."""
    rows: float = 1.0
    """Share of the rows that a tree is grown on, drawn anew for each by what the rows hold; equal rows share a fate."""
    columns: float = 1.0
    """Share of the columns that a tree may look at, drawn anew for each."""
    monotone: tuple[int, ...] = ()
    """One number per column: 1 if the output may only rise with it, -1 if only fall, 0 if anything. Not for more than
    two classes."""

    def __post_init__(self) -> None:
        self.check_bins()
        check_settings(
            self, at_least_one=["min_leaf"], at_least_zero=["min_hessian", "min_gain", "l2"], shares=["rows", "columns"]
        )
        if any(sign not in (-1, 0, 1) for sign in self.monotone):
            raise InputError(f"monotone has -1, 0 or 1 for every column, not {list(self.monotone)}.")

    # --- the server ---

    def init(self, task: Task, key: Key) -> State:
        kind, columns, outputs = objective(task), prod(task.info.shape), outputs_of(task)
        if self.monotone and (len(self.monotone) != columns or outputs > 1):
            many = f"there are {columns} columns" if outputs == 1 else f"{kind} grows {outputs} trees a round"
            raise InputError(f"monotone has {len(self.monotone)} numbers, but {many}.")
        return self.begin(task)

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Questions:
        if "bins" not in state:
            state = yield from self.binned(task, cohort, number)
        growth = self._growth(task, state, key.fold("columns"))
        replies = yield ask(self.client, self._roots(state, cohort, growth, key.fold("rows").seed))
        growth.begin(summed(replies))
        while True:
            answered = replies.answered
            made, asked = growth.split()
            if len(asked) == 0:
                break
            moved = Message.of(splits=torch.from_numpy(made), nodes=torch.from_numpy(asked), **_shape(growth))
            replies = yield ask(self.descend, dict.fromkeys(cohort.ids, moved))
            sums, others = summed(replies), None
            if replies.answered != answered:  # the parents' sums have rows of clients that are gone
                rest = moved.replace(
                    splits=torch.zeros(0, 5, dtype=torch.int64), nodes=torch.from_numpy(growth.siblings())
                )
                replies = yield ask(self.descend, dict.fromkeys(cohort.ids, rest))
                others = summed(replies)
            growth.take(sums, others)
        gains = state["bins"]["gains"] + torch.from_numpy(growth.importance)
        state = state.replace(
            bins=state["bins"] | {"gains": gains}, trees=state.get("trees") | of_round(number, growth.trees())
        )
        return state, {"gain": float(growth.importance.sum())}

    def _growth(self, task: Task, state: State, key: Key) -> Growth:
        """This round's trees, which may look at some of the columns."""
        count = prod(task.info.shape)
        wanted = max(1, round(self.columns * count))
        columns = np.sort(key.numpy().choice(count, wanted, replace=False)) if wanted < count else np.arange(count)
        signs = np.array(self.monotone, np.int8)[columns] if any(self.monotone) else None
        rules = Rules(self.l2, self.min_leaf, self.min_hessian, self.min_gain, signs)
        edges = state["bins"]["edges"].numpy()
        return Growth(edges, columns, outputs_of(task), self.depth, rules, self.lr, state.number("unit"))

    def _roots(self, state: State, cohort: Cohort, growth: Growth, seed: int) -> dict[str, Message]:
        """The first message of a round: what a client's memory lacks, and how to begin the trees."""
        shape = _shape(growth) | {"seed": seed, "unit": growth.unit}
        common = Message.of(columns=torch.from_numpy(growth.columns), nodes=torch.from_numpy(growth.roots), **shape)
        known: dict[int | None, Message] = {}
        for since in {cohort.since.get(client) for client in cohort.ids}:
            bins = {name: state["bins"][name] for name in ("edges", "first")} if since is None else {}
            # The memory of round r has the predictions that round began with.
            known[since] = common.replace(bins=bins, trees=trees_since(state, None if since is None else since - 1))
        return {client: known[cohort.since.get(client)] for client in cohort.ids}

    def _nodes_form(self, task: Task, message: Message) -> Form:
        shape = len(message.tensor("nodes")), int(message.number("width")), int(message.number("bins_each")) + 1
        return self.sums_form(task, shape)

    # --- the client ---

    @exchange(
        form=lambda self, task, message: self._nodes_form(task, message),
        reads="sum",
        compress=lambda self: ("sums",) if self.real else (),
        feedback=False,
    )
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """The roots' histograms, at the predictions of all trees so far."""
        assert isinstance(data, ClientData)
        outputs = outputs_of(task)
        if bins := message.get("bins"):
            codes = torch.from_numpy(binning.codes(table_of(data), bins["edges"].numpy()))
            raw = bins["first"] + sum_of(message.get("trees"), data.x, outputs)
        else:
            codes, raw = memory.tensor("codes"), self._predictions(message, memory, data)
        y = data.y.numpy()
        values, loss = statistics(objective(task), raw.T.contiguous().numpy(), y, message.number("unit"))
        kept = Memory.of(
            codes=codes, raw=raw, values=torch.from_numpy(values), columns=message.tensor("columns"), level=0,
            begun=context.round,
        )  # fmt: skip
        if self.rows < 1:
            chosen = chosen_rows(row_numbers(table_of(data), y), int(message.scalars["seed"]), self.rows)
            kept = kept.replace(chosen=torch.from_numpy(chosen))
        return self._answer(message, kept, np.zeros((outputs, len(data)), np.int16), loss=torch.tensor(loss))

    def _predictions(self, message: Message, memory: Memory, data: ClientData) -> Tensor:
        """Those the last round began with plus its trees, in which the rows' nodes are known, and all later ones."""
        last, trees = int(memory.number("begun")), message.get("trees")
        raw = memory.tensor("raw") + grown(trees, last, data.x, memory.tensor("rows"), int(memory.number("level")))
        later = {name: value for name, value in trees.items() if int(name.partition("/")[0]) != last}
        return raw + sum_of(later, data.x, raw.shape[1]) if later else raw

    @exchange(
        form=lambda self, task, message: self._nodes_form(task, message),
        reads="sum",
        times=lambda self: 2 * self.depth,
        compress=lambda self: ("sums",) if self.real else (),
        feedback=False,
    )
    def descend(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """The histograms of these nodes, after the splits above them."""
        rows, splits = memory.tensor("rows").numpy(), message.tensor("splits").numpy()
        if len(splits):
            level = int(memory.number("level"))
            rows = below(rows, memory.tensor("codes").numpy(), splits, int(message.number("bins_each")), 2**level)
            memory = memory.replace(level=level + 1)
        return self._answer(message, memory, rows)

    def _answer(self, message: Message, memory: Memory, rows: Nodes, **observed: Tensor) -> Reply:
        """The histograms of the nodes asked for, with the rows where they are now."""
        codes, columns = memory.tensor("codes").numpy(), memory.tensor("columns").numpy()
        codes = codes if len(columns) == codes.shape[1] else codes[:, columns]
        chosen = memory.tensors.get("chosen")
        found = torch.from_numpy(node_histograms(
            codes, rows, memory.tensor("values").numpy(), message.tensor("nodes").numpy(),
            int(message.number("bins_each")) + 1, 2 ** int(memory.number("level")),
            None if chosen is None else chosen.numpy(),
        ))  # fmt: skip
        return Reply(Message.of(sums=self.sums(found)), memory.replace(rows=torch.from_numpy(rows)), observed)


def _shape(growth: Growth) -> dict[str, Any]:
    return {"width": len(growth.columns), "bins_each": growth.edges.shape[1]}
