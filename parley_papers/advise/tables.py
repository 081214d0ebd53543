"""Does advice do harm on small tables of two classes? Thirty of them, judged by rows that advice never saw.

Twenty-four are synthetic (150 to 900 rows, 5 to 40% positives, 4 to 20 columns of which half matter, five clients with
shifted inputs) and are judged by 50,000 fresh rows; six are real, in stratified folds. A fold's training rows are all
that advice, default FedAvg and the two references see; advice holds a quarter of each client's rows out of training to
stop by, as it tells its user to, and default FedAvg trains on all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

import parley as pl
from parley_papers.arrays import Array
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, at_most, claims, holds, study
from parley_papers.spread import spread

LOG_LOSS, AUC, LEVEL = 0.05, 0.02, 0.95
"""The margins: relative log-loss and AUC that advice may lose, at this one-sided confidence over the tables."""
FRESH, REPEATS, FOLDS, ROUNDS = 50_000, 2, 3, 50
REAL = ("breast-cancer", "wine", "iris", "digits", "heart-disease", "tcga-brca")
SYNTHETIC = 24
ARMS = ("advised", "FedAvg", "penalised regression", "prevalence")
Whole = NDArray[Any]
"""Classes, clients and numbers of rows."""
Split = tuple[Array, Whole, Whole, Array, Whole, Whole]
"""Training inputs, classes and clients; judging inputs, classes, and the numbers of these rows."""


@dataclass(frozen=True)
class JudgedTable:
    """What each arm has on the judging rows, the mean over draws or repeats."""

    name: str
    rows: int
    positives: float
    losses: dict[str, float]
    aucs: dict[str, float]
    harm: float
    """p of the one-sided paired test that advice has the larger log-loss than FedAvg, over rows."""


def tables(scale: Scale) -> list[str]:
    """Their names."""
    made = [f"synthetic {seed}" for seed in range(1 if scale == "smoke" else SYNTHETIC)]
    return [*made, *(("iris",) if scale == "smoke" else REAL)]


@study(
    "advise/tables",
    scales={
        "smoke": "two tables, one draw",
        "cpu": f"thirty tables, {REPEATS} draws of each synthetic one, {REPEATS} x {FOLDS} folds of the others",
    },
)
def advice_on_tables(scale: Scale, context: StudyContext) -> StudyResult:
    """Advised settings against default FedAvg on thirty small tables of two classes, by rows that neither saw."""
    return summarised(spread(_smoke if scale == "smoke" else judged, tables(scale), context, "tables"), scale, context)


def _smoke(name: str) -> JudgedTable:
    return judged(name, repeats=1, fresh=2000)


def summarised(results: list[JudgedTable], scale: Scale, context: StudyContext) -> StudyResult:
    """The checks and the numbers."""
    ratios = np.log([one.losses["advised"] / one.losses["FedAvg"] for one in results])
    lost = np.array([one.aucs["FedAvg"] - one.aucs["advised"] for one in results])
    harmed = [one.name for one, p in zip(results, holm([one.harm for one in results]), strict=True) if p < 1 - LEVEL]
    losses = {arm: float(np.mean([one.losses[arm] for one in results])) for arm in ARMS}
    known = int(np.isfinite(ratios + lost).sum())
    checks: list[Check] = [holds("tables with finite losses and AUCs", known == len(results), known, len(results))]
    checks += claims(
        [
            at_most("log-loss over FedAvg's, upper 95% bound", float(np.exp(upper(ratios))), 1 + LOG_LOSS),
            at_most("AUC lost, upper 95% bound", upper(lost), AUC),
            at_most("tables with significant harm (Holm)", len(harmed), 0),
        ],
        scale,
    )
    data = {"log-loss": losses, "harmed": harmed, "tables": [asdict(one) for one in results]}
    return context.result(checks, data=data)


def upper(values: Array) -> float:
    """The one-sided Student bound of the mean."""
    error = float(np.std(values, ddof=1)) / np.sqrt(len(values))
    return float(np.mean(values) + stats.t.ppf(LEVEL, len(values) - 1) * error)


def holm(p_values: list[float]) -> list[float]:
    """Corrected for all of them (Holm, 1979)."""
    order, corrected, most = np.argsort(p_values), [1.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        most = max(most, min(1.0, (len(order) - rank) * p_values[place]))
        corrected[place] = most
    return corrected


def judged(name: str, repeats: int = REPEATS, fresh: int = FRESH) -> JudgedTable:
    """One table."""
    scores: dict[str, list[float]] = {arm: [] for arm in ARMS}
    apart: dict[tuple[int, int], list[float]] = {}
    sizes, shares = [], []
    losses: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for number, (x, y, owner, new_x, new_y, which) in enumerate(splits(name, repeats, fresh)):
        scaler = StandardScaler().fit(x)
        x, new_x = scaler.transform(x).astype(np.float32), scaler.transform(new_x).astype(np.float32)
        logits = fitted(x, y, owner, new_x, seed=number)
        each = {arm: np.logaddexp(0, np.where(new_y > 0, -z, z)) for arm, z in logits.items()}
        for arm in ARMS:
            losses[arm].append(float(each[arm].mean()))
            scores[arm].append(float(roc_auc_score(new_y, logits[arm])))
        draw = number if name.startswith("synthetic") else 0  # fresh rows of another draw are others
        for row, difference in zip(which.tolist(), each["advised"] - each["FedAvg"], strict=True):
            apart.setdefault((draw, row), []).append(float(difference))
        sizes.append(len(y))
        shares.append(float(y.mean()))
    differences = np.array([np.mean(values) for values in apart.values()])
    means = [{arm: float(np.mean(values)) for arm, values in of.items()} for of in (losses, scores)]
    harm = float(stats.ttest_1samp(differences, 0.0, alternative="greater").pvalue) if differences.std() else 1.0
    return JudgedTable(name, int(np.mean(sizes)), float(np.mean(shares)), means[0], means[1], harm)


def fitted(x: Array, y: Whole, owner: Whole, new_x: Array, seed: int) -> dict[str, Array]:
    """Each arm's log-odds of new rows."""
    clients = {str(i): (x[owner == i], y[owner == i]) for i in np.unique(owner)}
    federation = pl.Federation.from_arrays(clients)
    held_out = pl.Federation.from_arrays(clients, test_fraction=0.25, seed=seed)
    asked: dict[str, Any] = {"model": pl.models.mlp(32), "rounds": ROUNDS, "seed": seed, "runtime": "inline"}
    plain = pl.train(pl.FedAvg(), federation, **asked, evaluation=pl.Evaluation(central=False, clients="none"))
    advice = pl.advise(pl.Study(pl.FedAvg(), held_out, **asked), whole=False, gain=False)
    advised = pl.train(advice.best)
    rows, share = torch.from_numpy(new_x), float(np.clip(y.mean(), 1e-6, 1 - 1e-6))
    outputs = {"advised": advised.predict(rows, best=True), "FedAvg": plain.predict(rows)}
    regression = LogisticRegression(C=1.0, max_iter=1000).fit(x, y)
    return {
        **{arm: (z[:, 1] - z[:, 0]).double().numpy() for arm, z in outputs.items()},
        "penalised regression": regression.decision_function(new_x),
        "prevalence": np.full(len(new_x), np.log(share / (1 - share))),
    }


