"""What is measured of a federation before anything is advised: sizes, heterogeneity, gradients, curvature, noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from parley.advise.heterogeneity import FederationHeterogeneity, heterogeneity
from parley.advise.objective import Objective
from parley.advise.plan.quadratic import LARGEST, Resemblance, resemblance, sketched
from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.tree import flat
from parley.data import ClientData, Federation
from parley.study.study import Study
from parley.theory.theta import Array
from parley.training.task import Task

CLIENTS, SAMPLES = 24, 64
"""Of a large model so many clients are looked at, and so many samples of each."""
_EVERYBODY = 400
"""Clients up to which a small model is measured on all of them."""
_COUNTED = 10_000
"""Clients up to which all are asked for their size; of more, those that are looked at stand for them."""
_LOCAL_ITERATIONS = 100


@dataclass(frozen=True, eq=False)
class Measured:
    """A federation in numbers."""

    clients: int
    looked: int
    """Clients whose losses were measured."""
    sizes: tuple[int, int, int]
    """The smallest, the median and the largest client, in samples."""
    parameters: int
    participants: int
    """Clients of a round."""
    batch: int | None
    quadratic: Resemblance | None
    """None where second derivatives are out of reach."""
    spread: FederationHeterogeneity | None
    gamma: float | None
    """F(x*) - sum_i p_i min f_i (Li et al., 2020): what clients would gain by going their own ways."""
    unknown: tuple[str, ...] = field(default=())

    @property
    def dissimilarity(self) -> tuple[float, float] | None:
        """(B, G) at the first weights: what B is needed with G = 0, what G with B = 1."""
        if self.quadratic is None:
            return None
        each, p = self.quadratic.start_gradients, self.quadratic.clients.p
        mean_square, square_mean = float(p @ (each**2).sum(1)), float(((p @ each) ** 2).sum())
        B = np.sqrt(mean_square / square_mean) if square_mean > 0 else np.inf
        return float(B), float(np.sqrt(max(mean_square - square_mean, 0.0)))

    @property
    def pull(self) -> float | None:
        """sqrt(sum_i p_i ||grad f_i(x*)||^2): how hard clients pull apart at the common optimum."""
        if self.quadratic is None:
            return None
        clients = self.quadratic.clients
        return float(np.sqrt(clients.p @ (clients.g**2).sum(1)))

    @property
    def noise(self) -> float | None:
        """The standard deviation of a local step's gradient, in all directions together."""
        if self.quadratic is None:
            return None
        clients = self.quadratic.clients
        if clients.noise is None:
            return 0.0
        return float(np.sqrt(clients.p @ np.einsum("mii->m", clients.noise)))

    @property
    def curvature(self) -> tuple[float, float] | None:
        """(L, mu): the largest of any client, and the smallest of the mean loss that is not flat."""
        if self.quadratic is None:
            return None
        values = np.linalg.eigvalsh(self.quadratic.clients.mean_hessian)
        steep = values[values > 1e-6 * values[-1]]
        return self.quadratic.largest, float(steep[0]) if len(steep) else 0.0

    def rows(self) -> list[tuple[str, str, str]]:
        """What, how much, and what it means."""
        least, middle, most = self.sizes
        rows = [
            ("clients", f"{self.clients:,}", f"{self.participants:,} in a round"),
            ("samples of a client", f"{least:,} to {most:,}", f"median {middle:,}"),
            ("parameters", f"{self.parameters:,}", "trained by everybody"),
        ]
        if self.spread is not None:
            for part in ("labels", "inputs"):
                for metric, name in (("tv", "omega_TV"), ("w1", "omega_W1")):
                    if self.spread.informative(part, metric):  # type: ignore[arg-type]
                        distance = self.spread.omega(part, metric)  # type: ignore[arg-type]
                        sure = "exact" if distance.exact else f"between {distance.low:.3g} and {distance.high:.3g}"
                        rows.append(
                            (f"{name} of {part}", f"{distance.value:.3g}", f"mean distance from the mixture, {sure}")
                        )
        if self.dissimilarity is not None and self.curvature is not None:
            B, G = self.dissimilarity
            L, mu = self.curvature
            rows += [
                ("gradient dissimilarity B, G", f"{B:.3g}, {G:.3g}", "at the first weights: 1 and 0 if clients agree"),
                ("pull at the optimum", f"{self.pull:.3g}", "norm of the clients' gradients where the mean one is 0"),
                ("largest curvature L", f"{L:.3g}", "of any client; local steps beyond 2/L diverge"),
                (
                    "smallest curvature mu",
                    f"{mu:.3g}",
                    f"of the mean loss, flat directions left out: kappa {L / mu:.3g}" if mu > 0 else "flat",
                ),
                ("noise of a local step", f"{self.noise:.3g}", "standard deviation of its gradient"),
            ]
        if self.gamma is not None:
            rows.append(("Gamma", f"{self.gamma:.3g}", "loss that clients' own optima would save: F* - mean of f_i*"))
        return rows

    def plain(self) -> dict[str, Any]:
        """As plain JSON."""
        return {name: value for name, value, _ in self.rows()}


