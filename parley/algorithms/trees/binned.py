"""What boosting from histograms begins with, bins of columns and the mean target, and how histograms travel.

Every client counts its values in cells of the number line (or of public ranges); where the sums are large the cells are
refined and counted again, until they can be cut into bins (`trees.binning`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parley.algorithms.exchange import Reply, ask, exchange
from parley.algorithms.protocol import Cohort, Contexts, Replies
from parley.algorithms.trees import binning
from parley.algorithms.trees.boosted import BoostedTrees, objective
from parley.algorithms.trees.histograms import first_values, fixed, real_sums, statistic_names
from parley.core.errors import InputError, WireError
from parley.core.form import Accepted, Form, Number
from parley.core.message import Memory, Message, State
from parley.core.tree import Tree
from parley.data import ClientData
from parley.training.stack import Data
from parley.training.task import Task


@dataclass(frozen=True)
class BinnedTrees(BoostedTrees):
    """Trees that split between bins."""

    bins: int = 64
    """Bins of a column, at most 255; traffic grows with them."""
    ranges: tuple[tuple[float, float], ...] = ()
    """Public ranges of the columns, [low, high] for all or each, in which values are counted; without them further
    exchanges locate the values."""
    floor: int = 1
    """Fewest rows of a client in any cell it counts and any bin of a column (needs ranges); smaller ones are joined to
    neighbours. With 1 bins are those of pooled rows. Nodes of a tree may have fewer rows whatever the floor."""
    real: bool = False
    """Send real numbers in place of integers, which quantisation, clipping and noise need; sums are then rounded."""

    @property
    def number_type(self) -> torch.dtype:
        """Of all sums."""
        return torch.float64 if self.real else torch.int64

    def check_bins(self) -> None:
        """Refuse settings that cannot be."""
        if not 2 <= self.bins <= binning.MOST_BINS:
            raise InputError(f"bins must lie between 2 and {binning.MOST_BINS}, not {self.bins}.")
        if self.floor < 1:
            raise InputError(f"floor must be at least 1, not {self.floor}.")
        if self.floor > 1 and not len(self.ranges):
            raise InputError("a floor needs public ranges, in place of a search for values; set ranges.")
        if len(self.ranges):
            object.__setattr__(self, "ranges", binning.check_ranges(self.ranges))

    def begin(self, task: Task) -> State:
        """The first state, of columns that the settings fit."""
        if self.ranges:
            binning.check_ranges(self.ranges, prod(task.info.shape))
        return State()

    def binned(self, task: Task, cohort: Cohort, number: int) -> Any:
        """The state with bins and the mean target, after as many exchanges of counts as the columns need."""
        kind, columns = objective(task), prod(task.info.shape)
        line, parts = binning.number_line(), {}
        if self.ranges:
            cells = binning.range_cells(binning.check_ranges(self.ranges, columns))
            rule = binning.filling(self.bins) if self.floor < 2 else binning.leave
            parts["x"] = binning.Refinement(cells, columns, rule, coarse=False)
        else:
            parts["x"] = binning.Refinement(line, columns, binning.filling(self.bins), coarse=True)
        if kind == "squares":
            rule = binning.bounding if self.floor < 2 else binning.leave
            parts["y"] = binning.Refinement(line, task.info.outputs, rule, coarse=False)
        middle, unit, first = np.zeros(task.info.outputs), 1.0, None
        while first is None or any(len(part.open) for part in parts.values()):
            refined = {name: part for name, part in parts.items() if len(part.open)}
            message = Message.of(
                cells={name: torch.from_numpy(part.cells()) for name, part in refined.items()},
                open={name: torch.from_numpy(part.open) for name, part in refined.items()},
            )
            totals = first is None and "y" not in refined
            if totals:
                if "y" in parts:
                    middle, unit = binning.unit_of(*parts["y"].bounds())
                message = message.replace(middle=torch.from_numpy(middle), unit=unit)
            replies = yield ask(self.counts, dict.fromkeys(cohort.ids, message))
            counted = {name: value.numpy() for name, value in replies.sum("counts").items()}
            for name, part in refined.items():
                part.take(np.rint(counted[name]).astype(np.int64))
            if totals:
                first = first_values(kind, counted["targets"], int(counted["rows"]), unit, middle)
        edges = parts["x"].edges(self.bins)
        gains = torch.zeros(columns, dtype=torch.float64)
        bins = {"edges": torch.from_numpy(edges), "first": torch.from_numpy(first), "gains": gains}
        return State.of(bins=bins, unit=unit, begun=number)

    @exchange(
        form=lambda self, task, message: self._counts_form(task, message),
        accepts=lambda self, task, message: self._counted_cells(task, message),
        reads="sum",
        times=lambda self: 64 if self.floor < 2 else 2,  # every refinement tells at least one bit more of a double
        feedback=False,
        grid=("cells",),
        discloses=lambda self: ("inputs", "labels") if self.floor < 2 else (),
        floor=lambda self: self.floor,
        stack=False,
    )
    def counts(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """How many values of the open columns lie in each cell; with a unit, the sum of the targets too."""
        assert isinstance(data, ClientData)
        cells, columns = message.get("cells"), message.get("open")
        x, y = table_of(data), data.y.double().reshape(len(data), -1).numpy()
        result = {
            name: binning.counts((x if name == "x" else y)[:, columns[name].numpy()], edges.numpy())
            for name, edges in cells.items()
        }
        if "unit" in message.scalars:
            if objective(task) == "squares":
                result["targets"] = fixed(y - message.tensor("middle").numpy(), message.number("unit")).sum(axis=0)
            else:
                result["targets"] = np.bincount(data.y.numpy(), minlength=task.info.outputs)
                if self.floor > 1:
                    result["targets"] = binning.above_floor(result["targets"][None], self.floor)[0]
            result["rows"] = np.array(len(data))
        if self.floor > 1:
            result |= {name: binning.above_floor(result[name], self.floor) for name in cells}
            if len(data) < self.floor:
                result = {name: np.zeros_like(edges) for name, edges in result.items()}
        return Reply(
            Message.of(counts={name: torch.from_numpy(edges).to(self.number_type) for name, edges in result.items()})
        )

    def unit(self, task: Task) -> Number:
        """What a unit of the targets may be."""
        return Number(float, *((2.0**-512, 2.0**512) if objective(task) == "squares" else (1.0, 1.0)))

    def _counted_cells(self, task: Task, message: Message) -> Accepted:
        """Cells of columns that there are, side by side, and no more of them than finding these bins ever takes."""
        known = {"x": prod(task.info.shape)} | ({"y": task.info.outputs} if objective(task) == "squares" else {})
        cells, columns, form = message.get("cells"), message.get("open"), Form()
        for name, edges in cells.items():
            asked = columns.get(name)
            if name not in known or asked is None or asked.dtype != torch.int64 or asked.ndim != 1:
                raise WireError("it asks for counts of columns that there are not.")
            if len(asked) and not (asked[0] >= 0 and asked[-1] < known[name] and (asked.diff() > 0).all()):
                raise WireError("it asks for counts of columns that there are not.")
            form |= Form.of(cells={name: (torch.float64, (len(asked), None))}, open={name: (torch.int64, (None,))})
            if edges.ndim != 2 or edges.shape[1] > binning.most_cells(self.bins):
                raise WireError(f"it asks for more cells than {self.bins} bins are found with.")
            if not (edges.diff(dim=1) >= 0).all():
                raise WireError("the edges of the cells do not rise.")
        if "unit" in message.scalars:
            form |= Form.of(middle=(torch.float64, (task.info.outputs,)))
        if self.floor > 1:
            self._check_agreed(task, cells)
        return Form(form).with_scalars(**({"unit": self.unit(task)} if "unit" in message.scalars else {}))

    def _check_agreed(self, task: Task, cells: Tree) -> None:
        """The cells of the public ranges, and of targets those of the number line, and no others."""
        lines = {"x": binning.range_cells(binning.check_ranges(self.ranges, prod(task.info.shape)))}
        lines["y"] = np.broadcast_to(binning.number_line(), (task.info.outputs, len(binning.number_line())))
        if any(not np.array_equal(edges.numpy(), lines[name]) for name, edges in cells.items()):
            raise WireError("it asks for other cells than those of the ranges that were agreed.")

    def _counts_form(self, task: Task, message: Message) -> Form:
        parts: dict[str, Any] = {}
        for name, cells in message.get("cells").items():
            parts[name] = (self.number_type, (len(cells), cells.shape[-1] + 2))
        if "unit" in message.scalars:
            parts |= {"targets": (self.number_type, (task.info.outputs,)), "rows": (self.number_type, ())}
        return Form.of(counts=parts)

    # --- histograms on their way ---

    def sums(self, histograms: Tensor) -> Tree:
        """A client's histograms as they are sent."""
        return real_sums(histograms) if self.real else {"histograms": histograms}

    def sums_form(self, task: Task, shape: tuple[int, ...]) -> Form:
        """Of `sums`, for so many nodes, columns and bins."""
        names = statistic_names(objective(task))
        if self.real:
            return Form.of(sums=dict.fromkeys(names, (torch.float64, shape)))
        return Form.of(sums={"histograms": (torch.int64, (*shape, len(names)))})


def summed(replies: Replies) -> Any:
    """All clients' histograms added up, [nodes, columns, bins, statistics]."""
    sums = replies.sum("sums")
    return sums["histograms"].numpy() if "histograms" in sums else torch.stack(list(sums.values()), dim=-1).numpy()


def table_of(data: ClientData) -> binning.Floats:
    """A client's inputs as rows and columns."""
    return np.asarray(data.x.reshape(len(data), -1).double().numpy())
