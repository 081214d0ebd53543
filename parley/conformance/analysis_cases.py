"""Regressions: those of one table with all rows, over any partition, and in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from parley.analyse.cox import Cox
from parley.analyse.curves import Curve, SurvivalCurves
from parley.analyse.glm import GLM
from parley.analyse.kaplan_meier import KaplanMeier
from parley.analyse.regression import Regression
from parley.conformance.case import Case
from parley.core.key import Key
from parley.data import ClientData, DataInfo, Federation
from parley.data.sources import InMemory
from parley.engine.run import Run
from parley.engine.settings import Evaluation, Sampling
from parley.study.train import train
from parley.theory.theta import Array

_NOTHING = Evaluation(central=False, clients="none")


def analyses() -> list[Case]:
    """What regressions are held against."""
    return [
        *(
            Case("glm", f"{family}, one row each: that of pooled rows", partial(_pooled, family), 1e-10, False)
            for family in ("gaussian", "logistic", "poisson", "gamma")
        ),
        Case("glm", "gaussian: (X'X)^-1 X'y and its covariance", _least_squares, 1e-10, False),
        Case("glm", "2 of 4 clients: that of the two drawn", partial(_drawn, GLM(floor=1)), 0.0, False),
        Case("cox", "2 of 4 clients: that of the two drawn", partial(_drawn, Cox(floor=1)), 0.0, False),
        Case("cox", "raw times, one row each: that of pooled rows", _raw_times, 1e-10, False),
        Case("cox", "stratified, pairs: conditional logistic regression", _pairs, 1e-10, False),
        Case("glm", "logistic, one 0-1 column: log-odds of a table", _log_odds, 1e-10, False),
        Case("kaplan-meier", "2 of 4 clients: that of the two drawn", _drawn_curves, 0.0, False),
        Case("kaplan-meier", "raw times, one row each: that of pooled rows", _pooled_curves, 0.0, False),
        Case("kaplan-meier", "nobody censored: the share of longer times", _all_events, 1e-12, False),
    ]


def _table(rows: int = 60) -> tuple[Array, Array]:
    draw = Key(0).fold("conformance", "analysis").numpy()
    x = draw.normal(size=(rows, 2)) * [1.0, 30.0] + [0.0, 500.0]
    return x, draw.poisson(np.exp(0.3 * x[:, 0] + 0.01 * (x[:, 1] - 500))).astype(np.float64)


def _data(x: Array, y: Array, clients: int) -> Federation:
    parts = [(torch.from_numpy(x[i::clients]), torch.from_numpy(y[i::clients, None])) for i in range(clients)]
    info = DataInfo("table", (x.shape[1],), 1, "regression")
    return Federation(info, tuple(map(str, range(clients))), InMemory(tuple(ClientData(*part) for part in parts)))


def _curve(method: KaplanMeier, data: Federation, runtime: str, cohort: Sampling | None = None) -> tuple[Run, Curve]:
    run = train(method, data, rounds=1, evaluation=_NOTHING, runtime=runtime, cohort=cohort)
    return run, SurvivalCurves.of(run).curves[0]


def _survival(curve: Curve) -> Array:
    return np.array([(step.survival, step.low, step.high) for step in curve.steps])


def _drawn_curves(runtime: str) -> float:
    x, y = _table()
    data, method = _data(x, y + 1, 4), KaplanMeier(floor=1, grid=(0.0, 1.5, 2.5))
    run, drawn = _curve(method, data, runtime, Sampling(size=2))
    _, alone = _curve(method, _few(data, run), runtime)
    return float(np.abs(_survival(drawn) - _survival(alone)).max())


def _pooled_curves(runtime: str) -> float:
    x, y = _table()
    y = np.where(np.arange(len(y)) % 3, y + 1, -y - 1)
    method = KaplanMeier(floor=1, times="raw")
    (_, pooled), (_, many) = (_curve(method, _data(x, y, clients), runtime) for clients in (1, 60))
    return float(np.abs(_survival(pooled) - _survival(many)).max())


def _all_events(runtime: str) -> float:
    x, y = _table()
    _, curve = _curve(KaplanMeier(floor=1, times="raw"), _data(x, y + 1, 4), runtime)
    return max(abs(step.survival - float((y + 1 > (step.time or 0.0)).mean())) for step in curve.steps)


def _fit(method: Regression, x: Array, y: Array, clients: int, runtime: str) -> tuple[Array, Array]:
    fit = train(method, _data(x, y, clients), rounds=1, evaluation=_NOTHING, runtime=runtime).state["fit"]
    return fit["beta"].numpy(), fit["covariance"].numpy()


def _apart(first: Sequence[Array], other: Sequence[Array]) -> float:
    return max(float(np.abs(a / b - 1).max()) for a, b in zip(first, other, strict=True))


def _pooled(family: str, runtime: str) -> float:
    x, y = _table()
    y = np.minimum(y, 1.0) if family == "logistic" else y + 0.5 * (family == "gamma")
    method = GLM(floor=1, family=family)  # type: ignore[arg-type]
    return _apart(*(_fit(method, x, y, clients, runtime) for clients in (60, 1)))


def _least_squares(runtime: str) -> float:
    x, y = _table()
    design = np.concatenate([np.ones((len(x), 1)), x], axis=1)
    inverse = np.linalg.inv(design.T @ design)
    beta = inverse @ design.T @ y
    spread = ((y - design @ beta) ** 2).sum() / (len(y) - 3)
    return _apart(_fit(GLM(floor=1), x, y, 4, runtime), (beta, spread * inverse))


def _drawn(method: Regression, runtime: str) -> float:
    x, y = _table()
    data = _data(x, y + 1, 4)
    drawn = train(method, data, rounds=1, cohort=Sampling(size=2), evaluation=_NOTHING, runtime=runtime)
    alone = train(method, _few(data, drawn), rounds=1, evaluation=_NOTHING, runtime=runtime)
    return _apart(*([run.state["fit"][name].numpy() for name in ("beta", "covariance")] for run in (drawn, alone)))


def _few(data: Federation, run: Run) -> Federation:
    """The clients that a run's last round drew."""
    ids = tuple(run.records[-1].metrics["down/bytes"].clients)
    return Federation(data.info, ids, InMemory(tuple(data.client(id) for id in ids)))


