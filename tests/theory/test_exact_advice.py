"""With A_i and c_i known the advice is judged by the actual distance at round T alone."""

import numpy as np
import pytest

from parley.core.errors import InputError
from parley.theory import pareto
from parley.theory.condition import curvature_bound
from parley.theory.servers import SERVERS, advance, tune
from parley.theory.surrogate import All, Quadratics


def exact_problem(seed: int) -> tuple[Quadratics, np.ndarray, int]:
    rng = np.random.default_rng(seed)
    clients = pareto.random_clients(int(rng.integers(2, 9)), int(rng.integers(2, 9)), 10 ** rng.uniform(1, 3), rng, 0.3)
    start = clients.empirical_minimiser + rng.standard_normal(clients.c.shape[1]) * 10 ** rng.uniform(-0.5, 1)
    return clients, start, round(10 ** rng.uniform(0, 1.5))


def best_of_grid(clients: Quadratics, start: np.ndarray, rounds: int, server: str) -> float:
    """Client settings times servers tuned to the true and to the worst-case spectrum, and off-tune by many factors."""
    model, L, mu = pareto.Rounds(clients, start), clients.L, clients.mu
    best = np.inf
    for K in (1, 2, 4, 10, 30, 100, 1000, 10_000):
        for alpha in (0.0, mu, np.sqrt(mu * L), L):
            for gamma in np.geomspace(1e-3, 0.99, 10) / (L + alpha) if K > 1 else [0.0]:
                descent = model.descent(gamma, K, alpha)
                tuned = tune(server, descent.eigenvalues[-1], descent.eigenvalues[0])
                worst = tune(server, *curvature_bound(L, mu, gamma, K, alpha, "fedavg"))
                eta = np.outer([tuned.eta, worst.eta], [0.5, 0.7, 0.9, 1.0, 1.1, 1.3]).ravel()
                beta = (
                    np.array([tuned.momentum, worst.momentum, 0.1, 0.3, 0.5, 0.7, 0.9]) if server != "none" else [0.0]
                )
                best = min(best, descent.distance(server, *np.meshgrid(eta, beta), rounds).min())
    return best


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("seed", range(6))
def test_within_one_percent_of_the_best_grid_point(server: str, seed: int) -> None:
    clients, start, rounds = exact_problem(seed)
    advice = pareto.best_exact_setting(clients, start, rounds, server)
    rounding = 1e-13 * (np.linalg.norm(start) + clients.C)
    assert advice.best.distance <= 1.01 * best_of_grid(clients, start, rounds, server) + rounding
    for choice in (advice.best, advice.minibatch_sgd, advice.one_shot):
        H = clients.hessian(choice.gamma, All(choice.K), choice.alpha)
        end = advance(
            server, choice.server, H, clients.minimiser(choice.gamma, All(choice.K), choice.alpha), start, rounds
        )
        assert choice.distance == pytest.approx(np.linalg.norm(end - clients.empirical_minimiser), rel=1e-6, abs=1e-9)
        assert choice.drift == pytest.approx(
            np.linalg.norm(clients.drift(choice.gamma, All(choice.K), choice.alpha)), rel=1e-6, abs=1e-9
        )
    one_shot = np.linalg.norm(clients.p @ clients.c - clients.empirical_minimiser)
    assert advice.one_shot.drift == pytest.approx(one_shot, rel=1e-9)


def test_limits_are_kept() -> None:
    clients, start, _ = exact_problem(3)
    limited = pareto.best_exact_setting(clients, start, 3, "none", max_steps=4, max_gamma=0.1 / clients.L).best
    assert limited.K <= 4
    assert limited.gamma <= 0.1 / clients.L
    assert pareto.best_exact_setting(clients, start, 3, "none", max_steps=1).best.K == 1
    assert pareto.best_exact_setting(clients, start, 3, "none", max_gamma=0.0).best.gamma == 0.0


def test_refusals() -> None:
    clients, start, _ = exact_problem(0)
    with pytest.raises(InputError, match="one per dimension"):
        pareto.best_exact_setting(clients, start[:-1], 3)
    with pytest.raises(InputError, match="rounds"):
        pareto.best_exact_setting(clients, start, 0)
    with pytest.raises(InputError, match="unknown server"):
        pareto.best_exact_setting(clients, start, 3, "adam")
