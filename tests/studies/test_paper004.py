"""Paper 004's trained studies: they run without files at scale smoke, count what is sent and judge as they say."""

import os
from importlib.util import find_spec
from math import inf, isnan

import numpy as np
import pytest

from parley.core.errors import InputError
from parley.core.key import Key
from parley.models import ResNet20, build_module
from parley.studies import Context, run_study
from parley.studies.paper004.alphas import _shape, parts
from parley.studies.paper004.baselines import _Job, _problem, _Trial
from parley.studies.paper004.consensus import _claims
from parley.studies.paper004.figures import pictures
from parley.studies.paper004.summary import Mean, difference
from parley.studies.paper004.trials import SIZES, Arm, Job, Trial, compared, perform
from parley.studies.rates import best_rates
from parley.studies.spread import spread


@pytest.mark.parametrize("name", ["fig1", "table1", "fig2", "table2", "table3", "batchnorm", "fednova", "feddyn"])
def test_smoke_needs_no_files(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.setenv("PARLEY_DATA", str(tmp_path))
    result = run_study(f"004/{name}", "smoke", tmp_path / "out")
    assert [check for check in result.checks if not check.passed] == []
    assert len(result.files) == 2


def test_a_small_language_model_needs_no_files(monkeypatch: pytest.MonkeyPatch, tmp_path):
    if find_spec("transformers") is None:
        if "hf" in os.environ.get("PARLEY_REQUIRE", ""):
            pytest.fail("transformers is not installed")
        pytest.skip("transformers is not installed: pip install 'parley-fl[hf]'")
    monkeypatch.setenv("PARLEY_DATA", str(tmp_path))
    result = run_study("004/fig3", "smoke", tmp_path / "out")
    assert result.passed


def job(arm: Arm, rounds: int = 4, seed: int = 0) -> Job:
    return Job("smoke", arm, seed, rounds, 1)


def test_alpha_1_is_fedavg_whatever_the_layers_and_one_seed_gives_one_result():
    one, other = (perform(job(Arm(layers=count, data="digits", lr=0.1))) for count in (None, 1))
    np.testing.assert_array_equal(one.loss, other.loss)
    assert perform(job(Arm(data="digits", lr=0.1), seed=1)).loss[0] != one.loss[0]


def test_what_is_sent_is_counted_from_the_messages():
    head, body = parts("smoke", "digits")
    assert (head, body) == (8 * 10 + 10, (9 + 1) * 4 + (4 * 9 + 1) * 8 + (8 * 9 + 1) * 8)
    sent = perform(job(Arm(alpha=2, layers=2, data="digits", lr=0.1))).sent
    last_convolution = (8 * 9 + 1) * 8
    phi = body - last_convolution
    assert sent["down"] == sent["up"] == 4 * (head + last_convolution) + 2 * phi
    assert sent["buffers"] == 0


def test_table_2_of_the_paper_is_counted_exactly():
    module = build_module(ResNet20(), (3, 32, 32), 10, Key(0))
    sizes = [parameter.numel() for parameter in module.parameters()]
    head, body = sum(sizes[-2:]), sum(sizes[:-2])
    billions = [round(2 * 4000 * (head + body / alpha) / 1e9, 4) for alpha in SIZES["paper"].alphas]
    assert billions == [2.3436, 0.4729, 0.2390, 0.0987, 0.0520, 0.0286]


def test_more_local_steps_are_measured_in_the_same_rounds():
    context = Context("004/fig1", "smoke")
    arm = Arm(tau=10, data="digits")
    (trial,) = compared([arm], context)[arm]
    assert trial.rounds[-1] == SIZES["smoke"].rounds
    assert [len(own) for own in trial.consensus.values()] == [10, 10, 10, 10]
    assert trial.arm.lr in SIZES["smoke"].rates


def made(accuracy: list[float]) -> Trial:
    values = np.array(accuracy)
    return Trial(Arm(), 0, np.arange(len(values)) * 50.0, values, -values, {}, {}, "")


def test_results_are_told_where_every_arm_has_averaged():
    assert made([0.1, 0.9, 0.2, 0.9, 0.4]).final(last=100, told=2) == pytest.approx(0.3)
    assert made([0.1, 0.9, 0.2, 0.9, np.nan]).final(last=100, told=1) == 0.0


def test_intervals_are_students():
    assert Mean.of([1.0, 2.0, 3.0]).half == pytest.approx(4.302653 / np.sqrt(3))
    assert isnan(Mean.of([1.0]).half)
    assert difference(Mean.of([1.0, 2.0]), Mean.of([0.5, 1.5])).half == 0.0


def test_the_shape_tells_rise_and_fall():
    def failed(*accuracies: float) -> list[bool]:
        alphas = dict(zip((1, 5, 10, 25, 50, 100), (Mean.of([value]) for value in accuracies), strict=True))
        return [check.passed for check in _shape("x", alphas)]

    assert failed(0.46, 0.52, 0.52, 0.38, 0.28, 0.28) == [True, True, True]
    assert failed(0.50, 0.45, 0.40, 0.30, 0.25, 0.20) == [False, True, True]
    assert failed(0.46, 0.52, 0.52, 0.53, 0.53, 0.28) == [True, False, True]


def test_every_seed_has_to_agree_that_early_layers_are_closer():
    def passed(*seeds: list[float]) -> list[bool]:
        return [check.passed for check in _claims(np.array(seeds))]

    assert passed([1.0, 2.0, 3.0, 4.0, 9.0], [1.0, 1.5, 2.0, 2.0, 3.0]) == [True, True, True]
    assert passed([4.0, 3.0, 2.0, 1.0, 90.0]) == [True, True, False]
    assert passed([1.0, 2.0, 3.0, 4.0, 9.0], [9.0, 4.0, 3.0, 2.0, 1.0]) == [False, False, False]


def test_rates_are_chosen_from_one_grid_for_all():
    def scores(pairs: list[tuple[str, float]]) -> list[float]:
        assert len(pairs) == 6
        return [-abs(rate - (2.0 if arm == "a" else 4.0)) if rate > 1 else -inf for arm, rate in pairs]

    assert best_rates(["a", "b"], [1.0, 2.0, 4.0], scores) == {"a": 2.0, "b": 4.0}


def test_the_grid_goes_on_where_the_best_lies_at_its_end():
    tried: list[tuple[str, float]] = []

    def scores(pairs: list[tuple[str, float]]) -> list[float]:
        tried.extend(pairs)
        return [-abs(rate - {"a": 2.0, "b": 16.0, "c": 0.5}[arm]) for arm, rate in pairs]

    grid = [1.0, 2.0, 4.0]
    assert best_rates(["a", "b", "c"], grid, scores, further=5) == {"a": 2.0, "b": 16.0, "c": 0.5}
    assert sorted(tried[9:]) == [("b", 8.0), ("b", 16.0), ("b", 32.0), ("c", 0.25), ("c", 0.5)]
    assert best_rates(["b"], grid, scores, further=1) == {"b": 8.0}


def test_jobs_are_spread_over_processes_in_order():
    assert spread(abs, [-3, 2, -1], Context("x", "cpu"), "numbers") == [3, 2, 1]


def test_rounds_to_an_accuracy():
    values = np.array([0.1, 0.5, 0.7, 0.6])
    trial = _Trial(_Job("smoke", "FedAvg", 0.1, 1, 0, 6), np.array([0.0, 2.0, 4.0, 6.0]), values, -values)
    assert (trial.reaches(0.7), trial.reaches(0.8)) == (4.0, inf)


def test_rivals_train_on_clients_of_different_sizes():
    federation = _problem("smoke").federation
    sizes = [federation.size(client) for client in federation.ids]
    assert min(sizes) * 5 < max(sizes)


def test_sorted_clients_have_two_classes_each():
    try:
        problem = pictures("cpu", "cifar10", False)
    except InputError as error:
        if "data" in os.environ.get("PARLEY_REQUIRE", ""):
            raise
        pytest.skip(str(error))
    clients = [problem.federation.client(client) for client in problem.federation.ids]
    assert [sorted(set(own.y.tolist())) for own in clients] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert problem.tell.x.shape == (4000, 3, 16, 16)
    assert parts("cpu", "cifar10") == (650, 36_096)
