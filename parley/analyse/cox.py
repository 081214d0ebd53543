"""Cox's proportional hazards (Cox, 1972), ties after Efron (1977) or Breslow (1974), in three modes.

    R_j  the rows at risk at the j-th event time,  D_j  those with an event then,  d_j = |D_j|
    log L = sum_j [ sum_{i in D_j} eta_i - sum_{l < d_j} log(S0_j - l/d_j E0_j) ]
    S0_j, S1_j  sums of e^eta and e^eta x over R_j;  E0_j, E1_j over D_j  (Breslow: E = 0)

    stratified   each client has its own baseline hazard: log L is a sum over clients, and times stay at home
    grid         one baseline; times count by the cells of an agreed grid, of which clients tell sums (`risk`)
    raw          one baseline; clients tell when events happened (`times`), and these are the grid

The information is sum_j sum_l [S2 / S0 - S1 S1' / S0^2] with S = S_j - l/d_j E_j. Its first part is a sum over rows
with weights that the server knows once it has all S0 and E0 (`curvature`), so no cell's second moments travel.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch

from parley.algorithms.exchange import Exchange, Question, Reply, ask
from parley.algorithms.protocol import Contexts, Learned, Replies, algorithm
from parley.algorithms.trees.binning import Floats, merged
from parley.analyse.digits import decoded, digits_form, encoded
from parley.analyse.glm import LinearPredictor
from parley.analyse.newton import MOST_POINTS, NoFit, Point
from parley.analyse.regression import Asked, Regression, Rows, Scale, accepted, withheld
from parley.analyse.times import (
    Times,
    accepted_grid,
    cells_of,
    check_event,
    check_grid,
    check_times,
    event_times_of,
    gathered,
    no_times,
    survival,
)
from parley.core.errors import InputError, WireError
from parley.core.form import Form
from parley.core.message import Memory, Message
from parley.data import ClientData
from parley.statistics.floors import disclosed, floored
from parley.training.stack import Data
from parley.training.task import Task

_LARGEST = 30.0


@algorithm("cox")
@dataclass(frozen=True)
class Cox(Regression):
    """Cox regression of survival times, equal to that of pooled rows; `parley analyse` shows it.

    The target is the time until the event or until a row was last seen. As a model it predicts the log-hazard.
    """

    intercept: ClassVar[bool] = False

    event: str = ""
    """The column that is 1 where the target is the time of an event and 0 where a row was last seen, or a column and
    the value that means an event, such as outcome=dead; by default targets below 0 are minus the time a row was last
    seen."""
    times: Times = "stratified"
    """stratified: a baseline per client, no time is sent. grid: one baseline, from sums in the cells of `grid`.
    raw: one baseline; CLIENTS SEND THEIR EVENT TIMES."""
    grid: tuple[float, ...] = ()
    """Where the grid's cells begin, rising; the last has no end."""
    ties: Literal["efron", "breslow"] = "efron"
    """How events at the same time count."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "grid", tuple(map(float, self.grid)))
        check_grid(self.grid, self.times == "grid")

    @property
    def model(self) -> str:
        return "cox"

    def exchanges(self) -> tuple[Exchange, ...]:
        unasked = {
            "stratified": ("risk", "curvature", "event_times"),
            "grid": ("derivatives", "event_times"),
            "raw": ("derivatives",),
        }[self.times]
        return tuple(each for each in super().exchanges() if each.name not in unasked)

    def check(self, task: Task) -> None:
        check_times(task)
        if self.event:
            check_event(task, self.event)

    def reserved(self) -> tuple[str, ...]:
        return (self.event.partition("=")[0],) if self.event else ()

    def reads_numbers(self, column: str) -> bool:
        return super().reads_numbers(column) or column == self.event

    @property
    def _since(self) -> float:
        return self.grid[0] if self.grid else 0.0

    def outcomes(self, task: Task, data: ClientData) -> tuple[Floats, Floats, int]:
        return survival(task, data, self.event, self._since)

    def refusal(self, wrong: int) -> str:
        return no_times(wrong, self.event, self._since)

    def check_events(self, events: int, rows: int) -> None:
        if not events:
            raise NoFit(4, f"there are no events among {rows:,} rows, so there is nothing to explain.")

    def check_rows(self, rows: Rows) -> None:
        events = int((rows.event > 0).sum())
        for count, what in ((events, "with"), (len(rows.y) - events, "without")):
            if self.times == "grid" and 0 < count < self.floor:
                raise InputError(f"has fewer than {self.floor} rows {what} events, the floor for a grid cell.")

    # --- a baseline of each client's own ---

    def likelihood(self, rows: Rows, beta: Floats) -> Point:
        """Of a client's rows by themselves."""
        grid = np.unique(rows.y[rows.event > 0])
        if not len(grid):
            return Point(float(len(rows.y)), 0.0, np.zeros(len(beta)), np.zeros((len(beta), len(beta))))
        sums = risk_sums(rows, beta, grid)
        value, score, outer, whole, part = joined(sums, self.ties)
        return Point(float(len(rows.y)), value, score, curvature_sum(rows, beta, grid, whole, part) - outer)

    def judged(self, rows: Rows, beta: Floats) -> float:
        """Harrell's concordance; NaN where no two rows can be compared."""
        eta, right, pairs = rows.x @ beta, 0.0, 0
        for i in np.flatnonzero(rows.event > 0):
            later = (rows.y > rows.y[i]) | ((rows.y == rows.y[i]) & (rows.event == 0))
            right += float((eta[later] < eta[i]).sum() + 0.5 * (eta[later] == eta[i]).sum())
            pairs += int(later.sum())
        return right / pairs if pairs else float("nan")

    # --- one baseline ---

    def prepared(self, task: Task, ids: Sequence[str]) -> Generator[Question, Replies, Floats]:
        """The grid: as it was agreed, or all clients' event times."""
        if self.times != "raw":
            return np.array(self.grid)
        return (yield from gathered(self.event_times, ids))

    def evaluated(self, task: Task, ids: Sequence[str], scale: Scale, beta: Floats, grid: Floats) -> Asked:
        if self.times == "stratified":
            return (yield from super().evaluated(task, ids, scale, beta, grid))
        message, cells = self._message(scale, beta), torch.from_numpy(grid)
        replies = yield ask(self.risk, dict.fromkeys(ids, message.replace(grid=cells)))
        sums = decoded(replies.sum("risk"))
        if sums["withheld"] > 0:
            raise withheld(self.coefficients(task), beta, int(sums["withheld"]))
        value, score, outer, whole, part = joined(sums, self.ties)
        weights = {"whole": torch.from_numpy(whole), "part": torch.from_numpy(part)}
        replies = yield ask(self.curvature, dict.fromkeys(ids, message.replace(grid=cells, weights=weights)))
        second = decoded(replies.sum("curvature"))
        if second["withheld"] > 0:
            raise withheld(self.coefficients(task), beta, int(second["withheld"]))
        return Point(float(sums["rows"]), value, score, second["sum"] - outer)

    def _accepted(self, task: Task, message: Message, weights: bool = False) -> Form:
        cells = accepted_grid(message, self.grid if self.times == "grid" else None)
        form = accepted(self, task, message) | Form.of(grid=(torch.float64, (cells,)))
        sums = message.get("weights")
        if weights and not all(bool((value >= 0).all()) for value in sums.values()):
            raise WireError("the weights of the cells are below 0.")
        if weights:
            form |= Form.of(weights={"whole": (torch.float64, (cells,)), "part": (torch.float64, (cells,))})
        return Form(form)

    def _risk_form(self, task: Task, message: Message) -> Form:
        cells, size = len(message.tensor("grid")), len(self.names(task))
        shapes: dict[str, tuple[int, ...]] = {"rows": (), "eta": (), "x": (size,), "withheld": ()}
        shapes |= dict.fromkeys(("d", "s0", "e0"), (cells,)) | dict.fromkeys(("s1", "e1"), (cells, size))
        return Form.of(risk=digits_form(**shapes))

    @floored(
        form=lambda self, task, message: Form.of(times=(torch.float64, (None,))),
        accepts=lambda self, task, message: Form(),
        discloses=("labels",),
    )
    def event_times(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """When events happened, each time once."""
        rows, _, _ = self.rows(task, data)
        kept = len(rows.y) >= self.floor
        return Reply(Message.of(times=event_times_of(rows.y, rows.event * kept)))

    @floored(
        form=lambda self, task, message: self._risk_form(task, message),
        accepts=_accepted,
        reads="sum",
        times=MOST_POINTS,
        grid=("grid",),
        discloses=lambda self: ("inputs", "labels") if self.times == "raw" else disclosed(self.floor),
        rare=lambda self: self.rare,
    )
    def risk(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """Of every cell: events, and the sums of e^eta and e^eta x over the rows at risk and those with events."""
        (rows, beta), grid = self._usable_rows(task, message, data), message.tensor("grid").numpy()
        rows, few = self._in_cells(rows, grid), self.too_few(_hazard(rows, beta))
        sums = risk_sums(Rows(rows.x[:0], rows.y[:0], rows.event[:0]) if few else rows, beta, grid)
        return Reply(Message.of(risk=encoded(sums | {"withheld": np.array(float(few))})))

    @floored(
        form=lambda self, task, message: Form.of(curvature=digits_form(sum=(len(self.names(task)),) * 2, withheld=())),
        accepts=lambda self, task, message: self._accepted(task, message, weights=True),
        reads="sum",
        grid=("grid",),
        times=MOST_POINTS,
    )
    def curvature(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """The weighted sum of e^eta x x' over its rows."""
        (rows, beta), grid = self._usable_rows(task, message, data), message.tensor("grid").numpy()
        rows, weights = self._in_cells(rows, grid), message["weights"]
        whole, part = weights["whole"].numpy(), weights["part"].numpy()
        few = self.too_few(cell_weights(rows, grid, whole, part) * _hazard(rows, beta))
        total = np.zeros((len(beta), len(beta))) if few else curvature_sum(rows, beta, grid, whole, part)
        return Reply(Message.of(curvature=encoded({"sum": total, "withheld": float(few)})))

    def row_weights(self, rows: Rows, beta: Floats) -> Floats:
        return _hazard(rows, beta)

    def _in_cells(self, rows: Rows, grid: Floats) -> Rows:
        """Its rows where each cell of the grid has `floor` of those with events and of those without, or none: rarer
        ones join the next cells'. Raw times are told as they are."""
        if self.times != "grid" or not len(rows.y):
            return rows
        cell, y = cells_of(rows.y, grid), rows.y.copy()
        self.check_rows(rows)
        for group in (rows.event > 0, ~(rows.event > 0)):
            moved = merged((cell[group] + 1)[:, None], len(grid), self.floor)[:, 0] - 1
            y[group] = np.where(moved == cell[group], y[group], np.where(moved < 0, -np.inf, grid[moved]))
        return Rows(rows.x, y, rows.event)

    def learned(self, task: Task) -> Learned:
        return LinearPredictor(
            task,
            read=lambda state, since: Message.of(fit={"beta": state["fit"]["beta"]}),
            design=lambda x: self.design(task, x),
            family="gaussian",
            intercept=False,
        )


def risk_sums(rows: Rows, beta: Floats, grid: Floats) -> dict[str, Floats]:
    """What log L and its derivative need of some rows, cell by cell."""
    cell, event, hazard = cells_of(rows.y, grid), rows.event > 0, _hazard(rows, beta)
    inside = cell >= 0
    event = event & inside
    sums = {"rows": np.array(float(len(rows.y))), "eta": np.log(hazard[event]).sum(), "x": rows.x[event].sum(axis=0)}
    sums["d"] = np.bincount(cell[event], minlength=len(grid)).astype(np.float64)
    for name, chosen, at_risk in (("s", inside, True), ("e", event, False)):
        flat, by_cell = hazard[chosen], np.zeros((len(grid), 1 + len(beta)))
        np.add.at(by_cell, cell[chosen], np.concatenate([flat[:, None], flat[:, None] * rows.x[chosen]], axis=1))
        by_cell = by_cell[::-1].cumsum(axis=0)[::-1] if at_risk else by_cell
        sums |= {f"{name}0": by_cell[:, 0].copy(), f"{name}1": by_cell[:, 1:].copy()}
    return sums


def joined(sums: dict[str, Floats], ties: str) -> tuple[float, Floats, Floats, Floats, Floats]:
    """log L, its score, sum of S1 S1' / S0^2, and the weights of e^eta x x' of rows at risk and with events."""
    value, score, size = float(sums["eta"]), sums["x"].copy(), len(sums["x"])
    outer, whole, part = np.zeros((size, size)), np.zeros(len(sums["d"])), np.zeros(len(sums["d"]))
    for j in np.flatnonzero(sums["d"]):
        d = int(sums["d"][j])
        share = np.arange(d) / d if ties == "efron" else np.zeros(d)
        s0 = sums["s0"][j] - share * sums["e0"][j]
        mean = (sums["s1"][j] - share[:, None] * sums["e1"][j]) / s0[:, None]
        value, score = value - float(np.log(s0).sum()), score - mean.sum(axis=0)
        outer, whole[j], part[j] = outer + mean.T @ mean, (1 / s0).sum(), (share / s0).sum()
    return value, score, outer, whole, part


def curvature_sum(rows: Rows, beta: Floats, grid: Floats, whole: Floats, part: Floats) -> Floats:
    """Sum over rows of e^eta x x' times the weights of all cells that a row is at risk in, less that of its event."""
    weight = cell_weights(rows, grid, whole, part)
    total: Floats = rows.x.T @ ((weight * _hazard(rows, beta))[:, None] * rows.x)
    return total


def cell_weights(rows: Rows, grid: Floats, whole: Floats, part: Floats) -> Floats:
    """The weights of all cells that each row is at risk in, less that of its event."""
    cell, through = cells_of(rows.y, grid), np.concatenate([[0.0], np.cumsum(whole)])
    if not len(grid):
        return np.zeros(len(rows.y))
    return np.asarray(through[cell + 1] - np.where((rows.event > 0) & (cell >= 0), part[cell], 0.0), np.float64)


def _hazard(rows: Rows, beta: Floats) -> Floats:
    return np.exp(np.clip(rows.x @ beta, -_LARGEST, _LARGEST))
