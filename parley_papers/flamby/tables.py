"""FLamby (Ogier du Terrail et al., NeurIPS 2022): Fed-Heart-Disease and Fed-TCGA-BRCA, our rows beside its own.

Its recipe: a logistic regression (batches of 4, 15 rounds of 100 updates) and a linear Cox model (batches of 8, 5
rounds), every client in every round, weights by size, the rates and optimizers of its configuration, splits of its own,
seeds 42 to 46. Pooled training is Adam over 50 and 30 passes. Published is the score on the test patients of all
clients together ("Pooled Test"); of heart disease these are standardised by *all* hospitals' patients, although
federated models were trained on inputs standardised by hospital. Both are shown here.

Two things are not FLamby's: a round begins with a fresh shuffle where its loaders go on, and our seeds draw other
numbers. Written before the first run: a row agrees if the means differ by at most two points or two standard errors of
the difference, whichever is more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import parley as pl
from parley_papers.figures.beside import Beside, beside
from parley_papers.flamby.survival import concordance, cox
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, at_least, claims, holds, near, study
from parley_papers.training_problem import official_test

SEEDS = (42, 43, 44, 45, 46)
POOLED = "pooled"
APART = 0.02
"""By how much means may differ in any case."""
HEART = {
    "FedAvg": (0.7480, 0.0240), "FedProx": (0.7480, 0.0240), "SCAFFOLD": (0.7480, 0.0240), "FedAdam": (0.7787, 0.0130),
    "FedYogi": (0.7787, 0.0137), POOLED: (0.7953, 0.0025),
}  # fmt: skip
BRCA = {
    "FedAvg": (0.7353, 0.1565), "FedProx": (0.7167, 0.1450), "SCAFFOLD": (0.6995, 0.0310), "FedAdam": (0.8421, 0.0150),
    "FedYogi": (0.8421, 0.0149), POOLED: (0.7041, 0.1023),
}  # fmt: skip
"""FLamby's means and deviations over its five seeds, on the test patients of all clients together."""
ESTIMABLE = tuple(f"x{column}" for column in range(39) if column not in (6, 27, 28, 30, 34, 35, 36, 37, 38))
"""TCGA-BRCA's columns without seven that repeat others, one that differs from another in one patient, and `race_white`,
without which the other races have nothing but one patient to be compared with."""


class Logistic(nn.Module):
    """One score; the logits of the two classes are 0 and the score, so that cross-entropy is the logistic loss."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        score = self.linear(x)
        return torch.cat([torch.zeros_like(score), score], 1)


@dataclass(frozen=True)
class Table:
    """A benchmark: its data, model, methods and how a model is judged."""

    title: str
    score: str
    rounds: int
    data: pl.Dataset
    pooled: pl.Dataset
    """The same patients as pooled training sees them."""
    model: Callable[[], nn.Module]
    loss: pl.Loss | None
    judge: Callable[[Tensor, Tensor], float]
    """Targets and outputs -> the score."""
    methods: Mapping[str, pl.Algorithm]
    theirs: Mapping[str, tuple[float, float]]

    def trained(self, method: str, seed: int) -> pl.Run:
        data, rounds = (self.pooled, 1) if method == POOLED else (self.data, self.rounds)
        return pl.train(
            self.methods[method],
            data.split("natural", seed=0),
            model=self.model,
            rounds=rounds,
            seed=seed,
            loss=self.loss,
            runtime="inline",
            evaluation=pl.Evaluation(central=False, clients="none"),
        )

    def scores(self, run: pl.Run) -> dict[str, float]:
        """On all test patients as FLamby shows them, and the mean over clients, each on its own."""
        whole, split = official_test(self.pooled), official_test(self.data)
        assert self.data.test_groups is not None
        groups = torch.from_numpy(self.data.test_groups)
        each = [self.judge(split.y[groups == g], run.predict(split.x[groups == g])) for g in groups.unique()]
        return {"all": self.judge(whole.y, run.predict(whole.x)), "clients": float(np.nanmean(each))}


@dataclass(frozen=True)
class Rates:
    """Step sizes of FLamby's configuration, and FedProx's mu."""

    fedavg: float
    mu: float
    scaffold: float
    adam: float
    adam_server: float
    yogi: float
    yogi_server: float
    pooled: float


@study(
    "flamby/heart-disease",
    scales={
        "smoke": "made-up patients, 2 rounds of 20 updates, 2 seeds",
        "cpu": "four hospitals, 15 rounds of 100 updates, seeds 42-46",
    },
)
def heart(scale: Scale, context: StudyContext) -> StudyResult:
    """Fed-Heart-Disease: FLamby's accuracies, by its recipe."""
    small = scale == "smoke"
    data, pooled = (
        (made_up_patients(False),) * 2 if small else (pl.data.heart_disease(), pl.data.heart_disease("pooled"))
    )
    inputs = data.info.shape[0]
    rates = Rates(0.001, 0.01, 0.001, 0.01, 0.01, 0.003162, 0.01, pooled=0.001)
    return _measured(
        Table(
            "Fed-Heart-Disease",
            "accuracy",
            2 if small else 15,
            data,
            pooled,
            lambda: Logistic(inputs),
            None,
            accuracy,
            methods(rates, small, batch=4, passes=50),
            HEART,
        ),
        scale,
        context,
    )


