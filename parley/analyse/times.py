"""Survival times, and the cells of a grid that clients count them in."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from parley.algorithms.exchange import Question, ask
from parley.algorithms.protocol import Replies
from parley.algorithms.trees.binning import Counts, Floats
from parley.analyse.regression import column_names
from parley.core.errors import InputError, WireError, nearest
from parley.core.message import Message
from parley.core.text import shown
from parley.data import ClientData
from parley.training.task import Task

_MOST_CELLS = 20_000
ALL_EVENTS = "All rows count as events; where some were only last seen, name the column that says so (event)."
Times = Literal["stratified", "grid", "raw"]


def cells_of(times: Floats, grid: Floats) -> Counts:
    """The cell of each time: a row is at risk in it and in all before; -1 before the grid begins."""
    return np.asarray(np.searchsorted(grid, times, side="right") - 1, np.int64)


def event_times_of(times: Floats, event: Floats) -> Tensor:
    """When events happened, each time once."""
    return torch.from_numpy(np.unique(times[event > 0]))


def gathered(event_times: object, ids: Sequence[str]) -> Generator[Question, Replies, Floats]:
    """All clients' event times, each once."""
    replies = yield ask(event_times, dict.fromkeys(ids, Message()))  # type: ignore[arg-type]
    grid = np.unique(np.concatenate([np.zeros(0), *(reply.tensor("times").numpy() for reply in replies.values())]))
    if len(grid) > _MOST_CELLS:
        raise InputError(f"there are {len(grid):,} different event times, more than {_MOST_CELLS:,}; take a grid.")
    return grid


def survival(task: Task, data: ClientData, event: str, since: float) -> tuple[Floats, Floats, int]:
    """Times, whether each is of an event, and how many rows have no such thing or lie before a grid begins."""
    y = data.y.double().reshape(len(data)).numpy()
    if not event:  # minus 0 is the time of a row that was never seen again
        return np.abs(y), (y > 0).astype(np.float64), int((((y == 0) & ~np.signbit(y)) | (np.abs(y) < since)).sum())
    name, named, value = event.partition("=")
    flag = data.x[:, column_names(task).index(name)].double().numpy()
    if named:
        which_value = places_among(task, data, name, (value,))
        flag = np.where(np.isnan(which_value), np.nan, which_value == 0)
    return y, flag, int(((y < max(0.0, since)) | ~np.isin(flag, (0.0, 1.0))).sum())


def places_among(task: Task, data: ClientData, name: str, values: Sequence[str]) -> Floats:
    """[n] the place of each cell of a column among these values, -1 where it is none of them and NaN where it is
    missing; texts go by their names, as their numbers may differ from node to node."""
    cells = data.x[:, column_names(task).index(name)].double().numpy()
    if name in task.info.categories:
        levels = task.info.levels[task.info.categories.index(name)]
        codes = {value: float(code) for code, value in enumerate(values)}
        of_code = np.array([*(codes.get(level, -1.0) for level in levels), -1.0, np.nan])
        return np.asarray(of_code[np.where(np.isnan(cells), len(levels) + 1, cells).astype(np.int64)], np.float64)
    same = cells[:, None] == np.array([float(value) for value in values])
    return np.where(np.isnan(cells), np.nan, np.where(same.any(axis=1), same.argmax(axis=1), -1.0))


def check_values(task: Task, name: str, values: Sequence[str], what: str) -> None:
    """Refuse values that a column cannot have, and columns that there are not."""
    known, info = column_names(task), task.info
    if name not in known:
        raise InputError(f"there is no column '{shown(name)}': {nearest(name, known)}")
    if name in info.categories:
        levels = info.levels[info.categories.index(name)] if info.levels else ()
        if not values:
            raise InputError(f"column '{shown(name)}' holds texts; say which {what}.")
        if (odd := next((value for value in values if levels and value not in levels), None)) is not None:
            raise InputError(f"column '{shown(name)}' has no text '{shown(odd)}': {nearest(odd, levels)}")
        return
    for value in values:
        try:
            float(value)
        except ValueError:
            raise InputError(f"column '{shown(name)}' holds numbers, and '{shown(value)}' is none.") from None


def check_event(task: Task, event: str) -> None:
    """Refuse an event column that does not say what an event is."""
    name, named, value = event.partition("=")
    check_values(task, name, (value,) * bool(named), f"of them is the event, such as {shown(name)}=dead")


def no_times(wrong: int, event: str, since: float) -> str:
    """Why times cannot be used."""
    before = f", nor lie before {since:g}, where the grid begins" if since > 0 else ""
    if not event:
        return f"times must not be 0{before}, but those of {wrong:,} rows do; those of censored rows are negative."
    flag = "" if "=" in event else f", and '{event}' must be 0 or 1 (or name the value of an event: {event}=...)"
    return f"times must not be negative{before}{flag}, but {wrong:,} rows have others."


def check_times(task: Task) -> None:
    if task.info.kind != "regression" or task.info.outputs != 1:
        raise InputError("survival times must be one number a row, but the target has classes or several numbers.")


def check_grid(grid: Sequence[float], needed: bool) -> None:
    """Refuse grids that do not rise, are too long, or are not asked for."""
    if bool(grid) != needed:
        raise InputError("a grid must say where its cells begin." if needed else "a grid is for times = 'grid' alone.")
    if not all(np.isfinite(grid)) or any(np.diff(grid) <= 0) or len(grid) > _MOST_CELLS:
        raise InputError(f"the cells of a grid must begin at rising numbers, {_MOST_CELLS:,} at most.")


def accepted_grid(message: Message, agreed: Sequence[float] | None) -> int:
    """How many cells a message's grid has, which rises and is the one that was agreed."""
    grid = message.tensors.get("grid")
    cells = 0 if grid is None or grid.ndim != 1 else len(grid)
    if grid is not None and (cells > _MOST_CELLS or not bool((grid.diff() > 0).all())):
        raise WireError("the grid does not rise.")
    if agreed is not None and (grid is None or grid.tolist() != list(agreed)):
        raise WireError("the grid is not the one that was agreed.")
    return cells
