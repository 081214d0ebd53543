"""Advice from three constants, held against what it does; and the exact mode against a grid."""

import numpy as np
import pytest

from parley.theory.servers import SERVERS
from parley_papers.catalogue import run_study
from parley_papers.charles2021.advice import QUANTILES, judge, problem


@pytest.mark.long
def test_every_check_holds_and_the_distributions_are_reported():
    """Heavy ball within twice the best for at least 75 of the seeds 0-99, for both kinds of clients."""
    result = run_study("001/advice", "smoke")
    assert [check for check in result.checks if not check.passed] == []
    assert result.figures
    for kind in ("related", "unrelated"):
        for server in SERVERS:
            own = result.data["regret"][kind][server]
            assert len(own["all"]) == 100
            assert own["quantiles"] == pytest.approx(np.quantile(own["all"], QUANTILES))
            assert own["within_2x"] == np.mean(np.array(own["all"]) <= 2)
        assert result.data["regret"][kind]["heavy-ball"]["within_2x"] >= 0.75


def test_regret_is_the_advised_distance_over_a_grid_point_at_most():
    """Mini-batch SGD is a point of the grid, so that no advice can be judged better than by it."""
    model, rounds = problem(1, related=True)
    from parley.theory.advice import best_setting
    from parley.theory.servers import tune

    for server, judged in judge(model, rounds).items():
        best = best_setting(
            rounds=rounds,
            start_distance=model.start_distance,
            C=model.clients.C,
            L=model.clients.L,
            mu=model.clients.mu,
            server=server,
        ).best
        actual = model.descent(best.gamma, best.K).distance(server, best.server.eta, best.server.momentum, rounds)
        plain = tune(server, model.clients.L, model.clients.mu)
        sgd = model.descent(0.0, 1).distance(server, plain.eta, plain.momentum, rounds)
        assert judged.regret >= float(actual / sgd) * (1 - 1e-6)
        assert judged.tightness == pytest.approx(float(actual) / best.bound, rel=1e-6)
