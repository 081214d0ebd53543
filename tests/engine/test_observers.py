"""Listeners that measure disagreement: against formulas, free when they do not listen, the same on every runtime."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from parley import train
from parley.algorithms.averaging.baselines import LocalOnly
from parley.algorithms.averaging.feddyn import FedDyn
from parley.algorithms.averaging.fednova import FedNova
from parley.algorithms.averaging.local_update import MAML, FedAvg, FedProx
from parley.algorithms.averaging.scaffold import Scaffold
from parley.algorithms.parts.fedals import FedALS
from parley.conformance.problem import quadratic_problem
from parley.data import digits
from parley.engine.listeners import Listener
from parley.engine.observers import ConsensusDistance, ConsensusWithStatistics, Drift, GradientDissimilarity

LR, STEPS = 0.1, 3


def local_models(given) -> np.ndarray:
    y = np.tile(given.start, (4, 1))
    for _ in range(STEPS):
        y = y - LR * np.einsum("ijk,ik->ij", given.clients.A, y - given.clients.c)
    return y


@pytest.mark.parametrize("runtime", ["inline", "stacked", "pool"])
def test_against_the_formulas(runtime):
    given = quadratic_problem()
    dissimilarity = GradientDissimilarity()
    run = given.run(
        FedAvg(lr=LR, steps=STEPS, batch=None), 2, runtime, listeners=(ConsensusDistance(), Drift(), dissimilarity)
    )
    metrics = run.records[-2].metrics
    y = local_models(given)
    apart = np.square(y - y.mean(0)).mean(0)
    assert metrics["consensus/phi"].value == pytest.approx(apart[:3].mean(), rel=1e-12)
    assert metrics["consensus/h"].value == pytest.approx(apart[3:].mean(), rel=1e-12)
    assert metrics["consensus"].value == pytest.approx(apart.mean(), rel=1e-12)
    away = np.linalg.norm(y - given.start, axis=1)
    assert metrics["drift"].value == pytest.approx(away.mean(), rel=1e-12)
    assert metrics["drift"].clients == pytest.approx({str(i): value for i, value in enumerate(away)}, rel=1e-12)
    assert metrics["drift/h"].value == pytest.approx(np.linalg.norm((y - given.start)[:, 3:], axis=1).mean(), rel=1e-12)
    gradients = np.einsum("ijk,ik->ij", given.clients.A, given.start - given.clients.c)
    mean_square, square_mean = np.square(gradients).sum(1).mean(), np.square(gradients.mean(0)).sum()
    assert dissimilarity.points[0] == pytest.approx((mean_square, square_mean), rel=1e-12)
    assert metrics["dissimilarity/B"].value == pytest.approx(math.sqrt(mean_square / square_mean), rel=1e-12)
    assert metrics["dissimilarity/G"].value == pytest.approx(math.sqrt(mean_square - square_mean), rel=1e-9)
    for B in (1.0, 1.05):
        G = dissimilarity.bound(B)
        assert all(mean <= G**2 + B**2 * square + 1e-12 for mean, square in dissimilarity.points)


@pytest.mark.parametrize(
    "method",
    [
        FedAvg(steps=2, batch=None),
        FedProx(steps=2, batch=None),
        MAML(steps=1, batch=None, lr=0.01),
        LocalOnly(steps=2),
        Scaffold(steps=2, batch=None),
        FedNova(epochs=1, batch=3),
        FedDyn(steps=2, batch=None),
        FedALS(steps=2, batch=None, alpha=2),
    ],
    ids=lambda method: type(method).__name__,
)
def test_every_method_can_be_watched_and_is_not_changed_by_it(method):
    given = quadratic_problem()
    watchers = (ConsensusDistance(), Drift(), GradientDissimilarity())
    watched, alone = given.run(method, 3, listeners=watchers), given.run(method, 3)
    assert {"consensus", "drift", "dissimilarity/B"} <= watched.records[-1].metrics.keys()
    for name, value in alone.state.tensors.items():
        assert value.equal(watched.state.tensors[name])


def test_nothing_is_observed_unless_wanted():
    class Curious(Listener):
        def observe(self, number, observed):
            self.names = {name for seen in observed.values() for name in seen}

    curious = Curious()
    run = quadratic_problem().run(FedAvg(lr=LR, steps=STEPS, batch=None), 1, listeners=(curious,))
    assert curious.names == {"loss"}
    assert not any(name.startswith(("consensus", "drift")) for name in run.records[-1].metrics)


def test_groups_of_ones_own():
    given = quadratic_problem()
    run = given.run(
        FedAvg(lr=LR, steps=STEPS, batch=None),
        1,
        listeners=(ConsensusDistance({"everything": ("phi.weight", "h.weight")}),),
    )
    metrics = run.records[-1].metrics
    assert metrics["consensus/everything"].value == metrics["consensus"].value


def test_equal_clients_do_not_disagree():
    given = quadratic_problem().alone()
    run = given.run(FedAvg(lr=LR, steps=STEPS, batch=None), 2, listeners=(ConsensusDistance(), GradientDissimilarity()))
    assert run.records[-1].metrics["consensus"].value == 0
    assert run.records[-1].metrics["dissimilarity/B"].value == pytest.approx(1)


class Seen(Listener):
    def observe(self, number, observed):
        self.clients = list(observed.values())


def test_statistics_belong_to_their_layer():
    """Of a layer with weights [2, 64], a bias, a scale, a shift, a running mean and variance: 128 + 5 x 2 numbers."""
    seen = Seen()
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 2), nn.BatchNorm1d(2), nn.Linear(2, 10))
    federation = digits().split("sorted", 3, seed=0)
    listening = [ConsensusWithStatistics(), ConsensusDistance(), seen]
    run = train(FedAvg(steps=2), federation, model=network, rounds=1, listeners=listening, runtime="inline")
    flat = [
        torch.cat([value.flatten() for name, value in own.items() if name.startswith(("model/1.", "model/2."))])
        for own in seen.clients
    ]
    apart = torch.stack(flat).double().var(0, correction=0)
    assert len(apart) == 138
    metrics = run.records[-1].metrics
    assert metrics["consensus-with-statistics/1"].value == pytest.approx(float(apart.mean()), rel=1e-6)
    assert metrics["consensus/1"].value != pytest.approx(metrics["consensus-with-statistics/1"].value, rel=1e-3)
    assert metrics["consensus/3"].value == metrics["consensus-with-statistics/3"].value
