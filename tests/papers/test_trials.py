"""Trials: ordinary runs of a store, reused only where nothing has changed, resumed, tuned with equal budgets."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import psutil
import pytest

from parley.algorithms.averaging.local_update import FedAvg
from parley.core.errors import InputError
from parley.data import Dirichlet, iris
from parley.engine.listeners import Listener
from parley.models import linear
from parley.report import Comparison
from parley.store.records import RoundRecord
from parley.store.runs import RunStore
from parley_papers import trials
from parley_papers.catalogue import StudyContext, studies
from parley_papers.rates import best_settings
from parley_papers.spread import spread
from parley_papers.training_problem import Recipe, TrainingProblem, between, official_test
from parley_papers.trials import Arm, having_rate, trained, tuned
from parley_papers.trials.settings import settings
from parley_papers.versions import PAPERS, RESULTS, results_version


def flowers(clients: int = 4) -> TrainingProblem:
    data = iris()
    test = official_test(data)
    federation = data.split(Dirichlet(1.0), clients, seed=0)
    return TrainingProblem(federation, linear(), between(test, 0, 15), between(test, 15, None), 2, 8, "iris")


def arm(name: str = "FedAvg", lr: float = 0.1, rounds: int = 4, **settings: object) -> Arm:
    return Arm(name, Recipe(flowers), FedAvg(lr=lr, steps=2, batch=8), rounds, 2, **settings)


def context(folder: Path | None = None) -> StudyContext:
    return StudyContext("test", "smoke", store=None if folder is None else folder / "runs.db")


def test_trials_are_runs_that_can_be_listed_and_compared(tmp_path: Path) -> None:
    found = trained([arm(), arm("slow", 0.01)], [0, 1], context(tmp_path))
    with RunStore(tmp_path / "runs.db", create=False) as store:
        infos = store.runs()
        assert [(info.name, info.status, info.rounds) for info in infos] == [
            ("FedAvg", "finished", 4),
            ("FedAvg", "finished", 4),
            ("slow", "finished", 4),
            ("slow", "finished", 4),
        ]
        assert infos[0].config["algorithm"]["name"] == "fedavg"
        assert [trial.run for runs in found.values() for trial in runs] == [info.id for info in infos]
        comparison = Comparison.stored(store, [info.id for info in infos])
    lasts = [trial.accuracy[-1] for runs in found.values() for trial in runs]
    assert [seed for line in comparison.lines for seed in line.last.seeds] == lasts
    assert [len(line.group.runs) for line in comparison.lines] == [2, 2]  # seeds of an arm are one group


def test_what_is_stored_is_what_would_be_trained(tmp_path: Path) -> None:
    (first,), (again,), (unstored,) = (
        trained([arm()], [3], where)["FedAvg"] for where in (context(tmp_path), context(tmp_path), context())
    )
    assert first.run == again.run != ""
    assert unstored.run == ""
    for other in (again, unstored):
        np.testing.assert_array_equal(first.loss, other.loss)
        np.testing.assert_array_equal(first.rounds, other.rounds)
    assert first.rounds.tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    "other",
    [
        arm(lr=0.2),
        arm(rounds=6),
        arm(weights="size"),
        arm().having(batch=4),
        replace(arm(), problem=Recipe(flowers, (5,))),
        replace(arm(), every=1),
    ],
)
def test_another_setting_is_another_run(tmp_path: Path, other: Arm) -> None:
    (first,) = trained([arm()], [0], context(tmp_path))["FedAvg"]
    (second,) = trained([other], [0], context(tmp_path))["FedAvg"]
    assert first.run != second.run


def test_a_run_of_another_version_of_the_results_is_not_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = trained([arm()], [0], context(tmp_path))["FedAvg"]
    monkeypatch.setitem(RESULTS, "test", 2)
    (second,) = trained([arm()], [0], context(tmp_path))["FedAvg"]
    assert first.run != second.run


def test_every_paper_and_family_has_a_version_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    families = {name.partition("/")[0] for name in studies}
    assert {PAPERS.get(family, family) for family in families} <= set(RESULTS)
    monkeypatch.setitem(RESULTS, "gholami2025", 7)
    assert results_version("004/table2") == 7 != results_version("003/table1")


def kept_context(folder: Path) -> StudyContext:
    return StudyContext("test/kept", "smoke", keep=folder)


def test_kept_trials_are_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wild = arm("wild", 1e30)
    before = trained([arm(), wild], [0, 1], kept_context(tmp_path))
    assert (tmp_path / "test/kept.json").stat().st_size < 20_000
    monkeypatch.setattr(trials, "_perform", None)
    again = kept_context(tmp_path)
    after = trained([arm(), wild], [0, 1], again)
    assert (again.trials, again.kept) == (4, 4)
    for name, runs in before.items():
        for one, other in zip(runs, after[name], strict=True):
            np.testing.assert_array_equal(one.rounds, other.rounds)
            np.testing.assert_array_equal(one.accuracy, other.accuracy)
            np.testing.assert_array_equal(one.loss, other.loss)
    assert after["wild"][0].diverged


@pytest.mark.parametrize("change", ["setting", "seed", "rounds", "version", "default"])
def test_a_kept_trial_of_something_else_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    trained([arm()], [0], kept_context(tmp_path))
    other, seed = arm(lr=0.2) if change == "setting" else arm(rounds=6) if change == "rounds" else arm(), 0
    if change == "seed":
        seed = 1
    if change == "version":
        monkeypatch.setitem(RESULTS, "test", 2)
    if change == "default":  # what is stored was trained with another default of a setting that nobody set
        file = tmp_path / "test/kept.json"
        text = file.read_text()
        assert '"order": null' in text or '"order": "' in text
        file.write_text(re.sub(r'"order": (null|"[^"]*")', '"order": "another"', text))
    again = kept_context(tmp_path)
    trained([other], [seed], again)
    assert (again.trials, again.kept) == (1, 0)


def test_a_setting_added_later_leaves_fingerprints_as_they_are() -> None:
    assert "order" not in settings(arm().algorithm, defaults=False)
    assert "order" in settings(arm().algorithm)


def test_a_broken_file_of_kept_trials_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "test/kept.json").write_text("{}x")
    with pytest.raises(InputError, match=r"kept.json is no file of kept trials"):
        trained([arm()], [0], kept_context(tmp_path))


class Stop(Listener):
    """Ends a run after two rounds, as an interrupt would."""

    armed = True

    def round(self, record: RoundRecord) -> None:
        if Stop.armed and record.number == 2:
            raise KeyboardInterrupt


def test_an_interrupted_trial_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopping = arm(listeners=(Stop,))
    with pytest.raises(KeyboardInterrupt):
        trained([stopping], [0], context(tmp_path))
    monkeypatch.setattr(Stop, "armed", False)
    (resumed,) = trained([stopping], [0], context(tmp_path))["FedAvg"]
    with RunStore(tmp_path / "runs.db", create=False) as store:
        assert [(info.id, info.status) for info in store.runs()] == [(resumed.run, "finished")]
    (whole,) = trained([arm()], [0], context())["FedAvg"]
    np.testing.assert_array_equal(resumed.loss, whole.loss)


def test_the_same_arm_under_two_names_is_trained_once(tmp_path: Path) -> None:
    found = trained([arm("a"), arm("b")], [0], context(tmp_path))
    assert found["a"][0].run == found["b"][0].run
    assert found["b"][0].arm.name == "b"


def test_arms_share_start_and_cohorts() -> None:
    still, slow = (runs[0] for runs in trained([arm("a", 1e-12), arm("b", 1e-13)], [3], context()).values())
    np.testing.assert_allclose(still.loss, slow.loss, rtol=1e-9)
    assert trained([arm("a", 1e-12)], [4], context())["a"][0].loss[0] != still.loss[0]


@pytest.mark.parametrize("stored", [True, False])
def test_a_setting_that_diverges_is_an_answer_and_never_chosen(tmp_path: Path, stored: bool) -> None:
    where = context(tmp_path if stored else None)
    for _ in range(2):
        (wild,) = trained([arm("wild", 1e30)], [0], where)["wild"]
        assert wild.diverged
        assert wild.rounds.tolist() == [0, 2, 4]
        assert len(wild.loss) == 3
    chosen = tuned([arm()], (1e30, 0.1, 1e-9), having_rate, lambda trial: float(trial.accuracy[-1]), where)
    assert chosen.best == {"FedAvg": 0.1}
    assert chosen.scores["FedAvg"][1e30] == -inf


def test_every_arm_gets_the_same_budget_on_samples_and_a_seed_that_no_result_uses(tmp_path: Path) -> None:
    tuned([arm("a"), arm("b", 0.3)], (0.1, 0.2, 0.4), having_rate, lambda trial: trial.last(1.0), context(tmp_path))
    with RunStore(tmp_path / "runs.db", create=False) as store:
        configs = [info.config for info in store.runs()]
    # Both arms are FedAvg, so their tries are the same three runs.
    assert sorted(config["algorithm"]["lr"] for config in configs) == [0.1, 0.2, 0.4]
    wanted, other = (arm("a").problem().evaluated_on(which).fingerprint() for which in ("validation", "test"))
    assert {config["data_fingerprint"] for config in configs} == {wanted} != {other}
    assert {config["seed"] for config in configs} == {trials.TUNING_SEED}


def test_the_last_share_of_the_evaluations() -> None:
    (trial,) = trained([arm()], [0], context())["FedAvg"]
    values = replace(trial, accuracy=np.array([0.1, 0.2, np.nan, 0.4, 0.6]))
    assert values.last(0.2) == 0.6
    assert values.last(0.6) == pytest.approx((0 + 0.4 + 0.6) / 3)


def test_settings_are_chosen_from_one_grid_for_all() -> None:
    def scores(pairs: list[tuple[str, float]]) -> list[float]:
        assert len(pairs) == 6
        return [-abs(rate - (2.0 if name == "a" else 4.0)) if rate > 1 else -inf for name, rate in pairs]

    best, scored = best_settings(["a", "b"], [1.0, 2.0, 4.0], scores)
    assert best == {"a": 2.0, "b": 4.0}
    assert scored["a"] == {1.0: -inf, 2.0: 0.0, 4.0: -2.0}


def test_the_grid_goes_on_where_the_best_lies_at_its_end() -> None:
    tried: list[tuple[str, float]] = []

    def scores(pairs: list[tuple[str, float]]) -> list[float]:
        tried.extend(pairs)
        return [-abs(rate - {"a": 2.0, "b": 16.0, "c": 0.5}[name]) for name, rate in pairs]

    grid = [1.0, 2.0, 4.0]
    assert best_settings(["a", "b", "c"], grid, scores, further=5)[0] == {"a": 2.0, "b": 16.0, "c": 0.5}
    assert sorted(tried[9:]) == [("b", 8.0), ("b", 16.0), ("b", 32.0), ("c", 0.25), ("c", 0.5)]
    assert best_settings(["b"], grid, scores, further=1)[0] == {"b": 8.0}


def test_jobs_are_spread_over_processes_in_order() -> None:
    assert spread(abs, [-3, 2, -1], StudyContext("x", "cpu"), "numbers") == [3, 2, 1]


@pytest.mark.long
def test_processes_end_with_a_study_that_is_killed() -> None:
    """With kill -9, in the middle of jobs that have hours to go."""
    code = (
        "import time; from parley_papers import spread; from parley_papers.harness import StudyContext;"
        "spread.available_cores = lambda: 2;"
        "spread.spread(time.sleep, [9999, 9999], StudyContext('x', 'cpu'), 'naps')"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as study:
        seen, deadline = psutil.Process(study.pid), time.monotonic() + 60
        while len(seen.children()) < 3 and time.monotonic() < deadline:  # two at work, one that counts semaphores
            time.sleep(0.05)
        workers = seen.children()
        time.sleep(0.5)
        study.kill()
    assert len(workers) == 3
    assert not psutil.wait_procs(workers, timeout=120)[1]


@pytest.mark.long
def test_trials_in_processes_are_the_same(tmp_path: Path) -> None:
    wide = StudyContext("test", "cpu", store=tmp_path / "runs.db")
    found = trained([arm()], [0, 1], wide)["FedAvg"]
    for one, other in zip(found, trained([arm()], [0, 1], context())["FedAvg"], strict=True):
        np.testing.assert_array_equal(one.loss, other.loss)
    with RunStore(tmp_path / "runs.db", create=False) as store:
        assert [info.status for info in store.runs()] == ["finished", "finished"]
