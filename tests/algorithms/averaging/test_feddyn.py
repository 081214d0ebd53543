"""FedDyn: a round written out, what the server's h is at every moment, and which model is reported."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from parley.algorithms.averaging import feddyn as module
from parley.algorithms.averaging.feddyn import FedDyn
from parley.algorithms.protocol import Cohort
from parley.conformance.problem import quadratic_problem, weights_of
from parley.core.errors import InputError, QuorumError
from parley.core.tree import flat, weighted_sum
from parley.engine.settings import Faults, Sampling
from parley.store.memories import Memories
from parley.training.transforms import GradientTransform, Stage

METHOD = FedDyn(lr=0.1, steps=6, batch=None, alpha=2.0)


def by_hand(given, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Acar et al., Algorithm 1, weighted: x and the mean of the theta_i."""
    A, c, p, alpha = given.clients.A, given.clients.c, given.clients.p, METHOD.alpha
    x, h, own = given.start, 0 * given.start, np.zeros_like(given.clients.c)
    for _ in range(rounds):
        theta = np.tile(x, (4, 1))
        for _ in range(6):
            theta = theta - 0.1 * (np.einsum("ijk,ik->ij", A, theta - c) - own + alpha * (theta - x))
        own = own - alpha * (theta - x)
        h = h - alpha * (p @ theta - x)
        mean = p @ theta
        x = mean - h / alpha
    return x, mean


def follows_the_algorithm() -> None:
    given = quadratic_problem()
    x, mean = by_hand(given, 5)
    np.testing.assert_allclose(weights_of(given.run(METHOD, 5)), x, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(weights_of(given.run(replace(METHOD, report="mean"), 5)), mean, rtol=1e-11, atol=1e-12)


def test_five_rounds_by_hand():
    follows_the_algorithm()


@pytest.mark.parametrize(
    ("cohort", "faults"),
    [
        (Sampling(size=2, weights="uniform"), None),
        (Sampling(size=3, scheme="unbiased"), None),
        (Sampling(weights="uniform"), Faults(dropout=0.4, quorum=0.0)),
    ],
)
def test_the_servers_h_is_the_mean_of_all_clients(monkeypatch, cohort, faults):
    stores = []
    original = Memories.__init__
    monkeypatch.setattr(Memories, "__init__", lambda self, *a, **o: (original(self, *a, **o), stores.append(self))[0])
    given = quadratic_problem()
    p = given.clients.p if cohort.weights == "size" else np.full(4, 0.25)
    for rounds in (1, 2, 6):
        run = given.run(METHOD, rounds, "inline", cohort, faults)
        own = [(stores[-1][client].get("h_i"), float(w)) for client, w in zip(run.federation.ids, p, strict=True)]
        mean = weighted_sum([tree for tree, _ in own if tree], [w for tree, w in own if tree])
        np.testing.assert_allclose(flat(run.state["h"]), flat(mean), rtol=1e-12, atol=1e-13)


def test_few_rounds_of_few_steps_still_end_at_the_optimum():
    given = quadratic_problem()
    run = given.run(FedDyn(lr=0.05, steps=1, batch=None, alpha=2.0), 400)
    np.testing.assert_allclose(weights_of(run), given.clients.empirical_minimiser, atol=1e-10)


def test_no_more_traffic_than_fedavg_and_settings_that_make_no_sense():
    run = quadratic_problem().run(METHOD, 1)
    assert {name.split("/")[0] for name in METHOD.broadcast(run.task, run.state, 1).tensors} == {"model"}
    for settings, says in (
        ({"alpha": 0.0}, "above 0"),
        ({"alpha": -1.0}, "at least"),
    ):
        with pytest.raises(InputError, match=says):
            FedDyn(**settings)


# -- deliberate mistakes --------------------------------------------------------------------------------------------


def sign_of_the_linear_term(patch) -> None:
    add = module.transforms.add
    patch.setattr(module.transforms, "add", lambda tree, scale=1.0: add(tree, -scale))


def unsquared_prox(patch) -> None:
    def pull(centre, strength):
        def apply(g, w, c):
            away = [a - b for a, b in zip(w, c, strict=True)]
            norm = torch.stack([a.square().sum() for a in away]).sum().sqrt().clamp(min=1e-12)
            return [a + strength * d / norm for a, d in zip(g, away, strict=True)]

        return GradientTransform((Stage(apply, (centre,)),))

    patch.setattr(module.transforms, "pull", pull)


def weight_sum(patch) -> None:
    shares = Cohort.shares
    patch.setattr(Cohort, "shares", lambda self, answered: {i: 1.05 * w for i, w in shares(self, answered).items()})


@pytest.mark.parametrize("mistake", [sign_of_the_linear_term, unsquared_prox, weight_sum], ids=lambda m: m.__name__)
def test_mistakes_are_noticed(monkeypatch, mistake):
    mistake(monkeypatch)
    with pytest.raises((AssertionError, QuorumError)):
        follows_the_algorithm()
