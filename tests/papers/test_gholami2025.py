"""Paper 004's trained studies: they run without files at scale smoke, count what is sent and judge as they say."""

import os
from dataclasses import replace
from importlib.util import find_spec
from math import inf, isnan

import numpy as np
import pytest

from parley.core.errors import InputError
from parley.core.key import Key
from parley.models import ResNet20, build_module
from parley.study.seeds import SeedMean
from parley_papers.catalogue import StudyContext, run_study
from parley_papers.gholami2025.alphas import _rise_and_fall, parameter_counts
from parley_papers.gholami2025.baselines import _problem, rounds_to_accuracy
from parley_papers.gholami2025.consensus import _claims, _without_last
from parley_papers.gholami2025.image_arms import SIZES, compared, final, image_arm
from parley_papers.gholami2025.image_problem import five_client_images
from parley_papers.training_problem import Recipe
from parley_papers.trials import Arm, ArmRun, trained


@pytest.mark.parametrize(
    ("name", "claims"),
    [
        ("fig1", 1),
        ("fednova", 1),
        ("feddyn", 1),
        *(
            pytest.param(*one, marks=pytest.mark.long)
            for one in (("table1", 2), ("fig2", 2), ("table2", 1), ("table3", 2), ("batchnorm", 1), ("resnet20", 2))
        ),
    ],
)
def test_smoke_needs_no_files_and_says_what_it_does_not_check(
    name: str, claims: int, monkeypatch: pytest.MonkeyPatch, tmp_path
):
    monkeypatch.setenv("PARLEY_DATA", str(tmp_path))
    result = run_study(f"004/{name}", "smoke", tmp_path / "out")
    assert [check for check in result.checks if check.passed is False] == []
    assert sum(check.passed is None for check in result.checks) == claims
    assert len(result.files) == 2


@pytest.mark.long
@pytest.mark.parametrize(("name", "package", "extra"), [("fig3", "transformers", "hf"), ("fig3-lora", "peft", "lora")])
def test_a_small_language_model_needs_no_files(
    name: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch, tmp_path
):
    if find_spec(package) is None:
        if extra in os.environ.get("PARLEY_REQUIRE", ""):
            pytest.fail(f"{package} is not installed")
        pytest.skip(f"{package} is not installed: pip install -c constraints.txt '.[{extra}]'")
    monkeypatch.setenv("PARLEY_DATA", str(tmp_path))
    result = run_study(f"004/{name}", "smoke", tmp_path / "out")
    assert [check.passed for check in result.checks] == [True, None, None]


def short(rounds: int = 4, **settings: object) -> Arm:
    made = image_arm("arm", "smoke", "digits", **settings)
    return replace(made, rounds=rounds, every=1).having(lr=0.1)


def trial_of(arm: Arm, seed: int = 0) -> ArmRun:
    (trial,) = trained([arm], [seed], StudyContext("test", "smoke"))["arm"]
    return trial


def test_alpha_1_is_fedavg_whatever_the_layers_and_one_seed_gives_one_result():
    one, other = (trial_of(short(layers=count)) for count in (None, 1))
    np.testing.assert_array_equal(one.loss, other.loss)
    assert trial_of(short(), seed=1).loss[0] != one.loss[0]


def test_what_is_sent_is_counted_from_the_messages():
    head, body = parameter_counts(five_client_images("smoke", "digits", False))
    assert (head, body) == (8 * 10 + 10, (9 + 1) * 4 + (4 * 9 + 1) * 8 + (8 * 9 + 1) * 8)
    sent = trial_of(short(alpha=2, layers=2)).metrics
    last_convolution = (8 * 9 + 1) * 8
    phi = body - last_convolution
    clients = 5
    assert sent["entries/down"].sum() == sent["entries/up"].sum()
    assert sent["entries/up"].tolist() == [clients * (head + last_convolution + phi * now) for now in (0, 1, 0, 1)]
    assert sent["entries/buffers"].sum() == 0


def test_table_2_of_the_paper_is_counted_exactly():
    module = build_module(ResNet20(), (3, 32, 32), 10, Key(0))
    sizes = [parameter.numel() for parameter in module.parameters()]
    head, body = sum(sizes[-2:]), sum(sizes[:-2])
    billions = [round(2 * 4000 * (head + body / alpha) / 1e9, 4) for alpha in SIZES["paper"].alphas]
    assert billions == [2.3436, 0.4729, 0.2390, 0.0987, 0.0520, 0.0286]


