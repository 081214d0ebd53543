"""Paper 001's trained figures: they run without files at scale smoke, tune fairly and notice divergence."""

import os

import numpy as np
import pytest
import torch

from parley.core.errors import InputError
from parley.studies import Context, run_study
from parley.studies.paper001.client_rates import _claims
from parley.studies.paper001.problems import Problem, pictures, plays, writers
from parley.studies.paper001.trials import Arm, Trial, run, tuned


def here(load, scale: str) -> Problem:
    try:
        return load(scale)
    except InputError as error:
        if "data" in os.environ.get("PARLEY_REQUIRE", ""):
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize("name", ["001/fig6", "001/fig12", "001/fig13"])
def test_smoke_needs_no_files(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.setenv("PARLEY_DATA", str(tmp_path))
    result = run_study(name, "smoke", tmp_path / "out")
    assert [check for check in result.checks if not check.passed] == []
    assert len(result.files) == 2


def test_the_same_clients_take_part_whatever_the_arm():
    problem = writers("smoke")
    first, second = (
        run(problem, Arm("a", server, gamma=0.0, eta=1e-12), problem.tell, steps=1, rounds=2, every=1, seed=3)
        for server in ("none", "heavy-ball")
    )
    np.testing.assert_allclose(first.loss, second.loss, rtol=1e-9)  # the same start, hardly moved
    assert first.rounds.tolist() == [0, 1, 2]


def test_a_setting_that_diverges_is_noticed_and_never_chosen():
    problem = writers("smoke")
    wild = run(problem, Arm("wild", gamma=1.0, eta=1e30), problem.tell, steps=3, rounds=6, every=1, seed=0)
    assert wild.diverged
    chosen, table = tuned(
        problem, [Arm("a")], [(1.0, 1e30), (0.1, 0.03), (0.0, 1e-9)], lambda t: float(t.accuracy[-1]),
        Context("test", "smoke"), steps=5, rounds=4, every=2,
    )  # fmt: skip
    assert (chosen[0].gamma, chosen[0].eta) == (0.1, 0.03)
    assert table["a"][0]["score"] == -np.inf
    assert len(table["a"]) == 3


def curve(gamma: float, *losses: float) -> tuple[Arm, list[Trial]]:
    arm = Arm(f"gamma = {gamma:g}", gamma=gamma)
    values = np.array(losses)
    return arm, [Trial(arm, 0, np.arange(len(values)) * 10.0, values, values)]


def test_the_claims_tell_a_trade_off_from_none():
    def failed(*curves: tuple[Arm, list[Trial]]) -> list[str]:
        checks = _claims([arm for arm, _ in curves], {arm.name: trials for arm, trials in curves})
        return [check.name for check in checks if not check.passed]

    slow = curve(0.0, 2.0, 1.9, 1.5, 1.2, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
    middle = curve(0.1, 2.0, 1.5, 1.2, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.5, 0.5)
    fast = curve(1.0, 2.0, 1.0, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9)
    assert failed(slow, middle, fast) == []
    never_crossing = curve(1.0, 2.0, 1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.3, 0.2, 0.2, 0.2)
    assert "best gamma late" in failed(slow, middle, never_crossing)
    assert "best gamma early" in failed(slow, curve(0.1, *[2.0] * 11), curve(1.0, *[2.0] * 11))


@pytest.mark.parametrize("load", [writers, pictures, plays])
def test_problems_on_real_data_fit_their_networks(load):
    problem = here(load, "cpu")
    trial = run(problem, Arm("a", gamma=0.01, eta=0.01), problem.tell, steps=1, rounds=1, every=1, seed=0)
    assert np.isfinite(trial.loss).all()
    chance = np.log(problem.federation.info.outputs)
    assert 0.8 * chance < trial.loss[0] < 2 * chance


def test_writers_are_judged_on_samples_nothing_was_chosen_by():
    problem = here(writers, "cpu")
    assert len(problem.choose) + len(problem.tell) == 10_000
    assert len(problem.federation) == 539
    assert problem.tell.x.shape[1:] == (1, 14, 14)


def test_the_next_character_is_the_target_at_every_position():
    problem = here(plays, "cpu")
    data = problem.federation.client(problem.federation.ids[0])
    assert data.y.shape == data.x.shape
    assert torch.equal(data.y[:, :-1], data.x[:, 1:])
