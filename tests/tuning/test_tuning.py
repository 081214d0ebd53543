"""Searches: the grids of papers, trials that are runs, equal budgets, proposals that no interruption changes."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import parley as pl
from parley.core.errors import InputError, ParleyWarning
from parley.report.tuning_figure import tuning_figure
from parley.store.runs import RunStore
from parley.study.toml import load_study, study_from_dict
from parley.study.tuning_settings import Tuning
from parley.study.tuning_spaces import space_of
from parley.tuning.attempt import Attempt
from parley.tuning.candidates import candidates, chosen_metric
from parley.tuning.search import search
from parley.tuning.trial import score_of

TABLE = {
    "rounds": 4,
    "data": {"name": "iris", "clients": 4, "test_fraction": 0.3},
    "model": {"name": "linear"},
    "algorithm": {"name": "fedavg", "steps": 2},
}
RATES = {"algorithm.lr": "half-decades(-2, 0)"}


def tuned(tmp_path: Path, name: str = "a", table: dict | None = None, **settings):
    tuning = Tuning(**{"params": RATES, "sampler": "grid"} | settings)
    with RunStore(tmp_path / name / "runs.db") as store:
        return search(candidates(table or TABLE, tmp_path, tuning), store), store.runs()


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("half-decades(-3, 1)", [10 ** (k / 2) for k in range(-6, 3)]),
        ("decades(-2,0)", [0.01, 0.1, 1.0]),
        ("powers-of-two(0, 4)", [1, 2, 4, 8, 16]),
        ("powers-of-two(-1, 1)", [0.5, 1.0, 2.0]),
        (["a", "b"], ["a", "b"]),
    ],
)
def test_the_grids_of_papers(text, points):
    found = space_of(text, "x").points
    assert list(found) == pytest.approx(points) if isinstance(points[0], float) else list(found) == points
    assert [type(one) for one in found] == [type(one) for one in points]


@pytest.mark.parametrize(
    "value",
    ["half-decades(1)", "half-decade(-3, 1)", "log(0, 1)", "uniform(1, 1)", "integers(1, 2.5)", "decades(0.5, 1)", 3,
     "powers-of-two(5, 0)", [], [1, 1], "log(1, nan)", "uniform(a, b)", "decades(-9999, 9999)", "x" * 3000],
)  # fmt: skip
def test_what_is_no_space_is_one_sentence(value):
    with pytest.raises(InputError) as error:
        space_of(value, "algorithm.lr")
    assert "algorithm.lr" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_grid_is_tried_once_each_and_trials_are_runs(tmp_path):
    (found,), runs = tuned(tmp_path)
    assert sorted(one.settings["algorithm.lr"] for one in found.trials) == pytest.approx(
        [10 ** (k / 2) for k in range(-4, 1)]
    )
    assert {one.run for one in found.trials} == {info.id for info in runs}
    assert {info.config["seed"] for info in runs} == {1000}
    assert found.candidate.metric == "clients/accuracy"
    assert found.best is not None
    assert found.best.score == max(one.score for one in found.trials)
    # What was scored is what the run says.
    with RunStore(tmp_path / "a" / "runs.db") as store:
        assert store.series(found.best.run, "clients/accuracy")[1][-1] == found.best.score
    again, runs_then = tuned(tmp_path)
    assert again[0].trials == found.trials
    assert len(runs_then) == len(runs)
    tuning_figure([found]).savefig(tmp_path / "f.png", dpi=40)


def test_a_lost_book_costs_no_training(tmp_path):
    first, runs = tuned(tmp_path)
    (tmp_path / "a" / "tune.db").unlink()
    again, runs_then = tuned(tmp_path)
    assert [one.run for one in again[0].trials] == [one.run for one in first[0].trials]
    assert [info.id for info in runs_then] == [info.id for info in runs]


def test_methods_have_equal_budgets(tmp_path):
    params = {"algorithm.lr": [0.01, 0.1, 0.3], "fedprox": {"algorithm.alpha": [0.01, 1.0]}}
    found, runs = tuned(tmp_path, params=params, methods=("fedavg", "fedprox"), sampler="random", trials=3)
    assert [(len(one.trials), one.rounds) for one in found] == [(3, 12), (3, 12)]
    assert set(found[0].trials[0].settings) == {"algorithm.lr"}
    assert set(found[1].trials[0].settings) == {"algorithm.lr", "algorithm.alpha"}
    # They take turns, so a search that is cut short was fair, too.
    assert [info.config["algorithm"]["name"] for info in runs[:4]] == ["fedavg", "fedprox", "fedavg", "fedprox"]
    tuning_figure(found).savefig(tmp_path / "f.png", dpi=40)
    with pytest.raises(InputError, match="the grids have different sizes"):
        tuned(tmp_path, params=params, methods=("fedavg", "fedprox"))
    with pytest.raises(InputError, match="4 trials do not fit a grid of 3 points"):
        tuned(tmp_path, params=params, methods=("fedavg", "fedprox"), trials=4)


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_proposals_do_not_depend_on_interruptions(tmp_path, sampler, monkeypatch):
    options = {"params": {"algorithm.lr": "log(1e-3, 1)"}, "sampler": sampler, "trials": 12}
    whole, _ = tuned(tmp_path, "whole", **options)
    tuned(tmp_path, "parts", **options | {"trials": 3})
    from parley.tuning import trial as workers

    real, calls = workers.attempt, []

    def cut_off(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(workers, "attempt", cut_off)
    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path, "parts", **options)
    monkeypatch.setattr(workers, "attempt", real)
    parts, _ = tuned(tmp_path, "parts", **options)
    assert [one.settings for one in parts[0].trials] == [one.settings for one in whole[0].trials]
    assert [one.score for one in parts[0].trials] == [one.score for one in whole[0].trials]


@pytest.mark.parametrize("sampler", ["random", "tpe", "grid"])
@pytest.mark.parametrize("moment", [*range(9, 16), 23])
def test_killed_while_it_proposes_it_proposes_the_same(tmp_path, sampler, moment, monkeypatch):
    """The process ends between two of Optuna's entries, as for kill -9: nothing is told afterwards."""
    import optuna

    points = {"algorithm.lr": "half-decades(-2, 0)", "algorithm.steps": [1, 2, 4]}
    ranges = {"algorithm.lr": "log(1e-3, 1)", "algorithm.steps": "integers(1, 9)"}
    options = {"params": points if sampler == "grid" else ranges, "sampler": sampler, "trials": 4}
    table = TABLE | {"rounds": 1}
    whole, _ = tuned(tmp_path, "whole", table, **options)
    storage, calls = optuna.storages.RDBStorage, []

    class Killed(BaseException):
        pass

    def counted(real):
        def call(*args, **words):
            calls.append(real)
            if len(calls) == moment:
                raise Killed
            return real(*args, **words)

        return call

    with monkeypatch.context() as patched:
        for name in ("_create_new_trial", "_set_trial_param", "set_trial_user_attr", "set_trial_state_values"):
            patched.setattr(storage, name, counted(getattr(storage, name)))
        with pytest.raises(Killed):
            tuned(tmp_path, "parts", table, **options)
    parts, _ = tuned(tmp_path, "parts", table, **options)
    assert [(one.settings, one.score) for one in parts[0].trials] == [
        (one.settings, one.score) for one in whole[0].trials
    ]


