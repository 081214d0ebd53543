"""Simulated federations of known truth, and the grid of methods and settings that advice is held against.

A seed fixes everything: the kind of loss (least squares, two classes, several classes), 5 to 40 clients of unequal
sizes, the conditioning of the inputs, how far clients' inputs, models and labels differ, batches, who takes part, the
budget (rounds or megabytes) and the target. The target is a share of the excess training loss at the start; what the
loss of all clients together can reach is known (in closed form, or by Newton-type steps to rounding). Seeds from 100
on are for development; seeds 0 to 29 are judged.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import minimize
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import parley as pl
from parley_papers.arrays import Array

Kind = Literal["regression", "two classes", "classes"]
KINDS: tuple[Kind, ...] = ("regression", "two classes", "classes")
Unit = Literal["rounds", "megabytes"]
RATES = (0.03, 0.1, 0.3, 1.0, 3.0)
"""Local step sizes of the grid, half-decades as the papers take them."""
MODEL = pl.models.Linear(zero=True)


@dataclass(frozen=True, eq=False)
class Problem:
    """One federation with its budget, its target and what it can reach."""

    seed: int
    kind: Kind
    federation: pl.Federation
    batch: int
    """Samples per local step that every method gets; 0: all of a client's."""
    cohort: int | None
    """Clients per round; None: all."""
    unit: Unit
    rounds: int
    """The budget; in megabytes, what so many rounds of FedAvg cost."""
    start: float
    """The loss before the first round."""
    least: float
    """The smallest loss there is."""
    target: float
    about: dict[str, float]
    """What was drawn."""

    def study(
        self, algorithm: pl.Algorithm, channels: tuple[pl.Channel, ...] = (), rounds: int | None = None
    ) -> pl.Study:
        """A method on it, which stops at the target."""
        return pl.Study(
            algorithm,
            self.federation,
            model=MODEL,
            rounds=rounds or self.rounds,
            cohort=pl.Sampling(self.cohort),
            seed=self.seed,
            channels=channels,
            runtime="stacked",
            evaluation=pl.Evaluation(metric="loss", clients="none", target=self.target),
        )


