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
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from parley.algorithms.base.boosted import BoostedTrees, objective, of_round, outputs_of, sum_of, trees_since
from parley.algorithms.base.protocol import Cohort, Contexts, Exchange, Replies, Reply, algorithm, ask
from parley.core.errors import InputError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.tree import Tree
from parley.data import ClientData
from parley.learn import binning, sketches
from parley.learn.growth import Growth
from parley.learn.histograms import (
    Nodes,
    Rules,
    Whole,
    below,
    chosen_rows,
    first_values,
    fixed,
    node_histograms,
    real_steps,
    row_numbers,
    statistics,
)
from parley.learn.stack import Data
from parley.learn.task import Task
from parley.learn.trees import check_depth


@algorithm("histogram-boosting")
@dataclass(frozen=True)
class HistogramBoosting(BoostedTrees):
    """Gradient-boosted trees from sums of histograms: the model of pooled data, bit for bit. One tree per round.

    Needs no model. Missing values (NaN) have a bin of their own and learn a side at each split.
    """

    summed: ClassVar[tuple[str, ...]] = ("counts", "client", "descend")

    lr: float = 0.1
    """Step size: what each leaf's value is multiplied with."""
    depth: int = 6
    """Levels of splits in a tree; each costs an exchange."""
    bins: int = 64
    """Bins of a column, at most 255; traffic grows with them."""
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
    edges: Literal["counts", "sketches"] = "counts"
    """Where bins come from: counts added over clients, or quantile sketches of each client, which hold some of its raw
    values (needs the extra `trees`)."""
    ranges: tuple[tuple[float, float], ...] = ()
    """Public ranges of the columns, [low, high] for all or each: bins come from counts in them. Without, one more
    exchange finds where values lie."""
    real: bool = False
    """Send real numbers in place of integers, which quantisation, clipping and noise need; sums are then rounded."""

    @property
    def discloses(self) -> tuple[str, ...]:
        return ("inputs",) if self.edges == "sketches" else ()

    def __post_init__(self) -> None:
        check_depth(self.depth)
        for name, low, high in (("bins", 2, binning.MOST_BINS), ("min_leaf", 1, 2**31), ("depth", 1, 12)):
            if not low <= getattr(self, name) <= high:
                raise InputError(f"{name} must lie between {low} and {high}, not {getattr(self, name)}.")
        for name in ("rows", "columns"):
            if not 0 < getattr(self, name) <= 1:
                raise InputError(f"{name} is a share above 0 and up to 1, not {getattr(self, name)}.")
        for name in ("l2", "min_gain", "min_hessian"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} must be at least 0, not {getattr(self, name)}.")
        if not 0 < self.lr <= 1:
            raise InputError(f"lr must lie above 0 and up to 1, not {self.lr}.")
        if any(sign not in (-1, 0, 1) for sign in self.monotone):
            raise InputError(f"monotone has -1, 0 or 1 for every column, not {list(self.monotone)}.")
        if len(self.ranges):
            object.__setattr__(self, "ranges", binning.check_ranges(self.ranges))
            if self.edges == "sketches":
                raise InputError('ranges are for counts; leave them out with edges = "sketches".')

    @property
    def compressible(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("sums",) if self.real else ()

    # --- the server ---

    def init(self, task: Task, key: Key) -> State:
        kind, columns, outputs = objective(task), prod(task.info.shape), outputs_of(task)
        if self.ranges:
            binning.check_ranges(self.ranges, columns)
        if self.monotone and (len(self.monotone) != columns or outputs > 1):
            many = f"there are {columns} columns" if outputs == 1 else f"{kind} grows {outputs} trees a round"
            raise InputError(f"monotone has {len(self.monotone)} numbers, but {many}.")
        if self.edges == "sketches":
            sketches.check_installed()
        return State()

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Exchange:
        if "bins" not in state:
            state = yield from self._bins(task, cohort, number)
        columns = _drawn_columns(prod(task.info.shape), self.columns, key.fold("columns"))
        growth = Growth(
            state["bins"]["edges"].numpy(), columns, outputs_of(task), self.depth, self._rules(columns), self.lr,
            state.number("unit"),
        )  # fmt: skip
        replies = yield self._roots(state, cohort, growth, key.fold("rows").seed)
        growth.begin(_sums(replies))
        while True:
            answered = replies.answered
            made, asked = growth.split()
            if len(asked) == 0:
                break
            moved = Message.of(splits=torch.from_numpy(made), nodes=torch.from_numpy(asked), **_shape(growth))
            replies = yield ask("descend", dict.fromkeys(cohort.ids, moved))
            sums, others = _sums(replies), None
            if replies.answered != answered:  # the parents' sums have rows of clients that are gone
                rest = moved.replace(
                    splits=torch.zeros(0, 5, dtype=torch.int64), nodes=torch.from_numpy(growth.siblings())
                )
                replies = yield ask("descend", dict.fromkeys(cohort.ids, rest))
                others = _sums(replies)
            growth.take(sums, others)
        gains = state["bins"]["gains"] + torch.from_numpy(growth.importance)
        state = state.replace(
            bins=state["bins"] | {"gains": gains}, trees=state.get("trees") | of_round(number, growth.trees())
        )
        return state, {"gain": float(growth.importance.sum())}

    def _bins(self, task: Task, cohort: Cohort, number: int) -> Any:
        """Two exchanges at most: where values lie, then the counts that bins come from."""
        kind, columns = objective(task), prod(task.info.shape)
        line = torch.from_numpy(binning.number_line())
        found, unit = {}, 1.0
        survey: Tree = {} if self.ranges or self.edges == "sketches" else {"x": line}
        if kind == "squares":
            survey["y"] = line
        if survey:
            replies = yield ask("counts", dict.fromkeys(cohort.ids, Message.of(cells=survey)))
            found = {name: value.numpy() for name, value in replies.sum("counts").items()}
        if "y" in found:
            unit = binning.unit_of(found["y"], line.numpy())
        cells = binning.range_cells(binning.check_ranges(self.ranges, columns)) if self.ranges else None
        if "x" in found:
            cells = binning.refined(found["x"])
        parts: Tree = {} if cells is None else {"x": torch.from_numpy(cells)}
        replies = yield ask("counts", dict.fromkeys(cohort.ids, Message.of(cells=parts, unit=unit)))
        counted = {name: value.numpy() for name, value in replies.sum("counts").items()}
        if cells is not None:
            edges = binning.edges_of(cells, np.rint(counted["x"]), self.bins)
        else:
            replies = yield ask("sketch", dict.fromkeys(cohort.ids, Message()))
            edges = sketches.edges_of(
                [reply.tensor("sketch").numpy() for reply in replies.values()], self.bins, columns
            )
        first = first_values(kind, counted["targets"], int(counted["rows"]), unit)
        gains = torch.zeros(columns, dtype=torch.float64)
        bins = {"edges": torch.from_numpy(edges), "first": torch.from_numpy(first), "gains": gains}
        return State.of(bins=bins, unit=unit, begun=number)

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

    def _rules(self, columns: Whole) -> Rules:
        signs = np.array(self.monotone, np.int8)[columns] if any(self.monotone) else None
        return Rules(self.l2, self.min_leaf, self.min_hessian, self.min_gain, signs)

    def reply_form(self, task: Task, asked: str, message: Message) -> Form | None:
        whole = torch.float64 if self.real else torch.int64
        if asked == "sketch":
            return Form.of(sketch=(torch.uint8, (None,)))
        if asked == "counts":
            parts: dict[str, Any] = {}
            sides = {"x": prod(task.info.shape), "y": task.info.outputs}
            for name, cells in message.get("cells").items():
                parts[name] = (whole, (sides[name], cells.shape[-1] + 2))
            if "unit" in message.scalars:
                parts |= {"targets": (whole, (task.info.outputs,)), "rows": (whole, ())}
            return Form.of(counts=parts)
        width = int(message.number("width")), int(message.number("bins_each")) + 1, 3 - (objective(task) == "squares")
        return Form.of(sums={"histograms": (whole, (len(message.tensor("nodes")), *width))})

    # --- the client ---

    def counts(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """How many values lie in each cell; with a unit, the sum of the targets too."""
        assert isinstance(data, ClientData)
        cells, x, y = message.get("cells"), _table(data), data.y.double().reshape(len(data), -1).numpy()
        found = {name: binning.counts(x if name == "x" else y, own.numpy()) for name, own in cells.items()}
        if "unit" in message.scalars:
            if objective(task) == "squares":
                found["targets"] = fixed(y, message.number("unit")).sum(axis=0)
            else:
                found["targets"] = np.bincount(data.y.numpy(), minlength=task.info.outputs)
            found["rows"] = np.array(len(data))
        kind = np.float64 if self.real else np.int64
        return Reply(Message.of(counts={name: torch.from_numpy(np.asarray(own, kind)) for name, own in found.items()}))

    def sketch(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """Quantile sketches of all columns, in which some values stand as they are."""
        assert isinstance(data, ClientData)
        return Reply(Message.of(sketch=torch.from_numpy(sketches.sketch(_table(data)))))

    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """The roots' histograms, at the predictions of all trees so far."""
        assert isinstance(data, ClientData)
        kind, unit = objective(task), message.number("unit")
        if bins := message.get("bins"):
            codes = torch.from_numpy(binning.codes(_table(data), bins["edges"].numpy()))
            raw = bins["first"].repeat(len(data), 1)
        else:
            codes, raw = memory.tensor("codes"), memory.tensor("raw")
        raw = raw + sum_of(message.get("trees"), data.x, outputs_of(task))
        scores, y = raw.T.contiguous().numpy(), data.y.numpy()
        values, loss = statistics(kind, scores, y, unit)
        rows = np.zeros((len(values), len(data)), np.int16)
        if self.rows < 1:
            numbers = row_numbers(_table(data), y)
            rows[:, ~chosen_rows(numbers, int(message.scalars["seed"]), self.rows)] = -1
        columns = message.tensor("columns")
        kept = Memory.of(codes=codes, raw=raw, values=torch.from_numpy(values), columns=columns)
        seen = {"loss": torch.tensor(loss)}
        return Reply(self._histograms(message, kept, rows), kept.replace(rows=torch.from_numpy(rows)), seen)

    def descend(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """The histograms of these nodes, after the splits above them."""
        rows, codes = memory.tensor("rows").numpy().copy(), memory.tensor("codes").numpy()
        splits, bins = message.tensor("splits").numpy(), int(message.number("bins_each"))
        if len(splits):
            for tree, own in enumerate(rows):
                rows[tree] = below(own, codes, splits[splits[:, 0] == tree, 1:], bins)
        return Reply(self._histograms(message, memory, rows), memory.replace(rows=torch.from_numpy(rows)))

    def _histograms(self, message: Message, memory: Memory, rows: Nodes) -> Message:
        codes, columns = memory.tensor("codes").numpy(), memory.tensor("columns").numpy()
        codes = codes if len(columns) == codes.shape[1] else codes[:, columns]
        nodes, bins = message.tensor("nodes").numpy(), int(message.number("bins_each")) + 1
        found = torch.from_numpy(node_histograms(codes, rows, memory.tensor("values").numpy(), nodes, bins))
        return Message.of(sums={"histograms": found * real_steps(found.shape[-1]) if self.real else found})


def _table(data: ClientData) -> binning.Floats:
    return np.asarray(data.x.reshape(len(data), -1).double().numpy())


def _sums(replies: Replies) -> Any:
    return replies.sum("sums")["histograms"].numpy()


def _shape(growth: Growth) -> dict[str, Any]:
    return {"width": len(growth.columns), "bins_each": growth.edges.shape[1]}


def _drawn_columns(count: int, share: float, key: Key) -> Whole:
    wanted = max(1, round(share * count))
    return np.sort(key.numpy().choice(count, wanted, replace=False)) if wanted < count else np.arange(count)
