"""The training engine does to quadratics what the theory says: Theorem 1 round by round, Table 2's rates, (14)."""

import numpy as np
import pytest

from parley.algorithms.averaging.local_update import MAML, LocalUpdate
from parley.algorithms.averaging.server import Descent, HeavyBall, Nesterov
from parley.conformance.quadratics import path, random_setting
from parley.core.key import Key
from parley.theory.servers import SERVERS, transient, tune
from parley.theory.surrogate import All, Explicit, Last

FAMILIES = {
    "fedavg": (All(6), 0.0, 0.6),
    "fedprox": (All(6), 2.0, 0.6),
    "fomaml": (Last(4), 0.0, 0.2),
    "maml": (Last(2 * 2 + 1), 0.0, 0.15),
    "proximal maml": (Last(2 * 2 + 1), 1.0, 0.15),
    "any theta": (Explicit((0.5, 0.0, 2.0)), 0.5, 0.4),
}
"""Theta, alpha and gamma (L + alpha)."""


def optimizer(kind: str, eta: float, momentum: float):
    return {"none": Descent(eta), "nesterov": Nesterov(eta, momentum), "heavy-ball": HeavyBall(eta, momentum)}[kind]


def made(family: str, kind: str):
    """A federation, its method with the server that attains Table 2's rate, and that server's setting."""
    theta, alpha, share = FAMILIES[family]
    setting = random_setting(Key(7).fold(family), dimension=6, kappa0=40.0)
    gamma = share / (setting.clients.L + alpha)
    tuned = tune(kind, *setting.clients.curvature(gamma, theta, alpha))
    common = {"lr": gamma, "alpha": alpha, "batch": None, "server": optimizer(kind, tuned.eta, tuned.momentum)}
    if "maml" in family and family != "fomaml":
        method = MAML(steps=2, **common)
    else:
        weights = {All: "all", Last: "last"}.get(type(theta)) or theta.coefficients
        method = LocalUpdate(steps=theta.steps, theta=weights, **common)
    return setting, method, tuned, (gamma, theta, alpha)


def descent(setting, surrogate, kind: str, tuned, rounds: int) -> np.ndarray:
    """The server optimizer on the surrogate's gradients, written out."""
    gradient = lambda x: setting.clients.gradient(x, *surrogate)  # noqa: E731
    points = [setting.start, setting.start]
    for _ in range(rounds):
        x, before = points[-1], points[-2]
        ahead = x + tuned.momentum * (x - before)
        points.append(ahead - tuned.eta * gradient(ahead if kind == "nesterov" else x))
    return np.stack(points[1:])


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("runtime", ["inline", "stacked"])
def test_every_iterate_is_one_of_descent_on_the_surrogate(family: str, kind: str, runtime: str):
    setting, method, tuned, surrogate = made(family, kind)
    walked = path(setting, method, 25, runtime)
    expected = descent(setting, surrogate, kind, tuned, 25)
    assert np.abs(walked[1:] - walked[:-1]).max() > 1e-3
    np.testing.assert_allclose(walked, expected, atol=1e-10)


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_error_shrinks_at_the_predicted_rate(family: str, kind: str):
    setting, method, tuned, surrogate = made(family, kind)
    rounds = int(np.log(1e-9) / np.log(tuned.rho))
    left = np.linalg.norm(path(setting, method, rounds, "inline") - setting.clients.minimiser(*surrogate), axis=1)
    assert left[-1] < 1e-6 * left[0]
    # (14) with the factor that momentum needs, at every round.
    numbers = np.arange(rounds + 1)
    assert (left <= transient(tuned.rho, numbers, kind) * tuned.rho**numbers * left[0] + 1e-11).all()
    first = rounds // 2
    grown = transient(tuned.rho, rounds, kind) / transient(tuned.rho, first, kind)
    rate = (left[rounds] / left[first] / grown) ** (1 / (rounds - first))
    assert rate == pytest.approx(tuned.rho, rel=0.02)