def problem(seed: int) -> Problem:
    """The federation of a seed."""
    rng = np.random.default_rng([seed, 20])
    kind = KINDS[seed % 3]
    unit: Unit = "rounds" if seed % 2 else "megabytes"
    clients, width = round(_between(rng, 5, 40)), int(rng.integers(4, 19))
    outputs = {"regression": 1, "two classes": 2, "classes": int(rng.integers(3, 6))}[kind]
    kappa, scale = _between(rng, 10, 1000), _between(rng, 0.5, 2)
    shift, concept = rng.uniform(0, 0.7), _between(rng, 0.03, 1)
    skew, spread = rng.uniform(0, 1.5), rng.uniform(0, 1)
    sizes = np.maximum(_between(rng, 30, 100) * np.exp(spread * rng.standard_normal(clients)), 10).astype(int)
    scales = scale * kappa ** -rng.permutation(np.linspace(0, 0.5, width))
    truth = rng.standard_normal((width, outputs)) / np.sqrt(width) / scales[:, None] ** 0.5
    sites: dict[str, pl.ClientData] = {}
    for number, size in enumerate(sizes):
        centre = shift * rng.standard_normal(width)
        stretch = np.exp(0.3 * shift * rng.standard_normal(width))
        x = (centre + stretch * rng.standard_normal((size, width))) * scales
        client = truth * (1 + concept * rng.standard_normal(truth.shape))
        signal = x @ client + skew * rng.standard_normal(outputs) * (0.3 if kind == "regression" else 1.0)
        y = _targets(kind, signal, rng)
        sites[f"{number:02d}"] = pl.ClientData(torch.from_numpy(x).float(), y)
    pooled = pl.ClientData(
        torch.cat([client.x for client in sites.values()]), torch.cat([client.y for client in sites.values()])
    )
    federation = pl.Federation.from_arrays(sites, test=pooled, dtype="float32")
    batch = 0 if rng.random() < 0.6 else 20
    cohort = max(3, clients // 2) if rng.random() < 0.3 else None
    easy = batch > 0 or cohort is not None
    share = _between(rng, 0.03, 0.1) if easy else _between(rng, 0.002, 0.03)
    share /= 4 if kind == "regression" else 1  # squared losses fall faster
    rounds = round(_between(rng, 40, 100))
    start, least = _ends(federation, pooled, seed)
    about = {
        "clients": clients,
        "inputs": width,
        "outputs": outputs,
        "kappa": kappa,
        "scale": scale,
        "shift": shift,
        "concept": concept,
        "skew": skew,
        "spread": spread,
        "samples": int(sizes.sum()),
        "share": share,
    }
    target = least + share * (start - least)
    return Problem(seed, kind, federation, batch, cohort, unit, rounds, start, least, target, about)


def grid(problem: Problem) -> dict[str, tuple[pl.Algorithm, tuple[pl.Channel, ...]]]:
    """Every method and setting that advice is held against, by name; where bytes count, also with eight bits."""
    batch = problem.batch
    methods: dict[str, tuple[pl.Algorithm, tuple[pl.Channel, ...]]] = {}
    for lr in reversed(RATES):
        for steps in (30, 5, 1):
            work: dict[str, Any] = {"lr": lr, "steps": steps, "batch": batch}
            name = f"lr {lr:g}, {steps} steps"
            averaged = {"fedavg": pl.FedAvg(**work), "fedavgm": pl.FedAvgM(**work, server=pl.HeavyBall(0.3, 0.9))}
            for method, algorithm in averaged.items():
                methods[f"{method}, {name}"] = algorithm, ()
                if problem.unit == "megabytes":
                    methods[f"{method}, {name}, 8 bits"] = algorithm, (pl.qsgd(8),)
            if steps == 1:
                continue
            methods[f"scaffold, {name}"] = pl.Scaffold(**work), ()
            methods[f"fedprox, {name}"] = pl.FedProx(**work, alpha=0.3), ()
            for alpha in (0.1, 1.0):
                methods[f"feddyn {alpha:g}, {name}"] = pl.FedDyn(**work, alpha=alpha), ()
    for lr in (0.03, 0.1):
        for steps in (1, 5):
            name = f"fedadam {lr:g}, lr 0.1, {steps} steps"
            methods[name] = pl.FedAdam(lr=0.1, steps=steps, batch=batch, server=pl.Adam(lr)), ()
    return methods


def _targets(kind: Kind, signal: Array, rng: np.random.Generator) -> torch.Tensor:
    """Numbers with noise, or classes drawn from a softmax, one in twenty at random."""
    if kind == "regression":
        return torch.from_numpy(signal + 0.3 * rng.standard_normal(signal.shape)).float().squeeze(1)
    noisy = 2 * signal + rng.gumbel(size=signal.shape)
    drawn = np.where(rng.random(len(signal)) < 0.05, rng.integers(0, signal.shape[1], len(signal)), noisy.argmax(1))
    return torch.from_numpy(drawn.astype(np.int64))


def _ends(federation: pl.Federation, pooled: pl.ClientData, seed: int) -> tuple[float, float]:
    """The loss at the start and at the minimum."""
    task = pl.make_task(federation, MODEL, seed, None, "average")
    module, x, y = deepcopy(task.network).double().eval(), pooled.x.double(), pooled.y
    y = y.double() if y.is_floating_point() else y
    leaves = list(module.parameters())

    def loss(flat: Array) -> tuple[float, Array]:
        vector_to_parameters(torch.from_numpy(flat), leaves)
        value = task.loss(module(x), y).mean()
        return float(value.detach()), parameters_to_vector(torch.autograd.grad(value, leaves)).numpy()

    x0 = pl.tree.flat(task.initial())
    best = minimize(
        loss, x0, jac=True, method="L-BFGS-B", options={"maxiter": 2000, "maxfun": 4000, "ftol": 1e-15, "gtol": 1e-10}
    )
    return loss(x0)[0], float(best.fun)


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    """Evenly by its logarithm."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))