def _raw_times(runtime: str) -> float:
    """One client with everything is its own stratum."""
    x, y = _table()
    y = np.where(np.arange(len(y)) % 3, y + 1, -y - 1)
    many, encoded = Cox(floor=1, times="raw"), Cox(floor=1)
    return _apart(_fit(many, x, y, 60, runtime), _fit(encoded, x, y, 1, runtime))


def _pairs(runtime: str) -> float:
    """One 0-1 column, clients of an event and one row that outlives it: log(b / c) of the pairs that differ, with
    variance 1/b + 1/c."""
    b, c = 13, 6
    x = np.array([[1.0, 0.0]] * b + [[0.0, 1.0]] * c)
    y = np.array([[1.0, -2.0]] * (b + c))
    beta, covariance = _fit(Cox(floor=1), x.T.reshape(-1, 1), y.T.reshape(-1), b + c, runtime)
    return _apart((beta, covariance[0]), (np.array([np.log(b / c)]), np.array([1 / b + 1 / c])))


def _log_odds(runtime: str) -> float:
    """Of a, b (exposed: ill, well) and c, d (others): log(ad / bc), with variance 1/a + 1/b + 1/c + 1/d."""
    a, b, c, d = 12.0, 7.0, 5.0, 21.0
    x, y = (np.repeat(values, [12, 7, 5, 21]).astype(np.float64) for values in ([1, 1, 0, 0], [1, 0, 1, 0]))
    beta, covariance = _fit(GLM(floor=1, family="logistic"), x[:, None], y, 3, runtime)
    logs, variances = (np.log(c / d), np.log(a * d / (b * c))), (1 / c + 1 / d, 1 / a + 1 / b + 1 / c + 1 / d)
    return _apart((beta, np.diag(covariance)), (np.array(logs), np.array(variances)))
