"""Every line of `parley conformance`, on one client after the other and on stacks."""

import numpy as np
import pytest

from parley.algorithms import algorithms
from parley.algorithms.averaging.baselines import Centralised
from parley.algorithms.averaging.local_update import FedAvg
from parley.conformance import cases, conformance, table
from parley.conformance.analysis_cases import analyses
from parley.conformance.boosting_cases import functional, functional_cohorts
from parley.conformance.case import equals, settles
from parley.conformance.distilled_cases import distilled, distilled_cohorts
from parley.conformance.equivalences import equivalences
from parley.conformance.fixed_points import corrected, family, normalised, parts, shared
from parley.conformance.kernel_cases import regression
from parley.conformance.ntk_cases import tangent
from parley.conformance.partial_cohorts import partial
from parley.conformance.personal_cases import personal, wrapped
from parley.conformance.problem import dyadic_problem, quadratic_problem
from parley.conformance.statistics_cases import statistics
from parley.conformance.tct_cases import convexified
from parley.conformance.tree_cases import tree_cohorts, trees
from parley.core.errors import InputError, UnsupportedError

CASES = [
    *corrected(),
    *normalised(),
    *parts(),
    *shared(),
    *equivalences(),
    *regression(),
    *tangent(),
    *partial(),
    *personal(),
    *wrapped(),
    *trees(),
    *tree_cohorts(),
    *functional(),
    *functional_cohorts(),
    *distilled(),
    *distilled_cohorts(),
    *convexified(),
    *statistics(),
    *analyses(),
]
FAMILY = family()


@pytest.mark.parametrize("runtime", ["inline", pytest.param("stacked", marks=pytest.mark.long)])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.method}: {case.statement}")
def test_it_holds(case, runtime):
    if runtime == "stacked" and not case.stackable:
        with pytest.raises(UnsupportedError, match=r"cannot take this run"):
            case.check(runtime)
        return
    check = case.check(runtime)
    assert check.passed, check


@pytest.mark.parametrize("case", FAMILY, ids=lambda case: f"{case.method}: {case.statement}")
def test_paper_001s_family_holds(case):
    check = case.check("stacked")
    assert check.passed, check


def test_every_registered_algorithm_is_held_against_something():
    named = {case.method for case in [*CASES, *FAMILY]}
    own = {name for name in algorithms if algorithms[name].__module__.startswith("parley.")}
    assert own <= named


def test_a_method_that_settles_elsewhere_fails():
    given = quadratic_problem()
    wrong = settles("fedavg", "the true optimum", given, FedAvg(lr=0.1, steps=3, batch=None), given.clients.c[0], 60)
    assert not wrong.check("inline").passed
    other = equals("fedavg", "is centralised", given, (FedAvg(lr=0.1, steps=3), 2), (Centralised(lr=0.1, steps=3), 2))
    assert not other.check("inline").passed
    assert "FAILED" in str(table([other.check("inline")]).renderables[1])


def test_the_optima_differ_enough_to_tell_methods_apart():
    clients = quadratic_problem().clients
    points = [clients.empirical_minimiser, *(clients.minimiser(0.1, [1.0] * k) for k in (2, 3, 6))]
    apart = [np.linalg.norm(a - b) for i, a in enumerate(points) for b in points[:i]]
    assert min(apart) > 1e-3


def test_the_dyadic_problem_involves_no_rounding():
    """Float64 and exact fractions give the same numbers."""
    from fractions import Fraction

    given = dyadic_problem()
    A, c, x = given.clients.A[0], given.clients.c[0], given.start
    exact = [Fraction(value) for value in x]
    for _ in range(8):
        x = x - 0.125 * (A @ (x - c))
        away = [value - Fraction(own) for value, own in zip(exact, c, strict=True)]
        exact = [
            value - Fraction(1, 8) * sum(Fraction(a) * b for a, b in zip(row, away, strict=True))
            for value, row in zip(exact, A, strict=True)
        ]
    assert [Fraction(value) for value in x] == exact


def test_unknown_and_unrecorded_algorithms():
    with pytest.raises(InputError, match="did you mean 'scaffold'"):
        cases("scafold")
    assert {case.method for case in cases("fednova")} == {"fednova"}
    assert all(check.passed for check in conformance("fednova", ["inline"]))