def splits(name: str, repeats: int, fresh: int) -> Iterator[Split]:
    """Training and judging rows: draws of a synthetic table, or stratified folds."""
    if name.startswith("synthetic"):
        yield from (synthetic(int(name.split()[1]), draw, fresh) for draw in range(repeats))
        return
    x, y, owner = real(name)
    for repeat in range(repeats):
        for train, test in StratifiedKFold(FOLDS, shuffle=True, random_state=repeat).split(x, y):
            yield x[train], y[train], owner[train], x[test], y[test], test


def synthetic(seed: int, draw: int, fresh: int) -> Split:
    """A logistic model with interactions, five clients with shifted inputs; a draw keeps the truth."""
    truth, rows_of = pl.Key(seed).fold("truth").numpy(), pl.Key(seed).fold("rows", draw).numpy()
    rows, columns, wanted = int(truth.integers(150, 901)), int(truth.integers(4, 21)), truth.uniform(0.05, 0.4)
    weights: Array = truth.normal(size=columns) * (np.arange(columns) < (columns + 1) // 2)
    weights *= truth.uniform(0.5, 2.5) / max(float(np.linalg.norm(weights)), 1e-9)
    crossed, shifts = truth.uniform(0, 0.5), 0.5 * truth.normal(size=(5, columns))

    def drawn(count: int, generator: np.random.Generator) -> tuple[Array, Array, Whole]:
        owner = generator.choice(5, count, p=[0.35, 0.25, 0.2, 0.12, 0.08])
        x = generator.normal(size=(count, columns)) + shifts[owner]
        return x, x @ weights + crossed * x[:, 0] * x[:, 1], owner

    _, eta, _ = drawn(20_000, truth)
    low, high = -20.0, 20.0
    for _ in range(60):  # the intercept that gives the prevalence
        middle = (low + high) / 2
        low, high = (low, middle) if expit(eta + middle).mean() > wanted else (middle, high)
    x, eta, owner = drawn(rows + fresh, rows_of)
    y = (rows_of.random(rows + fresh) < expit(eta + low)).astype(np.int64)
    return x[:rows], y[:rows], owner[:rows], x[rows:], y[rows:], np.arange(fresh)


def real(name: str) -> tuple[Array, Whole, Whole]:
    """All rows of a data set, one class against the others, with natural clients where it has some."""
    kept: dict[str, Any] = {} if name in ("heart-disease", "tcga-brca") else {"test_fraction": 0.0}
    if name == "heart-disease":
        kept["scaled_by"] = "pooled"
    data: Any = pl.data.datasets[name](**kept)
    parts = [data] if data.test is None else [data, data.test]
    x = np.concatenate([part.x.double().flatten(1).numpy() for part in parts])
    y = np.concatenate([part.y.double().reshape(-1).numpy() for part in parts])
    positive = {"tcga-brca": y > 0, "digits": y == 8, "wine": y == 2, "iris": y == 1}.get(name, y == 1)
    if data.groups is None:
        owner = pl.Key(0).fold("clients", name).numpy().permutation(len(x)) % 5
    else:
        owner = np.concatenate([data.groups, data.test_groups])
    return x, positive.astype(np.int64), owner