def test_points_are_not_tried_twice(tmp_path):
    for sampler in ("random", "tpe"):
        (found,), runs = tuned(tmp_path, sampler, params={"algorithm.lr": [0.01, 0.1, 0.3]}, sampler=sampler)
        assert sorted(one.settings["algorithm.lr"] for one in found.trials) == [0.01, 0.1, 0.3]
        assert len(runs) == 3


def test_only_runs_of_exactly_this_study_are_looked_up(tmp_path):
    """Neither longer ones, nor those that another target ended; and they stay as they are."""
    long = TABLE | {"rounds": 8}
    short = TABLE | {"rounds": 3}
    easy = long | {"evaluate": {"target": 0.01}}
    expected = {
        name: tuned(tmp_path, name, table)[0][0].trials
        for name, table in {"long": long, "short": short, "easy": easy}.items()
    }
    for order in ((long, short, easy), (easy, long, short), (short, easy, long)):
        for table in order:
            (found,), _ = tuned(tmp_path, f"all{order.index(long)}", table)
            name = {id(long): "long", id(short): "short", id(easy): "easy"}[id(table)]
            assert [one.score for one in found.trials] == [one.score for one in expected[name]]
            assert [one.rounds for one in found.trials] == [one.rounds for one in expected[name]]
        with RunStore(tmp_path / f"all{order.index(long)}" / "runs.db") as store:
            assert sorted({info.config["rounds"] for info in store.runs()}) == [3, 8]
            assert len(store.runs()) == 15


