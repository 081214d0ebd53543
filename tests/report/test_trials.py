"""Trials of a search are no results, and bold is only what is significantly best."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

import parley as pl
from parley.core.errors import InputError
from parley.report import Comparison, table, to_csv, to_latex
from parley.report.page import report_page
from parley.store.records import Metric, RoundRecord
from parley.store.runs import RunStore
from parley.study.several_seeds import stored_run
from parley.study.toml import study_from_dict

TABLE = {
    "name": "flowers",
    "rounds": 3,
    "data": {"name": "iris", "clients": 4, "test_fraction": 0.3},
    "model": {"name": "linear"},
    "algorithm": {"name": "fedavg", "steps": 2, "lr": 0.001},
}


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """Two seeds of a study that learns little, and three trials that search better rates."""
    with RunStore(tmp_path / "runs.db") as made:
        for seed in (0, 1):
            pl.train(study_from_dict(TABLE | {"seed": seed}), store=made)
        pl.tune(TABLE, {"algorithm.lr": [0.03, 0.1, 0.3]}, store=made, sampler="grid")
        yield made


def printed(thing: object) -> str:
    out = io.StringIO()
    Console(file=out, width=200, color_system=None).print(thing)
    return " ".join(out.getvalue().split())


def test_the_store_knows_trials(store: RunStore) -> None:
    marks = {info.id: info.trial for info in store.runs()}
    assert [bool(mark) for mark in marks.values()] == [False, False, True, True, True]
    assert len(set(marks.values())) == 2
    pl.tune(TABLE, {"algorithm.lr": [0.03, 0.1, 0.3]}, store=store, sampler="grid")
    assert {info.id: info.trial for info in store.runs()} == marks


def test_trials_are_not_compared_unless_they_are_named(store: RunStore) -> None:
    comparison = Comparison.stored(store)
    assert [group.label for group in comparison.groups] == ["flowers"]
    assert "Without 3 of parley tune's trials" in printed(table(comparison))
    assert to_csv(comparison).count("\n") == 3
    assert "lr = 0.1" not in report_page(store, [])
    trial = next(info.id for info in store.runs() if info.trial)
    named = Comparison.stored(store, ["flowers", trial])
    assert len(named.groups) == 2
    assert named.groups[1].last(named.metric).value > comparison.lines[0].last.value
    # A trial that was named is shown, and moves the target no more than one that was not.
    assert (named.target, named.reason) == (comparison.target, comparison.reason)
    assert r"\textbf" not in to_latex(named)
    alone = Comparison.stored(store, [trial])
    assert alone.target == pytest.approx(0.95 * alone.lines[0].last.value)


def test_a_store_of_trials_alone(tmp_path: Path) -> None:
    with RunStore(tmp_path / "runs.db") as store:
        pl.tune(TABLE, {"algorithm.lr": [0.1]}, store=store, sampler="grid")
        with pytest.raises(InputError, match="only trials of parley tune; name at least one run"):
            Comparison.stored(store)


def test_a_trial_is_not_taken_for_the_run_of_a_seed(store: RunStore) -> None:
    trial = next(info for info in store.runs() if info.trial)
    study = study_from_dict({key: value for key, value in trial.config.items() if key != "data_fingerprint"})
    assert stored_run(store, study)[0] is None


def fill(store: RunStore, name: str, lasts: np.ndarray, metric: str = "central/accuracy") -> None:
    for seed, last in enumerate(lasts):
        config = {"name": name, "seed": seed, "rounds": 1, "data": {"name": "digits", "seed": seed}}
        run = store.create(name, config, name)
        store.commit(run, [RoundRecord(1, {metric: Metric(float(last))})], status="finished", summary={"rounds": 1})


@pytest.mark.parametrize("smaller", [False, True])
@pytest.mark.parametrize("problem", range(6))
def test_bold_is_what_the_paired_tests_call_best(tmp_path: Path, problem: int, smaller: bool) -> None:
    """Against tests made here: paired t over seeds, all pairs by Holm, better than each of the others."""
    random = np.random.default_rng(problem)
    groups, seeds = 2 + problem % 3, 3 + problem
    common = random.normal(size=seeds) * 0.05
    apart = 0.02 * (problem % 2)
    values = {f"g{k}": 0.6 + common + apart * k + random.normal(size=seeds) * 0.005 for k in range(groups)}
    metric, sign = ("central/loss", -1) if smaller else ("central/accuracy", 1)
    with RunStore(tmp_path / "runs.db") as store:
        for name, lasts in values.items():
            fill(store, name, lasts, metric)
        comparison = Comparison.stored(store)
        latex = to_latex(comparison)
    pairs = list(itertools.combinations(values, 2))
    p = np.array([stats.ttest_rel(values[a], values[b]).pvalue for a, b in pairs])
    order, holm, largest = np.argsort(p), np.empty(len(p)), 0.0
    for place, which in enumerate(order):
        largest = holm[which] = max(largest, min(1.0, p[which] * (len(p) - place)))
    wins = dict.fromkeys(values, 0)
    for (a, b), level in zip(pairs, holm, strict=True):
        if level < 0.05:
            wins[a if sign * (values[a].mean() - values[b].mean()) > 0 else b] += 1
    best = [name for name, count in wins.items() if count == groups - 1]
    bold = [line.partition(" &")[0] for line in latex.splitlines() if r"\textbf" in line]
    assert bold == best
    assert ("Nothing is bold" in latex) == (not best)
    cells = next(column for column in table(comparison).columns if "last" in str(column.header))._cells
    assert ["bold" in str(cell.style) for cell in cells] == [name in best for name in values]


def test_with_one_seed_nothing_is_bold(tmp_path: Path) -> None:
    with RunStore(tmp_path / "runs.db") as store:
        fill(store, "good", np.array([0.9]))
        fill(store, "bad", np.array([0.1]))
        assert r"\textbf" not in to_latex(Comparison.stored(store))
