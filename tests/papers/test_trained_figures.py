"""Paper 001's trained figures: they run without files at scale smoke, and their claims can fail."""

import os

import numpy as np
import pytest
import torch

from parley.core.errors import InputError
from parley_papers.catalogue import StudyContext, run_study
from parley_papers.charles2021.client_rates import _trade_off, overtakes
from parley_papers.charles2021.momentum import MOMENTA, PLAIN, STRENGTHS, _claims
from parley_papers.charles2021.problems import characters, dirichlet_images, pachinko_images, writers
from parley_papers.charles2021.trained_arms import having_rates, local_update
from parley_papers.figures.training_curves import ArmCurve, training_curves
from parley_papers.training_problem import Recipe, TrainingProblem
from parley_papers.trials import ArmRun, trained


def here(load, scale: str) -> TrainingProblem:
    try:
        return Recipe(load, (scale,))()
    except InputError as error:
        if "data" in os.environ.get("PARLEY_REQUIRE", ""):
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize(("name", "claims"), [
    ("001/fig6", 8), ("001/fig12", 5), ("001/fig13", 5), pytest.param("001/fig12-cifar100", 5, marks=pytest.mark.long),
    pytest.param("001/fig13-long", 5, marks=pytest.mark.long),
])  # fmt: skip
def test_smoke_needs_no_files_and_says_what_it_does_not_check(
    name: str, claims: int, monkeypatch: pytest.MonkeyPatch, tmp_path
):
    monkeypatch.setenv("PARLEY_DATA", str(tmp_path))
    result = run_study(name, "smoke", tmp_path / "out")
    assert [check for check in result.checks if check.passed is False] == []
    assert sum(check.passed is None for check in result.checks) == claims
    assert len(result.files) == 2
    assert (tmp_path / "out" / "runs.db").exists()


@pytest.mark.parametrize("server", ["none", "nesterov", "heavy-ball"])
def test_arms_have_the_server_and_rates_they_are_given(server: str):
    arm = local_update("a", Recipe(writers, ("smoke",)), steps=3, rounds=2, every=1, server=server, alpha=0.5)
    made = having_rates(arm, (0.2, 0.3)).algorithm
    assert (made.lr, made.server.lr, made.alpha, made.steps, made.batch) == (0.2, 0.3, 0.5, 3, 20)
    assert getattr(made.server, "momentum", 0.0) == (0.0 if server == "none" else 0.9)


def curve(*losses: float) -> list[ArmRun]:
    values = np.array(losses)
    arm = local_update("a", Recipe(writers, ("smoke",)), steps=1, rounds=1, every=1)
    return [ArmRun(arm, 0, np.arange(len(values)) * 10.0, values, values)]


def test_curves_go_as_far_as_all_seeds_got():
    trials = [*curve(0.1, 0.5, 0.9), *curve(0.3, 0.7)]
    (axes,) = training_curves({"": [ArmCurve("a", trials, 0)]}, "accuracy", "").axes
    (line,) = axes.get_lines()
    np.testing.assert_allclose(line.get_xydata(), [[0, 0.2], [10, 0.6]])


def test_the_claims_tell_a_trade_off_from_none():
    def failed(**curves: list[ArmRun]) -> list[str]:
        checks = _trade_off(dict(zip((0.0, 0.1, 1.0), curves.values(), strict=True)))
        return [check.name for check in checks if not check.passed]

    slow = curve(2.0, 1.9, 1.5, 1.2, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
    middle = curve(2.0, 1.5, 1.2, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.5, 0.5)
    fast = curve(2.0, 1.0, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9)
    assert failed(slow=slow, middle=middle, fast=fast) == []
    never_crossing = curve(2.0, 1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.3, 0.2, 0.2, 0.2)
    assert "best gamma late" in failed(slow=slow, middle=middle, fast=never_crossing)
    assert "best gamma early" in failed(slow=slow, middle=curve(*[2.0] * 11), fast=curve(*[2.0] * 11))


def test_from_which_round_on_a_smaller_gamma_is_ahead():
    slow, fast = curve(2.0, 1.9, 0.9, 1.0, 0.5), curve(2.0, 1.0, 1.0, 0.8, 0.7)
    assert overtakes({0.0: slow, 1.0: fast}) == {"0 below 1": 40.0}
    assert overtakes({0.0: fast, 1.0: slow}) == {"0 below 1": None}


def test_the_claims_tell_momentum_that_harms():
    def failed(**changed: float) -> int:
        values = dict.fromkeys((PLAIN, *MOMENTA, *STRENGTHS), 0.9) | changed
        return sum(not check.passed for check in _claims(values, values))

    assert failed() == 0
    assert failed(Nesterov=0.88) == 2
    assert failed(**{"heavy ball": 0.95}) == 0
    assert failed(**{"alpha = 1": 0.95}) == 2


@pytest.mark.parametrize("load", [writers, dirichlet_images, pachinko_images, characters])
def test_problems_on_real_data_fit_their_networks(load):
    problem = here(load, "cpu")
    arm = local_update("a", Recipe(load, ("cpu",)), steps=1, rounds=1, every=1)
    (trial,) = trained([having_rates(arm, (0.01, 0.01))], [0], StudyContext("test", "smoke"))["a"]
    assert np.isfinite(trial.loss).all()
    chance = np.log(problem.federation.info.outputs)
    assert 0.8 * chance < trial.loss[0] < 2 * chance


def test_writers_are_evaluated_on_samples_nothing_was_chosen_by():
    problem = here(writers, "cpu")
    assert len(problem.validation) + len(problem.test) == 10_000
    assert len(problem.federation) == 539
    assert problem.test.x.shape[1:] == (1, 14, 14)


def test_the_next_character_is_the_target_at_every_position():
    problem = here(characters, "cpu")
    data = problem.federation.client(problem.federation.ids[0])
    assert data.y.shape == data.x.shape
    assert torch.equal(data.y[:, :-1], data.x[:, 1:])
