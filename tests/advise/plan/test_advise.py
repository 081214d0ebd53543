"""Advice: what is measured, what is forecast, what is advised, and that acting on it gives what was promised."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import parley as pl
from parley.advise.plan import choose
from parley.advise.plan.candidates import EIGHT_BITS, Candidate, traffic
from parley.advise.plan.choose import Goal
from parley.advise.plan.make import advise
from parley.advise.plan.measure import measure
from parley.advise.plan.pilot import rung_rounds
from parley.advise.plan.quadratic import Resemblance
from parley.advise.plan.reasons import _beside, _length_reason
from parley.core.errors import InputError
from parley.study.toml import study_from_dict
from parley.study.train import make_task
from parley.theory.forecast import LocalQuadratics, LocalWork, ServerStep

MODEL = pl.models.linear(zero=True)


def regression(seed: int = 0, spread: float = 0.3, clients: int = 6) -> pl.Federation:
    rng = np.random.default_rng(seed)
    truth, sites = rng.normal(size=4), {}
    for number in range(clients):
        x = rng.normal(size=(int(rng.integers(20, 60)), 4)) * [1.0, 0.6, 0.4, 0.2]
        y = x @ (truth + spread * rng.normal(size=4)) + 0.1 * rng.normal(size=len(x))
        sites[f"site{number}"] = (x, y)
    whole = tuple(np.concatenate(part) for part in zip(*sites.values(), strict=True))
    return pl.Federation.from_arrays(sites, test=whole, dtype="float32")


def classes(seed: int = 0) -> pl.Federation:
    rng = np.random.default_rng(seed)
    sites = {}
    for number in range(5):
        x = rng.normal(size=(60, 3))
        chance = 1 / (1 + np.exp(-(x @ np.array([1.5, -1.0, 0.5]) + 0.5 * rng.normal())))
        sites[f"site{number}"] = (x, (rng.random(60) < chance).astype(np.int64))
    whole = tuple(np.concatenate(part) for part in zip(*sites.values(), strict=True))
    return pl.Federation.from_arrays(sites, test=whole, dtype="float32")


def with_target(federation: pl.Federation, share: float, **settings: object) -> pl.Study:
    """A study whose target is this share of the excess loss at the start."""
    study = pl.Study(pl.FedAvg(batch=0), federation, model=MODEL, rounds=60, **settings)  # type: ignore[arg-type]
    found = measure(study, federation, make_task(federation, MODEL, 0), None, whole=False).quadratic
    assert found is not None
    target = found.least_loss + share * found.excess
    return replace(study, evaluation=pl.Evaluation(metric="loss", clients="none", target=target))


@pytest.mark.parametrize("seed", range(3))
def test_the_target_is_reached_in_the_round_that_was_forecast(seed: int) -> None:
    advice = advise(with_target(regression(seed), 0.01), whole=False)
    run = pl.train(advice.best)
    assert run.records[-1].number == pytest.approx(advice.ranked[0].rounds, abs=1)
    assert advice.named("stopping round").value == f"{advice.ranked[0].rounds:.0f}"


def test_the_target_of_a_logistic_regression_is_reached_about_then() -> None:
    advice = advise(with_target(classes(), 0.02), whole=False)
    run = pl.train(advice.best)
    assert run.records[-1].metrics["central/loss"].value <= advice.study.evaluation.target  # type: ignore[union-attr]
    assert run.records[-1].number <= 2 * advice.ranked[0].rounds + 1


def test_clients_that_pull_apart_get_variates_and_alike_ones_do_not() -> None:
    apart = advise(with_target(regression(1, spread=2.0, clients=10), 1e-4), whole=False).ranked[0].candidate
    assert apart.work.method in ("scaffold", "feddyn") or apart.work.K == 1
    alike = advise(with_target(regression(1, spread=0.0), 0.01), whole=False).ranked[0].candidate
    assert alike.work.method == "fedavg"
    assert alike.work.K > 1


@pytest.mark.parametrize(
    "candidate",
    [
        Candidate(LocalWork("fedavg", 0.1, 2)),
        Candidate(LocalWork("fedavg", 0.1, 2), ServerStep("heavy-ball", 0.5, 0.5), (EIGHT_BITS,)),
        Candidate(LocalWork("scaffold", 0.1, 2)),
        Candidate(LocalWork("scaffold", 0.1, 2), channels=(EIGHT_BITS,)),
        Candidate(LocalWork("feddyn", 0.1, 2, 0.3)),
    ],
)
def test_bytes_of_a_round_are_what_the_engine_counts(candidate: Candidate) -> None:
    data = regression()
    algorithm = candidate.algorithm()
    each = traffic(algorithm, make_task(data, MODEL, 0), candidate.channels)
    run = pl.train(algorithm, data, model=MODEL, rounds=2, channels=candidate.channels)
    assert run.total("up/bytes") + run.total("down/bytes") == 2 * len(data) * each


def test_megabytes_are_not_exceeded_and_bits_are_saved() -> None:
    study = with_target(regression(spread=0.1), 0.05)
    advice = advise(study, megabytes=0.02, whole=False)
    assert advice.named("channels").value == "qsgd(8)"
    run = pl.train(advice.best, evaluation=pl.Evaluation())
    assert len(run.records) - 1 == advice.best.rounds
    assert run.total("up/bytes") + run.total("down/bytes") <= 0.02e6
    with pytest.raises(InputError, match="do not pay for one round"):
        advise(study, megabytes=1e-4, whole=False)


def test_a_pilot_costs_at_most_half_of_the_run_and_says_so() -> None:
    advice = advise(with_target(classes(), 0.02), whole=False, pilot=True, rounds=40)
    assert advice.pilot is not None
    assert advice.pilot.rounds <= 20
    assert f"{advice.pilot.rounds} rounds in all" in advice.named("pilot").reason
    assert advice.pilot.tried[0].score == min(one.score for one in advice.pilot.tried[:2])


def test_rungs_are_counted_as_they_are_run() -> None:
    assert [rung_rounds(arms) for arms in (1, 2, 3, 4, 5)] == [1, 2, 5, 6, 12]


def test_the_whole_advice_is_a_study_that_trains_and_words() -> None:
    advice = pl.advise(pl.Study(pl.FedAvg(lr=0.1, batch=16), classes(), model=MODEL, rounds=12), gain=False)
    what = [one.what for one in advice.recommendations]
    assert (
        what[:5] == ["method", "local step size gamma", "local steps K", "server optimizer", "channels"]
        or "pull alpha" in what
    )
    assert "stopping round" in what
    names = [row[0] for row in advice.measured.rows()]
    for name in (
        "omega_TV of labels",
        "omega_W1 of inputs",
        "Gamma",
        "gradient dissimilarity B, G",
        "noise of a local step",
    ):
        assert name in names
    assert "omega_TV of inputs" not in names  # 1 - 1/N of inputs that are all different, whatever the clients are
    assert json.loads(advice.json())["budget"] == {"rounds": 12, "megabytes": None}
    assert advice.best.algorithm.batch == 16  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="made in Python"):
        advice.toml()
    with pytest.raises(InputError, match="there are: method"):
        advice.named("weather")


def test_gains_come_with_intervals_where_they_are_cheap() -> None:
    advice = advise(pl.Study(pl.FedAvg(batch=0), regression(), model=MODEL, rounds=10))
    assert advice.gains is not None
    assert all(one.low <= one.gain <= one.high for one in advice.gains.clients)


def test_a_written_study_keeps_full_batches() -> None:
    table = {
        "rounds": 10,
        "data": {"name": "diabetes", "clients": 4},
        "model": {"name": "linear"},
        "algorithm": {"name": "fedavg", "batch": 0},
    }
    advice = advise(study_from_dict(table), gain=False)
    again = study_from_dict(tomllib.loads(advice.toml()))
    assert again.algorithm == advice.best.algorithm
    assert again.algorithm.batch is None  # type: ignore[attr-defined]


def test_a_network_is_looked_at_along_some_directions() -> None:
    federation = pl.data.digits().split(pl.Dirichlet(0.5), clients=10, seed=0)
    study = pl.Study(pl.FedAvg(), federation, model=pl.models.mlp(16), rounds=15, cohort=5)
    advice = advise(study, gain=False)
    assert any("directions of" in one for one in advice.unknown)
    assert "fedals" in advice.named("part periods").value
    algorithm = advice.best.algorithm
    assert isinstance(algorithm, pl.LocalSGD)
    steps = 15 * algorithm.work().count(int(np.median(federation.sizes()))) / 2  # half of the clients in a round
    assert f"takes about {steps:,.0f} here, so it does not pay" in advice.named("part periods").reason
    assert pl.train(advice.best, rounds=3).best("accuracy") > 0.2


@pytest.mark.parametrize(
    ("steps", "end"),
    [(1799, "does not pay"), (1800, "may or may not"), (6499, "may or may not"), (6500, "not settled")],
)
def test_part_periods_pay_in_long_runs_only(steps: float, end: str) -> None:
    assert end in _length_reason(steps)


class Recurrent(nn.Module):
    """Something that torch does not differentiate twice under vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTM(3, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs, _ = self.cell(x[:, None, :])
        return self.out(outputs[:, -1])


def test_what_cannot_be_forecast_is_said_and_may_be_tried() -> None:
    study = pl.Study(pl.FedAvg(lr=0.1, batch=16), classes(), model=Recurrent(), rounds=24)
    advice = advise(study, gain=False)
    if not advice.ranked:
        assert "second derivatives" in " ".join(advice.unknown)
        assert advice.best.algorithm == study.algorithm
    assert advise(study, gain=False, pilot=True, whole=False).pilot is not None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rounds": 0}, "at least one round"),
        ({"megabytes": -1.0}, "positive and finite"),
        ({"megabytes": float("nan")}, "positive and finite"),
    ],
)
def test_bad_budgets_are_refused(change: dict[str, float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        advise(pl.Study(pl.FedAvg(), regression(), model=MODEL), **change)  # type: ignore[arg-type]


def test_studies_that_advice_is_not_for_are_refused() -> None:
    one = pl.Federation.from_arrays({"alone": (np.ones((9, 2)), np.ones(9))}, dtype="float32")
    with pytest.raises(InputError, match="only one"):
        advise(pl.Study(pl.FedAvg(), one, model=MODEL))
    with pytest.raises(InputError, match="trains no network"):
        advise(pl.Study(pl.FFGB(), classes()))
    with pytest.raises(InputError, match="privacy"):
        advise(pl.Study(pl.FedAvg(), classes(), model=MODEL, privacy=pl.Privacy(epsilon=5.0, clip=1.0)))


def test_a_target_below_the_minimum_is_named() -> None:
    study = pl.Study(
        pl.FedAvg(batch=0), regression(), model=MODEL, rounds=10, evaluation=pl.Evaluation(metric="loss", target=1e-9)
    )
    advice = advise(study, whole=False)
    assert "has its minimum at" in " ".join(advice.unknown)


def test_what_a_budget_pays_for() -> None:
    goal = Goal(None, 1.0, None, 10)
    assert (goal.limit(1000), goal.price(1000)) == (100, 0.01)
    assert Goal(30, 1.0, None, 10).limit(1000) == 30
    assert Goal(30, None, None, 10).price(1000) == 1.0


def test_a_target_is_reached_where_the_loss_stays():
    rushing = np.array([1.0, 0.3, 0.05, 0.8, 0.4, 0.09, 0.08, 0.07])
    assert choose._reached(rushing, 0.1) == 5
    assert choose._reached(np.array([1.0, 0.5, 0.09]), 0.1) == 2  # the end of a forecast is no reason for doubt
    assert choose._reached(np.array([1.0, 0.05, 0.5]), 0.1) == np.inf


def test_the_second_look_has_draws_that_nothing_was_chosen_by():
    clients = LocalQuadratics(np.ones((2, 1, 1)), np.zeros((2, 1)), np.full(2, 0.5), np.ones(1), None, 1)
    found = Resemblance(clients, True, True, 1.0, 0.0, 0.0, 1.0, 1.0, np.zeros((2, 1)), np.zeros(1))
    draws = [draw for _, draw in choose._variants(found, 7)]
    assert 7 not in draws
    assert len(set(draws)) == len(draws) > 3
    seen, hardly = (
        choose._variants(replace(found, exact=False, all_directions=seen_all), 7) for seen_all in (True, False)
    )
    assert max(one.L for one, _ in hardly) > max(one.L for one, _ in seen) > clients.L


def test_better_forecasts_that_are_not_advised_are_explained() -> None:
    plain = Candidate(LocalWork("fedavg", 0.1, 5))
    advised = choose.Ranked(plain, 8, 10, np.ones(2), np.inf, 1.0)
    assert _beside(advised, replace(advised, score=1.1)).startswith("Next best: fedavg")
    assert "left for --pilot to try" in _beside(advised, replace(advised, score=0.5, bold=True))
    assert "less simple" in _beside(advised, replace(advised, score=0.98))
