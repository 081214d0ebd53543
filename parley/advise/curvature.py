"""What Charles and Konečný's trade-off needs to know of a real federation: L, mu, C and the distance of the start.

    curvature = estimate(task, federation, ridge=1e-3)
    best_setting(L=curvature.L, mu=curvature.mu, C=curvature.C, start_distance=curvature.distance, rounds=50)

Linear models with a squared loss are quadratics: everything is exact. For any other model the Hessians at the given
weights are seen through Lanczos, and minimisers are where L-BFGS gets from there; then the advice is for the quadratic
that the loss resembles around these weights, and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from parley.advise.lanczos import Extremes, extremes
from parley.advise.linear import LinearProblem, least_squares
from parley.advise.objective import Objective, torch_on_one_thread
from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.tree import Tree, flat
from parley.data import ClientData, Federation
from parley.theory.rounds import Rounds
from parley.theory.surrogate import Quadratics
from parley.training.task import Task

Array = npt.NDArray[np.float64]

LARGEST = 128
"""Above so many parameters the clients' d x d Hessians are not handed on as `Quadratics`."""
_BALL_STEPS = 2000


@dataclass(frozen=True, eq=False)
class Curvature:
    """The constants of Assumptions 1 and 2, and where they come from."""

    L: float
    """The largest Hessian eigenvalue of any client looked at."""
    mu: float
    """The smallest one, or what the caller said it is."""
    C: float
    """The radius of a ball around the clients' own minimisers."""
    distance: float
    """||x_0 - x*||, x* being the minimiser of the weighted mean of the clients' losses."""
    exact: bool
    """Whether the loss is quadratic, so that none of these depends on where one looks."""
    ids: tuple[str, ...]
    """The clients looked at."""
    spectra: Array
    """Smallest and largest Hessian eigenvalue per client, [m, 2], the ridge included."""
    pooled: tuple[float, float]
    """Smallest and largest Hessian eigenvalue of the mean loss, the ridge included."""
    notes: tuple[str, ...]
    """What a user must know before he believes the numbers."""
    quadratics: Quadratics | None = None
    """The clients themselves where the loss is quadratic, mu positive and the model small; else None."""
    start: Array | None = None
    """x_0 in the coordinates of `quadratics`."""

    @property
    def kappa0(self) -> float:
        return self.L / self.mu


def estimate(
    task: Task,
    federation: Federation,
    *,
    parameters: Tree | None = None,
    ridge: float = 0.0,
    mu: float | None = None,
    weights: Literal["size", "uniform"] = "size",
    clients: int | None = None,
    samples: int | None = None,
    steps: int = 200,
    tolerance: float = 1e-8,
    iterations: int = 500,
    key: Key | None = None,
) -> Curvature:
    """Estimate the constants at `parameters` (default: the task's initial weights).

    `ridge` adds ridge/2 ||x||^2 to every client's loss (weight decay in training). Where a Hessian's smallest
    eigenvalue is not positive, `ridge` must lift it or `mu` must say below which curvature directions do not matter.
    `weights` are those of the server's average. `clients` and `samples` limit the clients looked at and the samples of
    each, drawn from `key`; `steps` and `tolerance` are Lanczos', `iterations` L-BFGS's.
    """
    _check(ridge, mu, clients, samples)
    key = key or Key(0)
    ids, data = _draw(federation, clients, samples, key)
    shares = np.array([len(client) for client in data], dtype=np.float64) if weights == "size" else np.ones(len(data))
    shares /= shares.sum()
    x0 = flat(parameters if parameters is not None else task.initial())
    problem = least_squares(task, data, shares, ridge)
    if problem is not None:
        return _exact(problem, ids, x0, mu)
    with torch_on_one_thread():
        return _measured(task, data, ids, shares, x0, ridge, mu, key, steps, tolerance, iterations)


def of_quadratics(clients: Quadratics, start: npt.ArrayLike) -> Curvature:
    """The constants of clients whose losses are known quadratics, as seen from x_0 = `start` [d]."""
    x0 = np.asarray(start, dtype=np.float64)
    pooled = np.linalg.eigvalsh(clients.mean_hessian)
    return Curvature(
        L=clients.L,
        mu=clients.mu,
        C=ball(clients.c),
        distance=Rounds(clients, x0).start_distance,
        exact=True,
        ids=tuple(str(number) for number in range(len(clients.c))),
        spectra=clients.eigenvalues[:, [0, -1]],
        pooled=(float(pooled[0]), float(pooled[-1])),
        notes=(),
        quadratics=clients,
        start=x0,
    )


def ball(points: Array) -> float:
    """The radius of a ball around the points [m, d], at most 0.1% larger than the smallest one.

    Badoiu and Clarkson (2003): walk towards the farthest point with steps 1/2, 1/3, ...; only inner products are used.
    """
    centred = points - points.mean(axis=0)
    gram = centred @ centred.T
    share = np.full(len(points), 1 / len(points))
    least = np.inf
    for count in range(1, _BALL_STEPS + 1):
        squares = np.diag(gram) - 2 * gram @ share + share @ gram @ share
        farthest = int(np.argmax(squares))
        least = min(least, float(max(squares[farthest], 0.0)))
        share *= count / (count + 1)
        share[farthest] += 1 / (count + 1)
    return float(np.sqrt(least))