def test_deleted_runs_are_not_named(tmp_path):
    (found,), _ = tuned(tmp_path)
    with RunStore(tmp_path / "a" / "runs.db") as store:
        store.delete(found.best.run)
    (again,), _ = tuned(tmp_path)
    assert again.best.score == found.best.score
    assert again.best.run == ""


def test_a_method_of_ones_own_is_tuned(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nimport parley as pl\n\n\n@dataclass(frozen=True)\n"
        "class Mine(pl.FedAvg):\n    pull: float = 0.1\n"
    )
    table = TABLE | {"algorithm": {"name": "mine.py:Mine", "steps": 2, "lr": 0.1}}
    (found,), runs = tuned(tmp_path, table=table, params={"algorithm.pull": [0.0, 0.1]})
    assert len(found.trials) == len(runs) == 2
    assert found.candidate.label == "Mine"
    both, _ = tuned(tmp_path, "both", methods=("fedavg", "mine.py:Mine"))
    assert [one.candidate.label for one in both] == ["fedavg", "Mine"]
    assert [one.score for one in both[0].trials] == [one.score for one in both[1].trials]


def test_two_workers_try_the_same(tmp_path):
    one, _ = tuned(tmp_path, "one")
    two, _ = tuned(tmp_path, "two", workers=2)
    scores = [{t.settings["algorithm.lr"]: t.score for t in found[0].trials} for found in (one, two)]
    assert scores[0] == scores[1]


def test_pruned_trials_train_less_and_never_win(tmp_path):
    table = TABLE | {"rounds": 20}
    found, runs = tuned(
        tmp_path,
        table=table,
        params={"algorithm.lr": [1e-6, 1e-5, 1e-4, 0.3, 1e-3, 0.5, 1e-7, 1e-8, 0.2, 1e-9]},
        pruner="median",
    )
    pruned = [one for one in found[0].trials if one.pruned]
    assert pruned
    assert all(0 < one.rounds < 20 for one in pruned)
    assert found[0].best is not None
    assert found[0].best.settings["algorithm.lr"] >= 0.2
    assert {info.status for info in runs if info.id in {one.run for one in pruned}} == {"stopped"}
    tuning_figure(found).savefig(tmp_path / "f.png", dpi=40)


def test_settings_that_diverge_are_answers(tmp_path):
    table = TABLE | {"model": {"name": "mlp", "hidden": [4]}}
    found, _ = tuned(tmp_path, table=table, params={"algorithm.lr": [0.1, 1e38]})
    by_rate = {one.settings["algorithm.lr"]: one.score for one in found[0].trials}
    assert by_rate[1e38] is None
    assert found[0].best is not None
    assert found[0].best.settings["algorithm.lr"] == 0.1


def test_scores():
    def of(values):
        return Attempt({"clients/loss": (np.arange(len(values)), np.array(values))})

    assert score_of(of([3.0, *[1.0] * 18, 2.0, 4.0]), "clients/loss", "last") == 3.0
    assert score_of(of([3.0, 1.0, math.nan]), "clients/loss", "best") == 1.0
    assert score_of(of([3.0, math.nan]), "clients/loss", "last") is None
    assert score_of(Attempt({}), "clients/loss", "last") is None


