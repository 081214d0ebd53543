"""Survival curves (Kaplan and Meier, 1958) and the log-rank test (Mantel, 1966) from clients' counts.

    n_k  rows at risk when cell k begins,  d_k  events in it,  c_k  rows last seen in it
    S_k = prod_{j <= k} (1 - d_j / n_j)                       survival at the end of cell k
    var log S_k = sum_{j <= k} d_j / (n_j (n_j - d_j))        (Greenwood, 1926)

    grid   the cells of an agreed grid: equal to the curve of times rounded to the ends of cells
    raw    clients tell when events happened (`event_times`), and these are the cells: the curve of pooled rows

Rows last seen inside a cell count as at risk until its end. Had they left when it began, its factor were
1 - d / (n - c): the curve of unrounded times lies between the two products, and they are one without such rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from parley.algorithms.exchange import Exchange, Reply, ask
from parley.algorithms.protocol import Algorithm, Cohort, Contexts, Learned, Needs, Questions, algorithm
from parley.algorithms.trees.binning import Counts, Floats
from parley.analyse.regression import Levels
from parley.analyse.times import (
    accepted_grid,
    cells_of,
    check_event,
    check_grid,
    check_times,
    check_values,
    event_times_of,
    gathered,
    no_times,
    places_among,
    survival,
)
from parley.core.errors import InputError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.text import shown
from parley.data import ClientData
from parley.data.columns import level_of
from parley.statistics.floors import floored
from parley.statistics.method import Prior
from parley.training.stack import Data
from parley.training.task import Task

_SCALARS = ("clients", "missing", "wrong", "other")


@algorithm("kaplan-meier")
@dataclass(frozen=True)
class KaplanMeier(Algorithm):
    """Survival curves and the log-rank test, equal to those of pooled rows; `parley analyse` shows them.

    The target is the time until the event or until a row was last seen. As a model it predicts the mean time up to the
    last cell, whatever the inputs.
    """

    leave_one_out: ClassVar[bool] = False

    event: str = ""
    """The column that is 1 where the target is the time of an event and 0 where a row was last seen, or a column and
    the value that means an event, such as outcome=dead; by default targets below 0 are minus the time a row was last
    seen."""
    by: str = ""
    """Column of the groups, each with its own curve."""
    groups: tuple[str | float, ...] = ()
    """The values of `by`, numbers or texts; by default 0 and 1. Of texts, `parley analyse` asks the clients."""
    times: Literal["grid", "raw"] = "grid"
    """grid: clients send the number of events in each cell of `grid`. raw: CLIENTS SEND THEIR EVENT TIMES."""
    grid: tuple[float, ...] = ()
    """Where the grid's cells begin, rising; the last has no end. By default there is one."""
    floor: int = 10
    """Fewest complete rows of a client, and of a group at it, behind anything it sends."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(map(level_of, self.groups)))
        object.__setattr__(self, "grid", tuple(map(float, self.grid)))
        if self.times == "grid" and not self.grid:
            object.__setattr__(self, "grid", (0.0,))
        check_grid(self.grid, self.times == "grid")
        if not 1 <= self.floor <= 2**31:
            raise InputError(f"floor must lie between 1 and {2**31}, not {self.floor}.")
        if self.groups and not 2 <= len(set(self.groups) - {""}) == len(self.groups) <= 20:
            raise InputError("groups must be 2 to 20 different values.")

    @property
    def needs(self) -> Needs:
        return Needs(network=False, missing=True, texts=True, cpu=True)

    @property
    def model(self) -> str:
        """What `parley analyse` calls it."""
        return "kaplan-meier"

    def reads_numbers(self, column: str) -> bool:
        """Whether the numbers of a column that is not the outcome are needed."""
        return column == self.event

    def with_levels(
        self, named: Mapping[str, tuple[str, ...]], ask: Callable[[], Levels], outcome: str | None = None
    ) -> Self:
        """Itself with the groups of a column of texts: those that the study declares (`named`, empty where it does
        not), or those that enough samples of some client have (`ask`)."""
        if self.groups or self.by not in named:
            return self
        groups = named[self.by] or tuple(sorted(ask()[self.by]))
        if len(groups) < 2:
            raise InputError(
                f"column '{self.by}' has no two levels that {self.floor} samples of a client have (floor)."
            )
        return replace(self, groups=groups)

    def exchanges(self) -> tuple[Exchange, ...]:
        return tuple(each for each in super().exchanges() if self.times == "raw" or each.name != "event_times")

    # --- the server ---

    def init(self, task: Task, key: Key) -> State:
        if len(task.info.shape) != 1 or task.info.kind == "text":
            raise InputError(f"'{task.info.name}' is not a table, which survival curves need.")
        check_times(task)
        if self.event:
            check_event(task, self.event)
        if self.by:
            check_values(task, self.by, tuple(map(str, self.groups)), "are the groups (groups)")
        return State.of(prior={"outputs": torch.zeros(1, dtype=torch.float64)})

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Questions:
        grid = np.array(self.grid)
        if self.times == "raw":
            grid = yield from gathered(self.event_times, cohort.ids)
        replies = yield ask(self.counts, dict.fromkeys(cohort.ids, Message.of(grid=torch.from_numpy(grid))))
        sums = replies.sum("counts")
        rows = int(sums["rows"].sum())
        if not rows and not int(sums["other"]):
            raise InputError(f"no client has {self.floor} complete rows, the fewest that may be reported (floor).")
        if int(sums["wrong"]):
            raise InputError(no_times(int(sums["wrong"]), self.event, self._since))
        if int(sums["other"]):
            raise InputError(
                f"column '{shown(self.by)}' of {int(sums['other']):,} rows is none of the groups "
                f"{', '.join(map(shown, self.names))}; name its values (groups)."
            )
        if not int(sums["events"].sum()):
            raise InputError(f"there are no events among {rows:,} rows, so there is no curve.")
        curves = {"grid": torch.from_numpy(grid)} | sums
        events, at_risk = at_risk_of(*(sums[name].sum(0).numpy() for name in ("events", "censored")))
        area = restricted_mean(product_limit(events, at_risk), grid, self.times == "raw")
        return state.replace(curves=curves, prior={"outputs": torch.tensor([area])}), {"rows": float(rows)}

    def learned(self, task: Task) -> Learned:
        return Prior(task, read=lambda state, since: Message.of(prior=state["prior"]))

    # --- the client ---

    @property
    def names(self) -> tuple[str, ...]:
        """The groups' names; without groups there is one."""
        return (tuple(map(str, self.groups)) or ("0", "1")) if self.by else ("all",)

    @property
    def _since(self) -> float:
        return self.grid[0] if self.grid else 0.0

    def _rows(self, task: Task, data: Data) -> tuple[Floats, Floats, Counts, dict[str, int]]:
        """Of rows that may be reported: times, events, groups; and how many others there are."""
        assert isinstance(data, ClientData)
        time, event, value, complete = self._read(task, data)
        kept = torch.from_numpy(complete)
        _, _, wrong = survival(task, ClientData(data.x[kept], data.y[kept]), self.event, self._since)
        same = value[complete, None] == np.arange(len(self.names))
        enough = (same.sum(axis=0) >= self.floor) & (complete.sum() >= self.floor)
        in_groups, group = (same & enough).any(axis=1), same.argmax(axis=1)
        other = int((~same.any(axis=1)).sum())
        counted = (1, int((~complete).sum()), wrong, other) if complete.sum() >= self.floor else (0, 0, 0, 0)
        return (
            time[complete][in_groups],
            event[complete][in_groups],
            group[in_groups],
            dict(zip(_SCALARS, counted, strict=True)),
        )

    def _read(self, task: Task, data: ClientData) -> tuple[Floats, Floats, Floats, Any]:
        """Times, events, places among the groups, and which rows have all of them."""
        time, event, _ = survival(task, data, self.event, self._since)
        value = places_among(task, data, self.by, self.names) if self.by else np.zeros(len(data))
        return time, event, value, np.isfinite(time) & np.isfinite(event) & np.isfinite(value)

    def complete(self, task: Task, data: ClientData) -> Tensor:
        """Which rows have all that it needs, in one of the groups."""
        _, _, value, complete = self._read(task, data)
        return torch.from_numpy(complete & np.isin(value, np.arange(len(self.names))))

    def rare(self, task: Task, data: ClientData) -> str:
        """Narrow cells tell when the events of single rows happened."""
        time, event, group, _ = self._rows(task, data)
        cells = np.stack([cells_of(time, np.array(self.grid)), event.astype(np.int64), group])
        fewest = np.unique(cells, axis=1, return_counts=True)[1].min(initial=self.floor)
        few = self.times == "grid" and fewest < self.floor
        return f"cells of the grid have fewer than {self.floor} rows" if few else ""

    def _counts_form(self, message: Message) -> Form:
        groups, cells = len(self.names), len(message.tensor("grid"))
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(_SCALARS, ())
        shapes |= dict.fromkeys(("rows", "tellers"), (groups,)) | dict.fromkeys(("events", "censored"), (groups, cells))
        return Form.of(counts={name: (torch.int64, shape) for name, shape in shapes.items()})

    def _accepted(self, task: Task, message: Message) -> Form:
        return Form.of(grid=(torch.float64, (accepted_grid(message, self.grid if self.times == "grid" else None),)))

    @floored(
        form=lambda self, task, message: Form.of(times=(torch.float64, (None,))),
        accepts=lambda self, task, message: Form(),
        discloses=("labels",),
    )
    def event_times(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """When events happened, each time once."""
        time, event, _, _ = self._rows(task, data)
        return Reply(Message.of(times=event_times_of(time, event)))

    @floored(
        form=lambda self, task, message: self._counts_form(message),
        accepts=_accepted,
        reads="sum",
        grid=("grid",),
        rows=lambda self: self.complete,
        rare=lambda self: self.rare,
    )
    def counts(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """Of every group and cell: events, and rows last seen in it."""
        grid, size = message.tensor("grid").numpy(), len(self.names)
        time, event, group, scalars = self._rows(task, data)
        cell, rows = cells_of(time, grid), np.bincount(group, minlength=size)
        counted = {"rows": rows, "tellers": (rows > 0).astype(np.int64)}
        for name, chosen in (("events", event == 1), ("censored", event == 0)):
            counted[name] = np.zeros((size, len(grid)), np.int64)
            inside = chosen & (cell >= 0)
            np.add.at(counted[name], (group[inside], cell[inside]), 1)
        sent = {name: torch.from_numpy(np.asarray(value, np.int64)) for name, value in counted.items()}
        return Reply(Message.of(counts=sent | {name: torch.tensor(value) for name, value in scalars.items()}))


def at_risk_of(events: Counts, censored: Counts) -> tuple[Counts, Counts]:
    """Events and rows at risk of every cell, from those that leave in it; the last axis is that of cells."""
    left = events + censored
    return events, left[..., ::-1].cumsum(axis=-1)[..., ::-1]


def product_limit(events: Counts, at_risk: Counts) -> Floats:
    """S_k; cells that nobody reaches keep what was before."""
    return np.asarray(np.cumprod(1 - events / np.maximum(at_risk, 1), axis=-1), np.float64)


def greenwood(events: Counts, at_risk: Counts) -> Floats:
    """The variance of log S_k; infinite from where nobody survives."""
    with np.errstate(divide="ignore", invalid="ignore"):  # 0 / 0 where nobody is left
        terms = np.where(events > 0, events / (np.maximum(at_risk, 1) * (at_risk - events).astype(np.float64)), 0.0)
    summed: Floats = np.cumsum(terms)
    return summed


def log_log_interval(survived: Floats, variance: Floats, quantile: float) -> tuple[Floats, Floats]:
    """S^exp(+-z sqrt(var log S) / log S), which stays between 0 and 1; no width where S is 0 or 1."""
    inside = (survived > 0) & (survived < 1)
    log = np.log(survived, out=np.full(len(survived), -1.0), where=inside)
    half = quantile * np.sqrt(np.where(inside, variance, 0.0)) / log
    low, high = (np.where(inside, np.exp(log * np.exp(sign * half)), survived) for sign in (-1, 1))
    return low, high


def log_rank(events: Counts, at_risk: Counts) -> tuple[float, int, float, Floats]:
    """Chi-squared, degrees of freedom, p, and the events expected in each group; counts are [groups, cells].

    With one hazard for all, events of a cell are drawn among its rows at risk without replacement.
    """
    d, n = events.sum(axis=0), at_risk.sum(axis=0)
    kept = d > 0
    d, n, share = d[kept], n[kept], at_risk[:, kept] / n[kept]
    expected: Floats = (share * d).sum(axis=1)
    weight = d * (n - d) / np.maximum(n - 1, 1)
    spread = np.diag((weight * share).sum(axis=1)) - (weight * share) @ share.T
    apart = events.sum(axis=1) - expected
    freedom = int(np.linalg.matrix_rank(spread, tol=1e-10 * max(float(np.trace(spread)), 1e-300), hermitian=True))
    value = float(apart @ np.linalg.pinv(spread, rcond=1e-10, hermitian=True) @ apart) if freedom else 0.0
    return value, freedom, float(chi2.sf(value, freedom)) if freedom else 1.0, expected


def restricted_mean(survived: Floats, grid: Sequence[float] | Floats, raw: bool) -> float:
    """The area below a curve from 0 to its last step, or to where the last cell begins."""
    steps = np.asarray(grid) if raw else np.asarray(grid)[1:]
    before = np.concatenate([[1.0], survived])[: len(steps)]
    return float((before * np.diff(steps, prepend=0.0)).sum())