def test_more_local_steps_are_measured_in_the_same_rounds():
    arm = image_arm("arm", "smoke", "digits", tau=10)
    (trial,) = compared([arm], StudyContext("004/fig1", "smoke"))["arm"]
    assert trial.rounds[-1] == SIZES["smoke"].rounds / 2
    assert [len(v) for name, v in trial.metrics.items() if name.startswith("consensus/")] == [10, 10, 10, 10]
    assert trial.arm.algorithm.lr in SIZES["smoke"].rates
    doubled = replace(trial, accuracy=np.arange(len(trial.rounds), dtype=np.float64))
    assert trial.rounds.tolist() == [0, 2, 4, 6, 8, 10]
    assert final(doubled, replace(SIZES["smoke"], period=8, last=2)) == (2 + 4) / 2


def made(accuracy: list[float], every: float = 50.0) -> ArmRun:
    values = np.array(accuracy)
    return ArmRun(short(), 0, np.arange(len(values)) * every, values, -values)


def test_results_are_taken_where_every_arm_has_averaged():
    size = replace(SIZES["smoke"], period=100)
    assert final(made([0.1, 0.9, 0.2, 0.9, 0.4]), replace(size, last=2)) == pytest.approx(0.3)
    assert final(made([0.1, 0.9, 0.2, 0.9, np.nan]), replace(size, last=1)) == 0.0


def test_intervals_are_students():
    assert SeedMean.of([1.0, 2.0, 3.0]).half == pytest.approx(4.302653 / np.sqrt(3))
    assert isnan(SeedMean.of([1.0]).half)
    assert (SeedMean.of([1.0, 2.0]) - SeedMean.of([0.5, 1.5])).half == 0.0


def test_the_shape_tells_rise_and_fall():
    def passed(*accuracies: float) -> list[bool | None]:
        alphas = dict(zip((1, 5, 10, 25, 50, 100), (SeedMean.of([value]) for value in accuracies), strict=True))
        return [check.passed for check in _rise_and_fall("x", alphas)]

    assert passed(0.46, 0.52, 0.52, 0.38, 0.28, 0.28) == [True, True, True]
    assert passed(0.50, 0.45, 0.40, 0.30, 0.25, 0.20) == [False, True, True]
    assert passed(0.46, 0.52, 0.52, 0.53, 0.53, 0.28) == [True, False, True]


def test_every_seed_has_to_agree_that_early_layers_are_closer():
    def passed(*seeds: list[float]) -> list[bool | None]:
        distances = np.array(seeds)
        return [check.passed for check in (*_claims(distances), _without_last(distances))]

    assert passed([1.0, 2.0, 3.0, 4.0, 9.0], [1.0, 1.5, 2.0, 2.0, 3.0]) == [True, True, True]
    assert passed([4.0, 3.0, 2.0, 1.0, 90.0]) == [True, True, False]
    assert passed([1.0, 2.0, 3.0, 4.0, 9.0], [9.0, 4.0, 3.0, 2.0, 1.0]) == [False, False, False]


def test_rounds_to_an_accuracy():
    trial = made([0.1, 0.5, 0.7, 0.6], every=2.0)
    assert (rounds_to_accuracy(trial, 0.7), rounds_to_accuracy(trial, 0.8)) == (4.0, inf)


def test_baselines_train_on_clients_of_different_sizes():
    federation = _problem("smoke").federation
    sizes = [federation.size(client) for client in federation.ids]
    assert min(sizes) * 5 < max(sizes)


def test_sorted_clients_have_two_classes_each():
    try:
        problem = Recipe(five_client_images, ("cpu", "cifar10", False))()
    except InputError as error:
        if "data" in os.environ.get("PARLEY_REQUIRE", ""):
            raise
        pytest.skip(str(error))
    clients = [problem.federation.client(client) for client in problem.federation.ids]
    assert [sorted(set(client.y.tolist())) for client in clients] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert problem.test.x.shape == (4000, 3, 16, 16)
    assert parameter_counts(five_client_images("cpu", "cifar10", False)) == (650, 36_096)
