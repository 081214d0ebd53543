"""Histogram boosting: gradient-boosted trees over all clients' rows, from sums of histograms (Chen & Guestrin, 2016;
Ke et al., 2017; as federated by FedTree, NVFlare and others).

    before round 1   bins of every column from counts that all clients add up (`trees.binning`), and the mean target
    every round      one tree per output, level by level:
                     server   the best split of each node from the sums of G, H and counts; then the next level
                     client   moves its rows down the tree and sends histograms of the nodes asked for
    next round       clients add the finished trees to the predictions of their rows

The server needs nothing but sums, and they are sums of whole numbers: over any partition of the rows the trees are, bit
for bit, those of pooled data with the same bins. A client's HISTOGRAMS SEEN ALONE REVEAL MUCH of its rows (a bin with
one row shows its gradient, hence nearly its target; with the levels above, its other columns too). A floor does
not change that: the server chooses splits, hence nodes of few rows, and trees, hence by which rows gradients move.
Clients see the splits of the trees, and so the bins' edges, but no histograms of each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parley.algorithms.exchange import Reply, ask, exchange
from parley.algorithms.protocol import Cohort, Contexts, Questions, algorithm
from parley.algorithms.trees import binning
from parley.algorithms.trees.binned import BinnedTrees, summed, table_of
from parley.algorithms.trees.boosted import (
    check_settings,
    grown,
    objective,
    of_round,
    outputs_of,
    sum_of,
    trees_form,
    trees_since,
)
from parley.algorithms.trees.growth import Growth
from parley.algorithms.trees.histograms import Nodes, below, chosen_rows, node_histograms, row_numbers, statistics
from parley.algorithms.trees.splits import Rules
from parley.core.errors import InputError, WireError
from parley.core.form import SEED, Accepted, Form, Number
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.data import ClientData
from parley.training.stack import Data
from parley.training.task import Task


@algorithm("histogram-boosting")
@dataclass(frozen=True)
class HistogramBoosting(BinnedTrees):
    """Gradient-boosted trees from sums of histograms: the model of pooled data, bit for bit. One tree per round.

    Needs no model. Missing values (NaN) have a bin of their own and learn a side at each split.
    """

    lr: float = 0.1
    """Step size: factor of each leaf's value."""
    depth: int = 6
    """Levels of splits in a tree; each costs an exchange."""
    min_leaf: int = 20
    """Fewest rows in a leaf."""
    min_hessian: float = 1e-3
    """Smallest sum of second derivatives in a leaf."""
    min_gain: float = 0.0
    """Gain that a split must exceed."""
    l2: float = 0.0
    """Penalty on the square of leaf values (lambda)."""
    rows: float = 1.0
    """Share of the rows of each tree, drawn by the rows' content (equal rows together)."""
    columns: float = 1.0
    """Share of the columns of each tree, drawn anew."""
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
        wanted = self._chosen_columns(task)
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

    # --- what it accepts ---

    def _chosen_columns(self, task: Task) -> int:
        """How many columns a tree may look at."""
        return max(1, round(self.columns * prod(task.info.shape)))

    def _shape_scalars(self, task: Task) -> dict[str, Number]:
        width = self._chosen_columns(task)
        return {"width": Number(int, width, width), "bins_each": Number(int, self.bins, self.bins)}

    def _begun(self, task: Task, message: Message) -> Accepted:
        """All roots, columns that there are, and bins of as many edges as was agreed."""
        many, width, outputs = prod(task.info.shape), self._chosen_columns(task), outputs_of(task)
        columns, nodes = message.tensor("columns"), message.tensor("nodes")
        form = Form.of(columns=(torch.int64, (width,)), nodes=(torch.int64, (outputs, 2)))
        if "bins" in message:
            form |= Form.of(bins={"edges": (torch.float64, (many, self.bins)), "first": (torch.float64, (outputs,))})
            if not bool((message["bins"].get("edges", torch.zeros(1, 1)).diff(dim=-1) >= 0).all()):
                raise WireError("the edges of the bins do not rise.")
        if columns.shape != (width,) or not _rising(columns, many):
            raise WireError("it names columns that there are not.")
        if nodes.tolist() != [[tree, 0] for tree in range(outputs)]:
            raise WireError("it begins with other nodes than the roots.")
        form |= trees_form(message, self.depth, many)
        return Form(form).with_scalars(**self._shape_scalars(task), seed=SEED, unit=self.unit(task))

    def _split(self, task: Task, message: Message) -> Accepted:
        """Splits of nodes that there are, and children to tell of, each once."""
        splits, nodes = message.tensor("splits"), message.tensor("nodes")
        form = Form.of(splits=(torch.int64, (None, 5)), nodes=(torch.int64, (None, 2)))
        form.check({"splits": splits, "nodes": nodes})
        most = torch.tensor([outputs_of(task), 2**self.depth, prod(task.info.shape), self.bins, 2])
        for rows in (splits, nodes):
            known = bool(((rows >= 0) & (rows < most[: rows.shape[1]])).all())
            if not known or len(rows[:, :2].unique(dim=0)) < len(rows):
                raise WireError("it names nodes, columns or bins that there are not, or one twice.")
        return form.with_scalars(**self._shape_scalars(task))

    # --- the client ---

    @exchange(
        form=lambda self, task, message: self._nodes_form(task, message),
        accepts=lambda self, task, message: self._begun(task, message),
        reads="sum",
        compress=lambda self: ("sums",) if self.real else (),
        feedback=False,
        fixed=("bins",),
        discloses=("inputs", "labels"),
        floor=lambda self: self.floor,
        stack=False,
    )
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """The roots' histograms, at the predictions of all trees so far."""
        assert isinstance(data, ClientData)
        outputs = outputs_of(task)
        if bins := message.get("bins"):
            codes_of_rows = binning.codes(table_of(data), bins["edges"].numpy())
            codes = torch.from_numpy(binning.merged(codes_of_rows, self.bins, self.floor))
            raw = bins["first"] + sum_of(message.get("trees"), data.x, outputs)
        else:
            codes, raw = memory.tensor("codes"), self._predictions(message, memory, data)
        y = data.y.numpy()
        values, loss = statistics(objective(task), raw.T.contiguous().numpy(), y, message.number("unit"))
        kept = Memory.of(
            codes=codes,
            raw=raw,
            values=torch.from_numpy(values),
            columns=message.tensor("columns"),
            level=0,
            begun=context.round,
        )
        if len(data) < self.floor:
            kept = kept.replace(chosen=torch.zeros(len(data), dtype=torch.bool))
        elif self.rows < 1:
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
        accepts=lambda self, task, message: self._split(task, message),
        times=lambda self: 2 * self.depth,
        fixed=(),
        like=client,
        joins=lambda self: {} if self.real else {"codes": 0, "rows": 1, "values": 1, "chosen": 0},
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
        result = torch.from_numpy(
            node_histograms(
                codes,
                rows,
                memory.tensor("values").numpy(),
                message.tensor("nodes").numpy(),
                int(message.number("bins_each")) + 1,
                2 ** int(memory.number("level")),
                None if chosen is None else chosen.numpy(),
            )
        )
        return Reply(Message.of(sums=self.sums(result)), memory.replace(rows=torch.from_numpy(rows)), observed)


def _rising(numbers: Tensor, end: int) -> bool:
    return bool((numbers.diff() > 0).all() and numbers[0] >= 0 and numbers[-1] < end)


def _shape(growth: Growth) -> dict[str, Any]:
    return {"width": len(growth.columns), "bins_each": growth.edges.shape[1]}
