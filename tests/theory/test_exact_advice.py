"""With A_i and c_i known the advice is judged by the actual distance at round T alone."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.core.errors import InputError
from parley.theory import pareto
from parley.theory.servers import SERVERS, advance
from parley.theory.surrogate import All
from parley_papers.charles2021.advice import best_of_grid, exact_problem


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("seed", [2, 4, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (3, 5))])
def test_within_one_percent_of_the_best_grid_point(server: str, seed: int) -> None:
    clients, start, rounds = exact_problem(seed)
    advice = pareto.best_exact_setting(clients, start, rounds, server, unit=2.0**-53)
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
        assert (solved.K, solved.gamma, solved.alpha, solved.server.momentum) == (1, 0.0, 0.0, 0.0)
        assert solved.distance < solved.rounding


@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 10**6), server=st.sampled_from(SERVERS), form=st.sampled_from(["gradients", "delta"]))
def test_what_is_advised_can_be_executed(seed: int, server: str, form: str) -> None:
    """Steps that single precision can add, servers that are stable, proximal terms and momenta that do something."""
    clients, start, rounds = exact_problem(seed)
    best = pareto.best_exact_setting(clients, start, rounds, server, form=form, max_steps=15).best
    assert (best.K, best.gamma) == (1, 0.0) or best.gamma * (clients.L + best.alpha) >= 1e-3 * (1 - 1e-9)
    assert best.alpha == 0 or 0.1 * clients.mu <= best.alpha <= 10 * clients.L
    assert best.server.momentum == 0 or best.server.momentum >= 0.01
    assert best.server.rho < 1
    descent = pareto.Rounds(clients, start).descent(best.gamma, best.K, best.alpha)
    assert best.server.eta * descent.eigenvalues[-1] < 2 * (1 + best.server.momentum)
    if form == "delta" and best.K > 1:
        assert best.server.eta / best.gamma < 1e4


@settings(deadline=None, max_examples=3)
@given(
    seed=st.integers(0, 10**6),
    server=st.sampled_from(SERVERS),
    limits=st.lists(st.integers(1, 30), min_size=2, max_size=3, unique=True),
)
def test_more_steps_allowed_are_never_worse(seed: int, server: str, limits: list[int]) -> None:
    clients, start, rounds = exact_problem(seed)
    errors = [
        pareto.best_exact_setting(clients, start, rounds, server, max_steps=limit).best.error
        for limit in sorted(limits)
    ]
    assert errors == sorted(errors, reverse=True)


def test_larger_steps_allowed_are_hardly_ever_worse() -> None:
    """The search for gamma is numerical: to 1%."""
    for seed in (1, 3, 5):
        clients, start, rounds = exact_problem(seed)
        errors = [
            pareto.best_exact_setting(
                clients, start, rounds, "none", max_steps=20, max_gamma=None if share is None else share / clients.L
            ).best.error
            for share in (0.0, 0.01, 0.1, 0.5, 0.9, None)
        ]
        assert all(later <= 1.01 * earlier for earlier, later in pairwise(errors))


def test_refusals() -> None:
    clients, start, _ = exact_problem(0)
    with pytest.raises(InputError, match="one per dimension"):
        pareto.best_exact_setting(clients, start[:-1], 3)
    with pytest.raises(InputError, match="rounds"):
        pareto.best_exact_setting(clients, start, 0)
    with pytest.raises(InputError, match="unknown server"):
        pareto.best_exact_setting(clients, start, 3, "adam")
