"""Federated statistics: counts, missing values, means, variances, histograms, quantiles and labels before training.

    client   counts, sums and sums of squares of every column, exactly (`statistics.exact_sums`), and of every label
    server   mean and variance of each column from all clients' sums, and equal cells about the mean
    client   how many of its values lie in each cell (`cells`)
    client   means of blocks of neighbouring values, from which quantiles come (`neighbours`); of a column of few
             different values each that enough samples share is a block
    client   names of the levels of columns of texts, and how many samples have each (`parley.statistics.levels`)

All but blocks and names are sums of whole numbers, so over any partition of the rows they are those of pooled data, bit
for bit. Nothing leaves a client that fewer than `floor` of its samples stand behind: a client with fewer answers zeros,
so does one with fewer values in a column for that column, small counts of cells, labels and levels are left out
(`statistics.floors`), and a block has at least so many values. How many values of a column are missing is told as is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import prod
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.algorithms.exchange import Exchange, Reply, ask
from parley.algorithms.protocol import Algorithm, Cohort, Contexts, Learned, Needs, Questions, algorithm
from parley.algorithms.trees.binning import LARGEST, Counts, Floats, check_ranges, counts
from parley.core.errors import InputError, WireError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.tree import Tree
from parley.data import ClientData
from parley.statistics import floors
from parley.statistics.exact_sums import DIGITS, carried, exact_sums, exact_value, root, rounded
from parley.statistics.levels import MOST, WIDTH, counted, level_names, union
from parley.training.stack import Data
from parley.training.task import Task

SHARES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
"""The quantiles; the first and the last are those of the lowest and the highest block or cell."""

_BLOCKS = ("means", "weights", "equal", "few")


@algorithm("statistics")
@dataclass(frozen=True)
class FederatedStatistics(Algorithm):
    """Statistics of all clients' samples, in one round; `parley stats` shows them. Trains nothing, needs no model.

    As a model it predicts the mean target or how frequent classes are, whatever the inputs.
    """

    floor: int = 10
    """Fewest samples of a client behind anything it sends; with 1 it discloses single samples."""
    bins: int = 8
    """Cells of histograms between three standard deviations below and above the mean, or in ranges."""
    quantiles: Literal["blocks", "cells"] = "blocks"
    """Where quantiles come from: means of blocks of neighbouring values of each client, or the cells of histograms,
    which need nothing but sums and are coarser."""
    blocks: int = 100
    """Most blocks of a client; quantiles are off by at most one block of each client."""
    ranges: tuple[tuple[float, float], ...] = ()
    """Public ranges of the input columns, [low, high] for all or each, to put cells into."""
    categories: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Text columns and their levels; clients are asked for levels that are not given."""

    @property
    def needs(self) -> Needs:
        return Needs(network=False, missing=True, texts=True, cpu=True)

    def exchanges(self) -> tuple[Exchange, ...]:
        asked = {"client", "cells"} | ({"neighbours"} if self.quantiles == "blocks" else set())
        asked |= {"levels"} if self.categories else set()
        asked |= {"names"} if self._asks_names else set()
        return tuple(each for each in super().exchanges() if each.name in asked)

    @property
    def _asks_names(self) -> bool:
        return not all(self.categories.values())

    def __post_init__(self) -> None:
        # Replies have a row for each column: nodes read the settings from JSON, which keeps no order of names.
        object.__setattr__(self, "categories", dict(sorted(self.categories.items())))
        for name, low, high in (("floor", 1, 2**31), ("bins", 1, 10_000), ("blocks", 1, 100_000)):
            if not low <= getattr(self, name) <= high:
                raise InputError(f"{name} must lie between {low} and {high}, not {getattr(self, name)}.")
        for name, levels in self.categories.items():
            if len(levels) > MOST or any(len(level.encode()) > WIDTH for level in levels):
                raise InputError(f"column '{name}' may have at most {MOST} levels of {WIDTH} bytes.")
        if self._asks_names and self.quantiles == "cells":
            name = next(name for name, levels in self.categories.items() if not levels)
            raise InputError(
                f"the levels of column '{name}' can only be asked for client by client, not by sums; declare them "
                f"(preprocessing.table.{name}.levels)."
            )
        if len(self.ranges):
            object.__setattr__(self, "ranges", check_ranges(self.ranges))

    # --- the server ---

    def init(self, task: Task, key: Key) -> State:
        if task.info.kind == "text":
            raise InputError(f"'{task.info.name}' holds token ids, of which there are no statistics.")
        if self.ranges:
            check_ranges(self.ranges, _inputs(task))
        if set(self.categories) != set(task.info.categories):
            odd = sorted(set(self.categories) ^ set(task.info.categories))[0]
            raise InputError(f"column '{odd}' must be among the categories of both the data and the question.")
        return State.of(prior={"outputs": torch.zeros(task.info.outputs, dtype=torch.float64)})

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Questions:
        if number > 1:
            return state
        replies = yield ask(self.client, dict.fromkeys(cohort.ids, Message()))
        sums = replies.sum("sums")
        sums |= {name: torch.from_numpy(carried(sums[name].numpy())) for name in ("first", "second")}
        means, deviations = moments(sums)
        edges = torch.from_numpy(self._edges(task, means, deviations))
        replies = yield ask(self.cells, dict.fromkeys(cohort.ids, Message.of(edges=edges)))
        result = State.of(sums=sums, cells={"edges": edges} | replies.sum("cells"))
        if self.quantiles == "blocks":
            replies = yield ask(self.neighbours, dict.fromkeys(cohort.ids, Message()))
            blocks = [reply["blocks"] for reply in replies.values()]
            result = result.replace(quantiles=_quantiles(blocks, features(task)))
        if self.categories:
            client_names: list[Tensor] = []
            if self._asks_names:
                replies = yield ask(self.names, dict.fromkeys(cohort.ids, Message()))
                client_names = [reply["names"]["bytes"] for reply in replies.values()]
            names = union(client_names, self.categories)
            replies = yield ask(self.levels, dict.fromkeys(cohort.ids, Message.of(names=names)))
            result = result.replace(levels={"names": names} | replies.sum("levels"))
        facts = {"samples": float(sums["rows"]), "contributed": float(sums["clients"])}
        return result.replace(prior={"outputs": _prior(task, sums, means)}), facts

    def _edges(self, task: Task, means: Floats, deviations: Floats) -> Floats:
        edges = floors.cell_edges(means, deviations, self.bins)
        for row, (low, high) in enumerate(check_ranges(self.ranges, _inputs(task)) if self.ranges else ()):
            edges[row] = np.linspace(low, high, self.bins + 1)
        return edges

    def _rising_edges(self, task: Task, message: Message) -> Form:
        """Cells that overlap would tell, as the difference of two counts above the floor, of a single sample."""
        form = Form.of(edges=(torch.float64, (features(task), self.bins + 1)))
        edges = message.tensors.get("edges")
        if edges is not None and edges.ndim == 2 and not (edges.diff(dim=1) >= 0).all():  # nor with NaN
            raise WireError("the edges of the cells do not rise.")
        return form

    def _blocks_form(self, task: Task) -> Form:
        shape = (features(task), self.blocks)
        flags = {"equal": (torch.bool, shape), "few": (torch.bool, shape[:1])}
        return Form.of(blocks={"means": (torch.float64, shape), "weights": (torch.int64, shape), **flags})

    def learned(self, task: Task) -> Learned:
        return Prior(task, read=lambda state, since: Message.of(prior=state["prior"]))

    # --- the client ---

    @floors.floored(
        form=lambda self, task, message: Form.of(sums=Form.like(_nothing(task))),
        accepts=lambda self, task, message: Form(),
        reads="sum",
        rounds=(1, 1),  # edges that move between two rounds would tell of single values
    )
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """Counts, sums and sums of squares; zeros for what too few samples stand behind."""
        assert isinstance(data, ClientData)
        sums = _nothing(task)
        if len(data) < self.floor:
            return Reply(Message.of(sums=sums))
        by_name: dict[str, list[Counts]] = {name: [] for name in ("count", "missing", "small", "first", "second")}
        for values, width in _columns(task, data):
            count = (~np.isnan(values)).sum(axis=1)
            small = (count < self.floor * width).astype(np.int64)
            counted = {"count": count, "missing": values.shape[1] - count}
            counted |= {"first": exact_sums(values, 1), "second": exact_sums(values, 2)}
            for value in counted.values():
                value[small == 1] = 0
            for name, value in (counted | {"small": small}).items():
                by_name[name].append(value)
        sums |= {name: torch.from_numpy(np.concatenate(values)) for name, values in by_name.items()}
        sums |= {"clients": torch.tensor(1), "rows": torch.tensor(len(data))}
        if task.info.kind != "regression":
            labels = np.bincount(data.y.numpy(), minlength=task.info.outputs)[None]
            sums["labels"] = torch.from_numpy(floors.above_floor(labels, self.floor)[0])
        return Reply(Message.of(sums=sums))

    @floors.floored(
        form=lambda self, task, message: Form.of(cells={"counts": (torch.int64, (features(task), self.bins + 2))}),
        accepts=lambda self, task, message: self._rising_edges(task, message),
        reads="sum",
        grid=("edges",),
        rounds=(1, 1),
    )
    def cells(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """How many values lie in each cell, small numbers left out."""
        assert isinstance(data, ClientData)
        edges, counted, begin = message.tensor("edges").numpy(), [], 0
        for values, width in _columns(task, data):
            # The last column of counts is that of missing values.
            here = edges[begin : begin + len(values)]
            column_counts = counts(values.T, here)[:, :-1]
            column_counts[column_counts.sum(axis=1) < self.floor * width] = 0
            among = None if width == 1 else [_among(*both, width) for both in zip(values, here, strict=True)]
            counted.append(floors.above_floor(column_counts, self.floor, among))
            begin += len(values)
        return Reply(Message.of(cells={"counts": torch.from_numpy(np.concatenate(counted))}))

    @floors.floored(
        form=lambda self, task, message: self._blocks_form(task),
        accepts=lambda self, task, message: Form(),
        rounds=(1, 1),
    )
    def neighbours(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """Means of blocks of neighbouring values, how many values each is of, and whether they are equal."""
        assert isinstance(data, ClientData)
        made = [floors.Blocks.of(values, self.blocks, self.floor * width) for values, width in _columns(task, data)]
        parts = {name: np.concatenate([getattr(each, name) for each in made]) for name in _BLOCKS}
        return Reply(Message.of(blocks={name: torch.from_numpy(value) for name, value in parts.items()}))

    @floors.floored(
        form=lambda self, task, message: Form.of(names={"bytes": (torch.uint8, (len(self.categories), MOST, WIDTH))}),
        accepts=lambda self, task, message: Form(),
        rounds=(1, 1),
    )
    def names(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """The names of the levels that enough samples have."""
        assert isinstance(data, ClientData)
        return Reply(Message.of(names={"bytes": level_names(task.info, data, tuple(self.categories), self.floor)}))

    @floors.floored(
        form=lambda self, task, message: Form.of(levels={"counts": (torch.int64, (len(self.categories), MOST + 1))}),
        accepts=lambda self, task, message: Form.of(names=(torch.uint8, (len(self.categories), MOST, WIDTH))),
        reads="sum",
        rounds=(1, 1),
    )
    def levels(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """How many samples have each level, small numbers left out."""
        assert isinstance(data, ClientData)
        asked = message.tensor("names")
        counts = counted(task.info, data, tuple(self.categories), asked, self.floor)
        return Reply(Message.of(levels={"counts": counts}))


class Prior(Learned):
    """The same outputs whatever the inputs: what the sums say of the labels alone."""

    def check(self, message: Message, memory: Memory | None = None) -> None:
        Form.of(prior={"outputs": (None, (self.task.info.outputs,))}).check(message.tensors)

    def outputs(self, message: Message, memory: Memory | None, x: Tensor, before: Tensor | None = None) -> Tensor:
        return message["prior"]["outputs"].to(x.dtype).expand(len(x), -1)


def features(task: Task) -> int:
    """Columns of a table or channels of an image, and the targets of a regression."""
    return _inputs(task) + (task.info.outputs if task.info.kind == "regression" else 0)


def moments(sums: Tree) -> tuple[Floats, Floats]:
    """Means and standard deviations (of the population) of all features; 0 where there are no values.

    Sums that no values have, because a client made them up, still give numbers.
    """
    means, deviations = [], []
    for count, first, second in zip(*(sums[name].numpy() for name in ("count", "first", "second")), strict=True):
        n = max(int(count), 1)
        means.append(rounded(exact_value(first, 1) / n))
        deviations.append(root(variance(n, first, second)))
    return np.clip(means, -LARGEST, LARGEST), np.array(deviations)


def variance(count: int, first: Counts, second: Counts) -> Fraction:
    """The variance (of the population) that a feature's sums say, exactly."""
    return max(exact_value(second, 2) / count - (exact_value(first, 1) / count) ** 2, Fraction(0))


def _inputs(task: Task) -> int:
    return task.info.shape[0] if task.info.shape else 1


def _columns(task: Task, data: ClientData) -> list[tuple[Floats, int]]:
    """Inputs and, of a regression, targets: [features, values], and how many values are of one sample."""
    x = data.x
    if texts := [task.info.columns.index(name) for name in task.info.categories]:
        x = x.index_fill(1, torch.tensor(texts), torch.nan)  # numbers of levels have no mean
    parts = [(x, _inputs(task))]
    if task.info.kind == "regression":
        parts.append((data.y, task.info.outputs))
    columns = []
    for values, rows in parts:
        width = prod(values.shape[1:]) // rows
        table = values.double().reshape(len(data), rows, width).transpose(0, 1)
        if table.isinf().any():
            raise InputError("has infinite numbers among its samples.")
        columns.append((table.reshape(rows, len(data) * width).numpy(), width))
    return columns


def _among(values: Floats, edges: Floats, width: int) -> NDArray[np.bool_]:
    """Which samples have a value in which cell, [samples, cells]."""
    cells = np.searchsorted(edges, values).reshape(-1, width)
    occupied = np.zeros((len(cells), len(edges) + 2), bool)  # the last is of missing values, which go beyond all edges
    occupied[np.arange(len(cells))[:, None], np.where(np.isnan(values).reshape(cells.shape), len(edges) + 1, cells)] = (
        True
    )
    return occupied[:, :-1]


def _nothing(task: Task) -> Tree:
    """The sums of no samples."""
    many = features(task)
    labels = 0 if task.info.kind == "regression" else task.info.outputs
    shapes: dict[str, tuple[int, ...]] = {
        "clients": (),
        "rows": (),
        "count": (many,),
        "missing": (many,),
        "small": (many,),
        "first": (many, DIGITS[1]),
        "second": (many, DIGITS[2]),
        "labels": (labels,),
    }
    return {name: torch.zeros(shape, dtype=torch.int64) for name, shape in shapes.items()}


def _quantiles(blocks: list[Tree], many: int) -> Tree:
    """Of every feature: quantiles, how many values they are of, by how many ranks they may be off, and what stands for
    missing values: the median, of few different values the nearest that enough samples share, where it is `known`."""
    means, weights, equal, few = (np.stack([block[name].numpy() for block in blocks], axis=1) for name in _BLOCKS)
    of, off = weights.sum(axis=(1, 2)), (weights * ~equal).max(axis=2).sum(axis=1)
    discrete = 2 * (weights.sum(axis=2) * few).sum(axis=1) > of
    values, fill, known = np.zeros((many, len(SHARES))), np.zeros(many), ~discrete
    for row in range(many):
        levels = np.unique(means[row][equal[row] & (weights[row] > 0)]) if discrete[row] else np.empty(0)
        values[row] = floors.block_quantiles(*floors.by_level(means[row], weights[row], levels), SHARES)
        fill[row] = values[row, SHARES.index(0.5)]
        if len(levels):
            fill[row], known[row] = levels[np.abs(levels - fill[row]).argmin()], True
    made = {"values": values, "of": of, "off": off, "fill": fill, "known": known}
    return {name: torch.from_numpy(value) for name, value in made.items()}


def _prior(task: Task, sums: Tree, means: Floats) -> Tensor:
    """The mean target, or the logarithms of the classes' shares, each counted once more."""
    if task.info.kind == "regression":
        return torch.from_numpy(means[_inputs(task) :])
    shares = sums["labels"].double().clamp_min(0) + 1
    return torch.log(shares / shares.sum())
