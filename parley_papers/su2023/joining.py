"""Who gains by joining, on real hospitals: `parley gain` against what patients that nobody trained on say.

`parley gain` sees the training patients only. The simple comparison trains every client's own model and the federated
one on them, with the number of rounds (and, of own models, one of three rates, as `parley gain` does) that a fifth of
the training patients, left out, chooses, and judges both on the test patients of FLamby's split. Its intervals are
bootstraps over test patients: they know nothing of the luck of training, and of small test sets they are wide. Heart
disease is judged by the Brier score of a logistic regression, survival by the deviance of a model with constant hazards
(time in decades), which unlike Cox's likelihood is a loss of each patient by itself and never negative.

Written before the run: no client is told to join or to stay alone whose comparison says the opposite with 90%, and
both intervals overlap for all clients but one at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import parley as pl
from parley_papers.arrays import Array
from parley_papers.figures.gains_beside import GainPair, gains_beside
from parley_papers.flamby.tables import Logistic, made_up_patients
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, at_least, claims, holds, study
from parley_papers.training_problem import official_test

LEVEL = 0.9
DECADE = 3652.5
RESAMPLED = 2000
FACTORS = (0.3, 1.0, 3.0)
"""Of the method's rate, which own models choose from."""


@dataclass(frozen=True)
class Hospitals:
    """Clients, a model and how it is trained and judged."""

    name: str
    data: pl.Dataset
    model: Callable[[], nn.Module]
    loss: pl.Loss | None
    measure: str
    method: pl.FedAvg
    rounds: tuple[int, ...]
    """What the simple comparison chooses from; `parley gain` may take up to the last."""

    def train(self, clients: dict[str, pl.ClientData], rounds: int, factor: float = 1.0) -> pl.Run:
        """With `factor` times the method's rate."""
        federation = pl.Federation(self.data.info, tuple(clients), pl.data.InMemory(tuple(clients.values())))
        return pl.train(
            replace(self.method, lr=factor * self.method.lr),
            federation,
            model=self.model,
            rounds=rounds,
            loss=self.loss,
            runtime="inline",
            evaluation=pl.Evaluation(central=False, clients="none"),
        )

    def losses(self, run: pl.Run, data: pl.ClientData) -> Array:
        """Of each sample, [n]."""
        with torch.no_grad():
            outputs = run.predict(data.x)
            if self.measure == "brier":
                losses = (outputs.double().softmax(1) - F.one_hot(data.y, outputs.shape[1])).square().sum(1)
            else:
                losses = run.task.loss(outputs, data.y).double()
        return np.asarray(losses.numpy(), dtype=np.float64)


def deviance(outputs: Tensor, targets: Tensor) -> Tensor:
    """[n] of a constant hazard exp(output) a decade: 2 (m - e - e log m), m = hazard times decades, e whether it ended.

    Targets are days until the event, or minus days without it.
    """
    score, y = outputs.flatten(), targets.flatten()
    expected = torch.exp(score) * y.abs() / DECADE
    log_expected = score + torch.log((y.abs() / DECADE).clamp(min=1e-6))
    return 2 * (expected - torch.where(y > 0, 1 + log_expected, 0.0))


@study(
    "000/gain",
    scales={
        "smoke": "made-up patients, three folds",
        "cpu": "heart disease, 4 hospitals; TCGA-BRCA, 6 regions; 8 folds",
    },
)
def joining(scale: Scale, context: StudyContext) -> StudyResult:
    """`parley gain` names the hospitals that gain as a simple comparison on held-out patients does."""
    checks: list[Check] = []
    data: dict[str, Any] = {}
    panels = {}
    for hospitals in context.track(_hospitals(scale), "hospitals"):
        ours = estimated(hospitals, scale)
        simple = compared(hospitals)
        pairs = [
            GainPair(client.client, (client.gain, client.low, client.high), simple[client.client]) for client in ours
        ]
        finite = all(np.isfinite([*pair.estimated, *pair.compared]).all() for pair in pairs)
        checks.append(holds(f"{hospitals.name}: every client has both gains", finite, str(finite), "True"))
        checks += claims(agreement(hospitals.name, ours, simple), scale)
        panels[hospitals.name] = pairs
        data[hospitals.name] = {
            client.client: {
                "patients": client.samples,
                "gain": [client.gain, client.low, client.high],
                "decision": client.decision,
                "held out": simple[client.client],
            }
            for client in ours
        }
    about = "gain = error of the client's own model / of the federated one; 90% intervals"
    return context.result(checks, {"gains": gains_beside(panels, "parley gain", "test patients", about)}, data)


