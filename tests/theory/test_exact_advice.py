"""With A_i and c_i known the advice is judged by the actual distance at round T alone."""

import numpy as np
import pytest

from parley.core.errors import InputError
from parley.studies.paper001.advice import best_of_grid, exact_problem
from parley.theory import pareto
from parley.theory.servers import SERVERS, advance
from parley.theory.surrogate import All


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("seed", [2, 3, 4, 5])
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


def test_equally_good_settings_are_kept_simple() -> None:
    """Two steps with a proximal term are two smaller steps without one; what reaches the optimum needs neither."""
    clients, start, _ = exact_problem(0)
    for server in ("none", "heavy-ball"):
        assert pareto.best_exact_setting(clients, start, 3, server, max_steps=2).best.alpha == 0
        solved = pareto.best_exact_setting(clients, start, 3000, server).best
        assert (solved.K, solved.gamma, solved.alpha) == (1, 0.0, 0.0)
        assert solved.distance < 1e-12


def test_refusals() -> None:
    clients, start, _ = exact_problem(0)
    with pytest.raises(InputError, match="one per dimension"):
        pareto.best_exact_setting(clients, start[:-1], 3)
    with pytest.raises(InputError, match="rounds"):
        pareto.best_exact_setting(clients, start, 0)
    with pytest.raises(InputError, match="unknown server"):
        pareto.best_exact_setting(clients, start, 3, "adam")
