"""What boosting from histograms begins with, bins of columns and the mean target, and how histograms travel.

Every client counts its values in cells of the number line (or of public ranges); where the sums are large the cells are
refined and counted again, until they can be cut into bins (`learn.binning`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parley.algorithms.base.boosted import BoostedTrees, objective
from parley.algorithms.base.exchange import Reply, ask, exchange
from parley.algorithms.base.protocol import Cohort, Contexts, Replies
from parley.core.errors import InputError
from parley.core.form import Form
from parley.core.message import Memory, Message, State
from parley.core.tree import Tree
from parley.data import ClientData
from parley.learn import binning
from parley.learn.histograms import first_values, fixed, real_sums, statistic_names
from parley.learn.stack import Data
from parley.learn.task import Task


@dataclass(frozen=True)
class BinnedTrees(BoostedTrees):
    """Trees that split between bins."""

    bins: int = 64
    """Bins of a column, at most 255; traffic grows with them."""
    ranges: tuple[tuple[float, float], ...] = ()
    """Public ranges of the columns, [low, high] for all or each: bins come from counts in them. Without, further
    exchanges find where values lie."""
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
            parts["x"] = binning.Refinement(cells, columns, binning.filling(self.bins), coarse=False)
        else:
            parts["x"] = binning.Refinement(line, columns, binning.filling(self.bins), coarse=True)
        if kind == "squares":
            parts["y"] = binning.Refinement(line, task.info.outputs, binning.bounding, coarse=False)
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
        reads="sum",
        times=64,  # every refinement tells at least one bit more of a double
        feedback=False,
    )
    def counts(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """How many values of the open columns lie in each cell; with a unit, the sum of the targets too."""
        assert isinstance(data, ClientData)
        cells, columns = message.get("cells"), message.get("open")
        x, y = table_of(data), data.y.double().reshape(len(data), -1).numpy()
        found = {
            name: binning.counts((x if name == "x" else y)[:, columns[name].numpy()], own.numpy())
            for name, own in cells.items()
        }
        if "unit" in message.scalars:
            if objective(task) == "squares":
                found["targets"] = fixed(y - message.tensor("middle").numpy(), message.number("unit")).sum(axis=0)
            else:
                found["targets"] = np.bincount(data.y.numpy(), minlength=task.info.outputs)
            found["rows"] = np.array(len(data))
        return Reply(
            Message.of(counts={name: torch.from_numpy(own).to(self.number_type) for name, own in found.items()})
        )

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