def test_without_held_out_samples_it_is_said(tmp_path):
    table = TABLE | {"data": {"name": "iris", "clients": 4}}
    with pytest.warns(ParleyWarning, match="chosen on the central test set"):
        (one,) = candidates(table, tmp_path, Tuning(RATES))
    assert one.metric == "central/accuracy"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"params": {}}, "there is nothing to tune"),
        ({"params": RATES | {"algorithm.alpa": [1]}}, "has no setting 'algorithm.alpa' to tune"),
        ({"params": RATES | {"fedprox": {"algorithm.alpha": [1]}}}, "of a method that tune.methods does not name"),
        ({"params": {"algorithm.lr": ["x"]}}, "algorithm.lr must be"),
        ({"params": {"nothing.lr": [1]}}, "no section or setting 'nothing'"),
        ({"params": {"algorithm.lr": "log(1e-3, 1)"}}, "a grid needs points"),
        ({"methods": ("fedavgg",)}, "there is no algorithm 'fedavgg'"),
        ({"metric": "clients/auc"}, "names 'auc', which is not measured: add it to evaluate.metrics"),
        ({"metric": "acuracy"}, "did you mean 'accuracy'"),
        ({"metric": "server/norm"}, "judged by 'server/norm', which was not measured"),
        ({"params": {"seed": [0, 1]}}, "seed cannot be tuned: trials have a seed of their own"),
        ({"params": {"rounds": [2, 3]}}, "rounds cannot be tuned: every trial gets the study's"),
        ({"params": {"data.partition.alpha": [0.1, 1.0]}}, "data.partition.alpha cannot be tuned"),
        ({"params": {"evaluate.every": [1, 2]}}, "evaluate.every cannot be tuned"),
        ({"params": {"algorithm.lr": [0.1, 0.2]}, "sampler": "tpe", "trials": 3}, "3 trials do not fit a grid of 2"),
        ({"methods": ("nowhere.py:Mine",)}, "there is no file"),
    ],
)
def test_what_cannot_be_searched_is_one_sentence(tmp_path, settings, words):
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        tuned(tmp_path, **settings)


def test_a_study_with_a_search_is_a_study(tmp_path):
    study = load_study("examples/tuning.toml")
    assert "tune" not in study.resolved()
    with pytest.raises(InputError, match=r"\[tune\] has no setting 'trails'"):
        study_from_dict(TABLE | {"tune": {"trails": 3}})
    with pytest.raises(InputError, match=r"algorithm\.lr"):
        study_from_dict(TABLE | {"tune": {"params": {"algorithm.lr": "logg(1, 2)"}}})


LONG = TABLE | {"rounds": 400, "store": {"checkpoint": 0.0}}
SEARCH = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import test_tuning as t
t.tuned(Path(sys.argv[1]), "killed", table=t.LONG, sampler="random", trials=3)
"""


@pytest.mark.long
def test_killed_in_a_trial_it_goes_on(tmp_path):
    """kill -9 in the middle of a run: the search begins with that run, from its checkpoint."""
    code = SEARCH.format(tests=str(Path(__file__).parent))
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=Path.cwd())
    path = tmp_path / "killed" / "runs.db"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if path.exists():
            with RunStore(path) as store:
                runs = store.runs()
            if any(info.status == "running" and info.rounds > 20 for info in runs):
                break
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    with RunStore(path) as store:
        (cut,) = [info for info in store.runs() if info.status == "interrupted"]
    found, runs = tuned(tmp_path, "killed", table=LONG, sampler="random", trials=3)
    whole, _ = tuned(tmp_path, "whole", table=LONG, sampler="random", trials=3)
    assert [info.status for info in runs] == ["finished"] * len(runs)
    assert cut.id in {one.run for one in found[0].trials}
    assert sorted((t.settings["algorithm.lr"], t.score) for t in found[0].trials) == sorted(
        (t.settings["algorithm.lr"], t.score) for t in whole[0].trials
    )


@pytest.mark.parametrize(
    ("share", "metrics", "chosen"),
    [
        (0.4, (), "accuracy"),
        (0.05, (), "loss"),
        (0.05, ("brier", "auc"), "auc"),
        (0.05, ("balanced-accuracy",), "balanced-accuracy"),
    ],
)
def test_a_rare_class_is_not_judged_by_accuracy(share, metrics, chosen):
    rng = np.random.default_rng(0)
    y = (rng.random(400) < share).astype(int)
    data = pl.Federation.from_arrays(
        {name: (rng.normal(size=(200, 2)), y[rows]) for name, rows in (("a", slice(200)), ("b", slice(200, 400)))},
        test_fraction=0.3,
    )
    study = pl.Study(pl.FedAvg(), data, model=pl.models.linear(), rounds=2, evaluation=pl.Evaluation(metrics=metrics))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert chosen_metric(study, Tuning()) == f"clients/{chosen}"
    assert [f"chosen by clients/{chosen}" in str(one.message) for one in said] == [True] * (chosen != "accuracy")
