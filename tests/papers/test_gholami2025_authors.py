"""The authors' recipe of paper 004: its parts do what they say, and its verdict is the one written before the runs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from parley import Evaluation, FedALS, Study, train
from parley.data import digits
from parley.engine.listeners import Listener
from parley.models import mlp
from parley.store.records import Metric
from parley.store.runs import RunStore
from parley.study.seeds import SeedMean
from parley_papers.catalogue import StudyContext, run_study
from parley_papers.gholami2025.authors_curves import CIFAR10, CIFAR10_50, CIFAR100, EARLY, LATE, Points, authors_curve
from parley_papers.gholami2025.authors_points import deviations
from parley_papers.gholami2025.authors_recipe import (
    LENGTHS,
    SmokeMoments,
    authors_arm,
    held_out,
    mixture,
    re_estimate,
    result,
    sorted_images,
)
from parley_papers.gholami2025.cifar100 import EQUAL_TRAFFIC, NEAR, verdict
from parley_papers.training_problem import Recipe
from parley_papers.trials import trained


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "claims"), [("authors", 2), ("full-size", 2), ("tau50", 3), ("groupnorm", 3), ("fig1-resnet20", 6)]
)
def test_smoke_judges_no_claim(name: str, claims: int, monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.setenv("PARLEY_DATA", str(tmp_path))
    made = run_study(f"004/{name}", "smoke", tmp_path / "out")
    assert [check.passed for check in made.checks] == [True, *[None] * claims]


def test_distance_from_the_authors_is_counted_in_their_deviations():
    theirs = Points(np.array([4.0, 8.0]), np.array([0.2, 0.4]), np.array([0.1, 0.05]))
    ours = [Points(np.array([4.0, 8.0]), np.array(own), np.zeros(2)) for own in ([0.3, 0.2], [0.5, 0.4])]
    np.testing.assert_allclose(deviations(ours, theirs), [2.0, -2.0])


@pytest.mark.long
def test_smoke_needs_no_files_and_decides_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.setenv("PARLEY_DATA", str(tmp_path))
    made = run_study("004/cifar100", "smoke", tmp_path / "out")
    assert [check.passed for check in made.checks] == [True, *[None] * 5]
    assert made.data["verdict after the first end"] in ("in part", "not", "undecided")


def arm(steps: int = 8, head: int = 2, body: int = 4):
    made = authors_arm("arm", Recipe(sorted_images, ("digits", 8)), head, body, SmokeMoments)
    return replace(made, rounds=steps).having(lr=0.25)


def test_rounds_of_one_step_are_the_rounds_of_tau_steps():
    """With full batches, where no draw of samples differs, in both parts and at every average of all."""
    federation = digits().split("sorted", 3, seed=0)
    common = {"lr": 0.05, "batch": 0, "options": {"momentum": 0.9, "weight_decay": 1e-4}}
    whole = FedALS(steps=3, alpha=2, layers=1, **common)
    single = FedALS(steps=1, periods={"1.*": 6, "*": 3}, report=1, **common)
    every = Evaluation(every=1000)
    for rounds in (2, 4):
        coarse = train(whole, federation, model=mlp(8), rounds=rounds, evaluation=every, runtime="inline")
        fine = train(single, federation, model=mlp(8), rounds=3 * rounds, evaluation=every, runtime="inline")
        for name, value in coarse.model()["model"].items():
            torch.testing.assert_close(fine.model()["model"][name], value, rtol=1e-4, atol=1e-6)


def test_both_moments_are_measured_where_results_are_taken():
    length, (trial,) = LENGTHS["smoke"], trained([arm()], [0], StudyContext("test", "smoke"))["arm"]
    assert {name: len(values) for name, values in trial.metrics.items()} == {
        f"moment/{moment}/{how}": 2 for moment in ("authors", "after") for how in ("averaged", "re-estimated")
    }
    # The engine's own evaluation is of the same model at the same moment.
    np.testing.assert_allclose(trial.metrics["moment/after/averaged"], trial.accuracy[1:])
    values = trial.metrics["moment/authors/averaged"]
    assert result(trial, length, "authors", "averaged", 8) == pytest.approx(values.mean())
    assert [step for step in range(1, 101) if LENGTHS["cpu"].window(6000 + 10 * step)][::9] == [10, 100]
    assert result(replace(trial, metrics={}), length, "authors", "averaged", 8) == 0.0


def test_a_trial_goes_on_and_its_first_rounds_stay_what_they_were(tmp_path):
    context = StudyContext("test", "smoke", store=tmp_path / "runs.db")
    (first,) = trained([arm(8)], [0], context)["arm"]
    (longer,) = trained([arm(12)], [0], context)["arm"]
    (again,) = trained([arm(8)], [0], context)["arm"]
    (fresh,) = trained([arm(12)], [0], StudyContext("test", "smoke"))["arm"]
    assert first.run == longer.run == again.run
    for one, other in ((longer, fresh), (again, first)):
        np.testing.assert_array_equal(one.rounds, other.rounds)
        np.testing.assert_array_equal(one.loss, other.loss)
        for name, values in one.metrics.items():
            np.testing.assert_array_equal(values, other.metrics[name])
    with RunStore(tmp_path / "runs.db") as store:
        assert [info.rounds for info in store.runs()] == [12]


def test_statistics_are_re_estimated_from_what_the_layers_see():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.9)).double().eval()
    x = torch.randn(40, 3, dtype=torch.float64)
    re_estimate(module, x, batch=10)
    seen = module[0](x).detach().reshape(4, 10, 4)
    torch.testing.assert_close(module[1].running_mean, seen.mean((0, 1)))
    torch.testing.assert_close(module[1].running_var, seen.var(1).mean(0))
    assert not any(layer.training for layer in module.modules())


def test_samples_are_held_out_class_by_class_and_mixed_for_statistics():
    data = digits()
    rest, held = held_out(data, 7)
    assert np.bincount(held.y.numpy()).tolist() == [7] * 10
    assert len(rest.x) + len(held) == len(data.x)
    federation = rest.split("sorted", 5, seed=0)
    pooled = mixture(federation, 50)
    assert len(pooled) == 50
    owners = [sum(bool((federation.client(i).x == x).flatten(1).all(1).any()) for x in pooled) for i in federation.ids]
    assert owners == [10] * 5


def intervals(near: tuple[float, float], far: tuple[float, float], later: tuple[float, float] | None = None):
    """Gains of three seeds whose 95% intervals have these ends; `later`: at the second moment against tau = 5."""

    def spread(ends: tuple[float, float]) -> SeedMean:
        middle, half = (ends[0] + ends[1]) / 2, (ends[1] - ends[0]) / 2
        step = half * 3**0.5 / 4.302652729749464
        made = SeedMean.of([middle - step, middle, middle + step])
        assert (made.value - made.half, made.value + made.half) == pytest.approx(ends)
        return made

    return {
        (NEAR, "authors"): spread(near),
        (NEAR, "after"): spread(later or near),
        (EQUAL_TRAFFIC, "authors"): spread(far),
        (EQUAL_TRAFFIC, "after"): spread(far),
    }


def test_the_verdict_follows_the_rules():
    def said(*ends, past: bool = True, full: bool = False) -> str:
        return verdict(intervals(*ends), 0.018, past=past, full=full)

    assert said((0.01, 0.05), (0.02, 0.1), full=True) == "reproduced"
    assert said((0.01, 0.05), (0.02, 0.1)) == "in part"  # on smaller pictures
    assert said((0.01, 0.05), (-0.02, 0.1), full=True) == "in part"  # against tau = 5 only
    assert said((-0.01, 0.05), (0.02, 0.1), (0.01, 0.05), full=True) == "in part"  # at one moment
    assert said((-0.04, 0.01), (0.02, 0.1)) == "not"
    assert said((-0.04, 0.01), (0.02, 0.1), past=False) == "undecided"
    assert said((-0.04, 0.01), (0.02, 0.1), (-0.04, 0.02)) == "undecided"
    assert said((-0.01, 0.05), (0.02, 0.1)) == "undecided"


def test_the_authors_points_are_whole():
    for curves, steps in ((CIFAR10, EARLY), (CIFAR100, LATE), (CIFAR10_50, LATE)):
        assert {len(values) for own in curves.values() for values in own} == {len(steps)}
    shown = authors_curve(CIFAR100, NEAR, LATE, 7000)
    assert (shown.rounds[-1], shown.accuracy[-1], shown.deviation[-1]) == (7000, 0.4038, 0.0071)


class Norm(Listener):
    """The norm of the server's model."""

    def start(self, run, rounds):
        self.run = run

    def evaluate(self, number, state):
        model = self.run.learned.message(state)["model"]
        return {"norm": Metric(float(sum(value.square().sum() for value in model.values())))}


def test_a_listener_measures_the_state_after_a_round():
    federation = digits().split("iid", 3, seed=0)
    run = train(Study(FedALS(alpha=1), federation, model=mlp(4), rounds=3, runtime="inline"), listeners=[Norm()])
    rounds, values = run.series("norm")
    assert rounds.tolist() == [1, 2, 3]
    assert values[-1] == pytest.approx(float(sum(value.square().sum() for value in run.model()["model"].values())))