def measure(
    study: Study, federation: Federation, task: Task, batch: int | None, *, whole: bool = True, ridge: float = 0.0
) -> Measured:
    """Everything that can be measured, of losses with `ridge` / 2 times the squared weights; without `whole` only what
    the choice rests on."""
    size = study.sampling.size
    participants = min(size or len(federation), len(federation))
    parameters = sum(p.numel() for p in task.network.parameters() if p.requires_grad)
    small = parameters <= LARGEST
    ids, data = _looked_at(federation, small, study.seed)
    sizes = np.array([federation.size(name) for name in ids]) if len(federation) > _COUNTED else federation.sizes()
    shares = np.array(
        [len(client) if small else federation.size(name) for name, client in zip(ids, data, strict=True)], float
    )
    if study.sampling.weights == "uniform":
        shares[:] = 1.0
    shares /= shares.sum()
    cohort = None if participants == len(federation) else participants
    unknown: list[str] = []
    resembling: Resemblance | None = None
    try:
        if small:
            drawn = None if cohort is None else max(1, round(cohort * len(ids) / len(federation)))
            resembling = resemblance(task, data, shares, batch, drawn, ridge)
        else:
            resembling = sketched(task, data, shares, batch, cohort, len(federation), ridge)
    except (RuntimeError, NotImplementedError) as error:  # torch cannot differentiate everything twice
        line = str(error).strip().splitlines()[0][:120]
        unknown.append(f"second derivatives of this model (torch: {line}), so nothing was forecast.")
    spread = None
    if whole:
        try:
            spread = heterogeneity(federation, clients=20, samples=100, limit=200, pairs=False, seed=study.seed)
        except InputError as error:
            unknown.append(f"omega_TV and omega_W1: {error}")
    gamma = _gamma(task, data, shares, resembling, ridge) if whole and small and resembling is not None else None
    if whole and gamma is None:
        unknown.append("Gamma: the clients' own optima are not looked for in a model of this size.")
    quantiles = int(sizes.min()), int(np.median(sizes)), int(sizes.max())
    return Measured(
        len(federation), len(ids), quantiles, parameters, participants, batch, resembling, spread, gamma, tuple(unknown)
    )


def _looked_at(federation: Federation, small: bool, seed: int) -> tuple[list[str], list[ClientData]]:
    """All clients and samples of a small model, else some of both."""
    key = Key(seed).fold("advise")
    most = _EVERYBODY if small else CLIENTS
    indices: Sequence[int] = range(len(federation))
    if len(federation) > most:
        indices = sorted(key.fold("clients").numpy().choice(len(federation), most, replace=False).tolist())
    ids = [str(federation.ids[index]) for index in indices]
    data = []
    for name in ids:
        client = federation.client(name)
        if not small and len(client) > SAMPLES:
            rows = torch.from_numpy(
                np.sort(key.fold("samples", name).numpy().choice(len(client), SAMPLES, replace=False))
            )
            client = ClientData(client.x[rows], client.y[rows])
        data.append(client)
    return ids, data


def _gamma(task: Task, data: Sequence[ClientData], shares: Array, measured: Resemblance, ridge: float) -> float:
    """F* - sum_i p_i min f_i, the clients' minima by L-BFGS from the common optimum."""
    least = []
    for client in data:
        objective = Objective(task, client, ridge)
        x, _ = objective.minimiser(measured.optimum, _LOCAL_ITERATIONS)
        least.append(objective.value_and_gradient(x)[0])
    return max(measured.least_loss - float(shares @ np.array(least)), 0.0)


__all__ = ["CLIENTS", "SAMPLES", "Measured", "flat", "measure"]