def _exact(problem: LinearProblem, ids: Sequence[str], x0: Array, mu: float | None) -> Curvature:
    spectra = problem.spectra()
    worst = int(np.argmin(spectra[:-1, 0]))
    notes: list[str] = []
    floor = problem.width * np.finfo(np.float64).eps * float(spectra[worst, 1])
    lowest = _positive(float(spectra[worst, 0]), floor, mu, ids[worst], True, notes)
    start = problem.coordinates(x0)
    optima, best = problem.minimisers(start)
    small = problem.dimension <= LARGEST and float(spectra[:, 0].min()) > floor
    return Curvature(
        L=float(spectra[:-1, 1].max()),
        mu=lowest,
        C=ball(optima),
        distance=float(np.linalg.norm(start - best)),
        exact=True,
        ids=tuple(ids),
        spectra=spectra[:-1],
        pooled=(float(spectra[-1, 0]), float(spectra[-1, 1])),
        notes=tuple(notes),
        quadratics=problem.quadratics(optima) if small else None,
        start=start if small else None,
    )


def _measured(
    task: Task,
    data: Sequence[ClientData],
    ids: Sequence[str],
    shares: Array,
    x0: Array,
    ridge: float,
    mu: float | None,
    key: Key,
    steps: int,
    tolerance: float,
    iterations: int,
) -> Curvature:
    objectives = [Objective(task, objective, ridge) for objective in data]
    objectives.append(_mean_objective(task, data, shares, ridge))
    looked = [_look(objective, x0, key.fold("lanczos", i), steps, tolerance) for i, objective in enumerate(objectives)]
    spectra = np.array([[extreme.lowest, extreme.highest] for extreme in looked])
    worst = int(np.argmin(spectra[:-1, 0]))
    scale = max(extreme.scale for extreme in looked)
    error = max(max(extreme.lowest_error, extreme.highest_error) for extreme in looked) / scale
    notes = [
        "the model is not linear with a squared loss: Hessians were measured at the given weights and hold there, "
        f"eigenvalues to {error:.0e} of L."
    ]
    lowest = _positive(looked[worst].lowest, looked[worst].floor, mu, ids[worst], False, notes)
    reached = [objective.minimiser(x0, iterations) for objective in objectives]
    slope = max(norm for _, norm in reached)
    if slope > 1e-4 * scale:
        notes.append(
            f"local training stopped at gradients of up to {slope:.1e}: C and the distance are those of the points "
            f"reached after {iterations} steps of L-BFGS, not of minimisers."
        )
    *optima, best = [x for x, _ in reached]
    return Curvature(
        L=float(spectra[:-1, 1].max()),
        mu=lowest,
        C=ball(np.stack(optima)),
        distance=float(np.linalg.norm(x0 - best)),
        exact=False,
        ids=tuple(ids),
        spectra=spectra[:-1],
        pooled=(float(spectra[-1, 0]), float(spectra[-1, 1])),
        notes=tuple(notes),
    )


def _look(objective: Objective, x0: Array, key: Key, steps: int, tolerance: float) -> Extremes:
    return extremes(lambda v: objective.product(x0, v), len(x0), key.numpy(), steps=steps, tolerance=tolerance)


def _mean_objective(task: Task, data: Sequence[ClientData], shares: Array, ridge: float) -> Objective:
    """sum_i p_i f_i as the mean over one pool of samples, each with its client's weight."""
    pool = ClientData(torch.cat([client.x for client in data]), torch.cat([client.y for client in data]))
    sizes = np.array([len(client) for client in data])
    return Objective(task, pool, ridge, weights=np.repeat(shares / sizes, sizes))


def _positive(lowest: float, floor: float, mu: float | None, client: str, exact: bool, notes: list[str]) -> float:
    """The mu to go on with; a note or an error where the smallest eigenvalue is not positive."""
    if mu is not None:
        if lowest < mu:
            flat_ = "flatter directions are taken not to matter" if exact or lowest > -floor else "it is not convex"
            notes.append(f"mu = {mu:g} was given; client '{client}' has curvature down to {lowest:.3g}: {flat_}.")
        return mu
    if lowest > floor:
        return lowest
    where = "" if exact else " at the given weights"
    what = "has flat directions" if lowest > -floor else "curves downwards (it is not convex)"
    least = "" if lowest > -floor else f" above {-lowest:.3g}"
    raise InputError(
        f"the loss of client '{client}' {what}{where}, smallest Hessian eigenvalue {lowest:.3g}, but the theory needs "
        f"mu > 0: add a ridge{least} (weight decay), or give the curvature mu below which directions do not matter."
    )


def _draw(
    federation: Federation, clients: int | None, samples: int | None, key: Key
) -> tuple[list[str], list[ClientData]]:
    ids = list(federation.ids)
    if clients is not None and clients < len(ids):
        chosen = key.fold("clients").numpy().choice(len(ids), clients, replace=False)
        ids = [ids[i] for i in sorted(chosen.tolist())]
    data = [federation.client(id) for id in ids]
    if samples is not None:
        for index, client_data in enumerate(data):
            if len(client_data) > samples:
                rows = key.fold("samples", ids[index]).numpy().choice(len(client_data), samples, replace=False)
                taken = torch.from_numpy(np.sort(rows))
                data[index] = ClientData(client_data.x[taken], client_data.y[taken])
    return ids, data


def _check(ridge: float, mu: float | None, clients: int | None, samples: int | None) -> None:
    if not (np.isfinite(ridge) and ridge >= 0):
        raise InputError(f"ridge must be finite and at least 0, not {ridge:g}.")
    if mu is not None and not (np.isfinite(mu) and mu > 0):
        raise InputError(f"mu must be finite and positive, not {mu:g}.")
    for name, value in (("clients", clients), ("samples", samples)):
        if value is not None and value < 1:
            raise InputError(f"the number of {name} to look at must be at least 1, not {value}.")