def estimated(hospitals: Hospitals, scale: Scale) -> tuple[pl.ClientGain, ...]:
    """`parley gain` on the training patients."""
    whole = hospitals.data.split("natural", seed=0)
    federation = pl.Federation(whole.info, whole.ids, whole.source)
    last = hospitals.rounds[-1]
    few: dict[str, Any] = {"folds": 3, "local_rounds": last} if scale == "smoke" else {"folds": 8, "local_rounds": last}
    return pl.gain(
        hospitals.method,
        federation,
        model=hospitals.model,
        rounds=last,
        loss=hospitals.loss,
        level=LEVEL,
        measure=hospitals.measure,
        runtime="inline",
        **few,
    ).clients


def compared(hospitals: Hospitals) -> dict[str, tuple[float, float, float]]:
    """By client: the gain on its test patients and its bootstrap interval."""
    data, test = hospitals.data, official_test(hospitals.data)
    assert data.groups is not None
    assert data.test_groups is not None
    of_hospital = {
        name: _rows(pl.ClientData(data.x, data.y), data.groups == g) for g, name in enumerate(data.group_names)
    }
    held = {name: _rows(test, data.test_groups == g) for g, name in enumerate(data.group_names)}
    common = hospitals.train(of_hospital, *_chosen(hospitals, of_hospital, (1.0,)))
    intervals = {}
    for name, patients in of_hospital.items():
        alone = hospitals.train({name: patients}, *_chosen(hospitals, {name: patients}, FACTORS))
        pair = np.stack([hospitals.losses(run, held[name]) for run in (alone, common)])
        intervals[name] = bootstrapped(pair, pl.Key(0).fold("bootstrap", hospitals.name, name))
    return intervals


def _chosen(hospitals: Hospitals, clients: dict[str, pl.ClientData], factors: Sequence[float]) -> tuple[int, float]:
    """The rounds and the rate with the least error on a fifth of every client's patients, left out of training."""
    left: dict[str, pl.ClientData] = {}
    seen: dict[str, pl.ClientData] = {}
    for name, patients in clients.items():
        out = pl.Key(0).fold("left out", name).numpy().permutation(len(patients)) % 5 == 0
        left[name], seen[name] = _rows(patients, out), _rows(patients, ~out)
    ways = list(product(hospitals.rounds, factors))
    errors = [
        np.concatenate([hospitals.losses(run, patients) for patients in left.values()]).mean()
        for run in (hospitals.train(seen, *way) for way in ways)
    ]
    return ways[int(np.argmin(np.nan_to_num(errors, nan=np.inf)))]


def bootstrapped(pair: Array, key: pl.Key) -> tuple[float, float, float]:
    """The ratio of mean losses [2, n], own over federated, with the interval of its logarithm over resampled n."""
    n = pair.shape[1]
    means = pair[:, key.numpy().integers(n, size=(RESAMPLED, n))].mean(axis=2)
    low, high = np.quantile(means[0] / means[1], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(pair[0].mean() / pair[1].mean()), float(low), float(high)


def agreement(name: str, ours: tuple[pl.ClientGain, ...], simple: dict[str, tuple[float, float, float]]) -> list[Check]:
    """Nobody is told the opposite of what held-out patients say, and the intervals overlap for all but one at most."""
    wrong = [
        client.client
        for client in ours
        if (client.decision == "join" and simple[client.client][2] < 1)
        or (client.decision == "stay alone" and simple[client.client][1] > 1)
    ]
    overlap = sum(client.low <= simple[client.client][2] and simple[client.client][1] <= client.high for client in ours)
    return [
        holds(f"{name}: clients told the opposite", not wrong, ", ".join(wrong) or "none", "none"),
        at_least(f"{name}: clients whose intervals overlap", overlap, len(ours) - 1),
    ]


def _hospitals(scale: Scale) -> list[Hospitals]:
    small = scale == "smoke"
    heart = made_up_patients(False) if small else pl.data.heart_disease()
    brca = made_up_patients(True) if small else _scaled()
    rounds = (2, 4) if small else (5, 10, 20, 40)
    method = pl.FedAvg(lr=0.05, epochs=1, batch=16)
    slower = replace(method, lr=0.01)
    inputs = [data.info.shape[0] for data in (heart, brca)]
    return [
        Hospitals("heart disease", heart, lambda: Logistic(inputs[0]), None, "brier", method, rounds),
        Hospitals("TCGA-BRCA", brca, lambda: nn.Linear(inputs[1], 1), deviance, "loss", slower, rounds),
    ]


def _scaled() -> pl.Dataset:
    """Inputs with mean 0 and deviation 1 over all training patients."""
    data = pl.data.tcga_brca()
    test, mean, spread = official_test(data), data.x.mean(0), data.x.std(0) + 1e-9
    return replace(data, x=(data.x - mean) / spread, test=pl.ClientData((test.x - mean) / spread, test.y))


def _rows(data: pl.ClientData, chosen: Any) -> pl.ClientData:
    rows = torch.from_numpy(np.flatnonzero(chosen))
    return pl.ClientData(data.x[rows], data.y[rows])
