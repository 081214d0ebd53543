"""The studies of advice: their federations have the truth they claim, and bad advice fails their checks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import parley as pl
from parley_papers.advise.federations import PILOT_SHARE, PILOT_WITHIN, SEEDS, SHARE, WITHIN, summarised
from parley_papers.advise.judge import Judged, cost_of
from parley_papers.advise.problems import grid, problem
from parley_papers.catalogue import run_study
from parley_papers.harness import StudyContext

GOOD = Judged(
    0,
    "regression",
    "rounds",
    {},
    10.0,
    "fedavg",
    74,
    "fedavg, lr 0.03, 1 steps",
    12.0,
    "advised",
    12.0,
    11.0,
    "tried",
    0.4,
)


def failed(judged: list[Judged]) -> list[str]:
    result = summarised(judged, "cpu", StudyContext("advise/federations", "cpu"))
    return [check.name for check in result.checks if not check.passed]


def test_thresholds_and_seeds_are_those_that_were_set() -> None:
    assert (WITHIN, SHARE, PILOT_WITHIN, PILOT_SHARE) == (2.0, 0.75, 1.15, 0.8)
    assert SEEDS["cpu"] == tuple(range(30))
    assert not set(SEEDS["smoke"]) & set(SEEDS["cpu"])


def test_good_advice_passes_and_every_kind_of_bad_advice_fails() -> None:
    assert failed([GOOD] * 20) == []
    poor = replace(GOOD, advised=25.0)
    assert failed([GOOD] * 14 + [poor] * 6) == ["without a pilot: share within 2x of the best"]
    assert failed([GOOD] * 19 + [replace(GOOD, worse="")]) == ["without a pilot: federations where it is the worst"]
    assert failed([GOOD] * 15 + [replace(GOOD, piloted=12.0)] * 5) == ["with a pilot: share within 1.15x of the best"]
    assert failed([replace(GOOD, piloted=np.inf, advised=np.inf, worse="")] * 2) == [
        "without a pilot: share within 2x of the best",
        "without a pilot: federations where it is the worst",
        "with a pilot: share within 1.15x of the best",
    ]


@pytest.mark.parametrize("seed", [105, 106, 107])
def test_the_least_loss_is_least_and_the_target_lies_between(seed: int) -> None:
    own = problem(seed)
    assert own.least < own.target < own.start
    assert (own.kind, own.unit) == (
        ("regression", "two classes", "classes")[seed % 3],
        ("megabytes", "rounds")[seed % 2],
    )
    if own.kind == "regression":
        x = np.concatenate([own.federation.client(name).x.numpy() for name in own.federation.ids]).astype(np.float64)
        y = np.concatenate([own.federation.client(name).y.numpy().ravel() for name in own.federation.ids])
        design = np.hstack([x, np.ones((len(x), 1))])
        found = np.linalg.lstsq(design, y)[0]
        assert own.least == pytest.approx(float(np.mean((design @ found - y) ** 2)), rel=1e-6)


def test_costs_are_rounds_until_the_target() -> None:
    own = problem(105)
    algorithm = grid(own)["feddyn 1, lr 0.1, 30 steps"][0]
    rounds = cost_of(own, algorithm)
    run = pl.train(own.study(algorithm))
    losses = np.array(run.series("central/loss")[1])
    assert rounds == int(np.argmax(losses <= own.target))
    assert cost_of(own, algorithm, most=rounds - 1) == np.inf


def test_the_studies_run() -> None:
    for name in ("advise/federations", "advise/pictures"):
        assert run_study(name, "smoke").passed
