"""Partial cohorts of unequal sizes: every method has its line, and the lines can fail."""

from dataclasses import replace

import numpy as np
import pytest

from parley.algorithms import algorithms
from parley.cli.main import main
from parley.conformance import TOLERANCE, cases, partial_cohorts, planned
from parley.conformance.analysis_cases import analyses
from parley.conformance.boosting_cases import functional_cohorts
from parley.conformance.case import Case
from parley.conformance.distilled_cases import distilled_cohorts
from parley.conformance.members import members
from parley.conformance.partial_cohorts import MOVES, SETTLES
from parley.conformance.problem import quadratic_problem, weights_of
from parley.conformance.quadratics import QuadraticSetting
from parley.conformance.statistics_cases import statistics
from parley.conformance.tree_cases import tree_cohorts
from parley.engine.settings import Sampling
from parley_papers.harness import Check


def test_every_method_has_a_line_about_partial_cohorts():
    known = {name for name in algorithms if algorithms[name].__module__.startswith("parley.")}
    lines = [*partial_cohorts.partial(), *tree_cohorts(), *functional_cohorts(), *distilled_cohorts()]
    lines += [case for case in [*statistics(), *analyses()] if case.statement.startswith("2 of 4 clients")]
    assert {case.method for case in lines} == known
    assert {"scaffold", "feddyn", "fedals-scaffold"} <= {
        c.method for c in partial_cohorts.partial() if c.statement == SETTLES
    }


def moving() -> list[Case]:
    """Those that average replies by weight; NTK-FL pools the samples of the round, so weights mean nothing to it."""
    return [case for case in partial_cohorts.partial() if case.statement == MOVES and "ntk" not in case.method]


@pytest.mark.parametrize("case", moving(), ids=lambda case: case.method)
def test_other_weights_than_stated_are_noticed(case: Case, monkeypatch: pytest.MonkeyPatch):
    assert case.check("inline").passed
    monkeypatch.setattr(partial_cohorts, "HALF", Sampling(size=2, weights="uniform"))
    assert not case.check("inline").passed


def test_methods_that_never_settle_are_moved_away_from_where_they_rest_with_everybody():
    given = quadratic_problem()
    setting = QuadraticSetting(given.clients, given.sizes, given.start)
    named = {case.method for case in moving()}
    for member in members(setting, 3, TOLERANCE):
        if member.name in named:
            resting = type(given)(**(vars(given) | {"start": member.goal(given.clients)}))
            assert np.linalg.norm(weights_of(resting.run(member.method, 1)) - resting.start) < TOLERANCE
            sampled = resting.run(member.method, 1, cohort=partial_cohorts.HALF)
            assert np.linalg.norm(weights_of(sampled) - resting.start) > 1e-3


def test_without_arguments_all_methods_are_planned_where_they_can_run():
    plan = planned()
    assert {case.method for case, _ in plan} == {case.method for case in cases()}
    assert all(case.stackable or runtime == "inline" for case, runtime in plan)


def test_the_command_without_arguments(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """As printed; only one method is trained here, `test_cases` has the others."""
    trained = Case.check

    def check(case: Case, runtime: str) -> Check:
        quick = case if case.method == "kernel-fedprox" else replace(case, measure=lambda _: 0.0)
        return trained(quick, runtime)

    monkeypatch.setattr(Case, "check", check)
    with pytest.raises(SystemExit) as ended:
        main(["conformance"])
    assert ended.value.code == 0
    assert f"all {len(planned())} checks passed" in capsys.readouterr().out


@pytest.mark.slow
def test_the_command_without_arguments_in_full(capsys: pytest.CaptureFixture[str]):
    """What fails is what `test_cases` lists as unmet, and nothing else."""
    with pytest.raises(SystemExit) as ended:
        main(["conformance"])
    out = capsys.readouterr().out
    missed = [line for line in out.splitlines() if "✗" in line]
    assert all(SETTLES in line for line in missed)
    assert ended.value.code == bool(missed)