@study(
    "flamby/tcga-brca",
    scales={
        "smoke": "made-up patients, 2 rounds of 20 updates, 2 seeds",
        "cpu": "six regions, 5 rounds of 100 updates, seeds 42-46",
    },
)
def brca(scale: Scale, context: StudyContext) -> StudyResult:
    """Fed-TCGA-BRCA: FLamby's concordance indices, by its recipe."""
    small = scale == "smoke"
    data = made_up_patients(True) if small else pl.data.tcga_brca()
    inputs = data.info.shape[0]
    rates = Rates(0.1, 0.1, 0.01, 0.01, 0.1, 0.01, 0.1, pooled=0.1)
    return _measured(
        Table(
            "Fed-TCGA-BRCA",
            "c-index",
            2 if small else 5,
            data,
            data,
            lambda: nn.Linear(inputs, 1),
            cox,
            concordance,
            methods(rates, small, batch=8, passes=30),
            BRCA,
        ),
        scale,
        context,
        exact_cox(data, () if small else ESTIMABLE),
    )


def exact_cox(data: pl.Dataset, covariates: tuple[str, ...]) -> dict[str, float]:
    """The c-index of Cox's model itself, on the same test patients; FLamby's loss is that of batches of eight."""
    test, clients = official_test(data), data.split("natural", seed=0)
    nothing = pl.Evaluation(central=False, clients="none")
    runs = {
        times: pl.train(pl.Cox(covariates=covariates, times=times), clients, rounds=1, evaluation=nothing)
        for times in ("raw", "stratified")
    }
    return {times: concordance(test.y, run.predict(test.x)) for times, run in runs.items()}


def methods(rates: Rates, small: bool, batch: int, passes: int) -> dict[str, pl.Algorithm]:
    """FLamby's methods; pooled training makes so many passes in one round."""
    work: dict[str, Any] = {"steps": 20 if small else 100, "batch": batch}
    moments: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
    return {
        "FedAvg": pl.FedAvg(lr=rates.fedavg, **work),
        "FedProx": pl.FedProx(lr=rates.fedavg, alpha=rates.mu, **work),
        "SCAFFOLD": pl.Scaffold(lr=rates.scaffold, **work),
        "FedAdam": pl.FedAdam(lr=rates.adam, server=pl.Adam(lr=rates.adam_server, **moments), **work),
        "FedYogi": pl.FedYogi(lr=rates.yogi, server=pl.Yogi(lr=rates.yogi_server, **moments), **work),
        POOLED: pl.Centralised(lr=rates.pooled, optimizer="adam", epochs=2 if small else passes, batch=batch),
    }


def accuracy(targets: Tensor, outputs: Tensor) -> float:
    return float((outputs.argmax(1) == targets).double().mean())


def _measured(
    table: Table, scale: Scale, context: StudyContext, exact: Mapping[str, float] | None = None
) -> StudyResult:
    seeds = SEEDS[:2] if scale == "smoke" else SEEDS
    jobs = [(method, seed) for method in table.methods for seed in seeds]
    scores_by_method: dict[str, list[dict[str, float]]] = {method: [] for method in table.methods}
    for method, seed in context.track(jobs, "training"):
        scores_by_method[method].append(table.scores(table.trained(method, seed)))
    shown = {name: np.array([score["all"] for score in scores]) for name, scores in scores_by_method.items()}
    finite = all(np.isfinite(values).all() for values in shown.values())
    checks = [holds("every run has a score", finite, str(finite), "True"), *claims(agreement(table, shown), scale)]
    rows = [
        Beside(name, float(scored.mean()), float(scored.std()), *table.theirs[name]) for name, scored in shown.items()
    ]
    about = f"mean and deviation over seeds {seeds[0]}-{seeds[-1]}; all test patients together, as FLamby shows them"
    figure = beside(f"{table.title}: {table.score}", rows, "here", "FLamby", about)
    data = {
        "rows": {
            row.name: {
                "here": [row.ours, row.ours_spread],
                "FLamby": [row.theirs, row.theirs_spread],
                "clients' mean here": float(np.mean([score["clients"] for score in scores_by_method[row.name]])),
            }
            for row in rows
        },
        "scores": scores_by_method,
        "seeds": seeds,
    } | ({"exact Cox model": dict(exact)} if exact else {})
    return context.result(checks, {"beside": figure}, data)


def agreement(table: Table, shown: Mapping[str, np.ndarray]) -> list[Check]:
    """Every row against FLamby's, and what its table says: adaptive servers are ahead of FedAvg."""
    checks = []
    for name, values in shown.items():
        mean, spread = table.theirs[name]
        error = float(np.hypot(values.std(ddof=1), spread * (5 / 4) ** 0.5)) / 5**0.5
        allowed = max(APART, 2 * error)
        checks.append(near(f"{name}: {table.score}", float(values.mean()), mean, absolute=allowed))
    ahead = float(shown["FedAdam"].mean() - shown["FedAvg"].mean())
    return [*checks, at_least(f"FedAdam's {table.score} over FedAvg's", ahead, 0)]


def made_up_patients(survival: bool) -> pl.Dataset:
    """Three made-up hospitals, for scale smoke."""
    random = pl.Key(0).fold("made-up patients", survival).numpy()
    x = torch.from_numpy(random.standard_normal((180, 5))).float()
    score = x[:, 0] - x[:, 1]
    y = torch.from_numpy(random.exponential(size=180)).float() * torch.exp(-score)
    y = torch.where(torch.from_numpy(random.random(180) < 0.4), y, -y) if survival else (score > 0).long()
    groups, seen = np.arange(180) % 3, slice(0, 120)
    info = pl.DataInfo("made-up patients", (5,), 1 if survival else 2, "regression" if survival else "classification")
    return pl.Dataset(
        info, x[seen], y[seen], pl.ClientData(x[120:], y[120:]), groups[seen], ("a", "b", "c"), groups[120:]
    )
