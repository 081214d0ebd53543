"""A seed that has not finished does not count where others have, in any table; where none has, it is said."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from parley.cli.main import application
from parley.report import Comparison, figure, pairs_table, table, to_csv, to_json
from parley.report.groups import stored_groups
from parley.report.page import report_page
from parley.store.records import Metric, RoundRecord
from parley.store.runs import RunStore
from parley.study.seeds import SeedMean


def train(
    store: RunStore,
    seed: int,
    last: float,
    *,
    done: int = 40,
    planned: int = 40,
    status: str | None = "finished",
    name: str = "grp",
    **extra: float,
) -> str:
    """A run whose accuracy grows in equal steps to `last` in round `planned`, at 1 MB up a round."""
    config = {"name": name, "seed": seed, "rounds": planned, "algorithm": {"name": "fedavg"}, "data": {"seed": seed}}
    run = store.create(name, config, name)
    records = []
    for n in range(done + 1):
        metrics = {"central/accuracy": Metric(last * n / planned)} | {key: Metric(v) for key, v in extra.items()}
        records.append(RoundRecord(n, metrics | ({"up/bytes": Metric(1e6), "seconds": Metric(0.5)} if n else {})))
    summary = {"central/accuracy": last, "up/bytes": 1e6 * done, "seconds": 0.5 * done} if status else {}
    store.commit(run, records, status=status, summary=summary)
    return run


@pytest.fixture
def store(tmp_path: Path):
    """Two seeds that finished, one that was killed in round 3."""
    with RunStore(tmp_path / "runs.db") as made:
        train(made, 0, 0.96)
        train(made, 1, 0.98)
        train(made, 2, 0.97, done=3, status=None)
        yield made


def shown(thing: object) -> str:
    out = io.StringIO()
    Console(file=out, width=100, color_system=None).print(thing)
    return " ".join(out.getvalue().split())


def test_means_and_curves_are_those_of_the_finished_seeds(store):
    (group,) = stored_groups(store, store.runs())
    assert group.last("central/accuracy").seeds == pytest.approx((0.96, 0.98))
    curve = group.curve("central/accuracy")
    assert curve.rounds.tolist() == list(range(41))
    np.testing.assert_allclose(curve.mean, 0.97 * np.arange(41) / 40)
    assert group.total("up/bytes") == 40e6
    assert (group.status, group.rounds) == ("2 finished, 1 interrupted", "40")
    assert group.left_out == "seed 2 (interrupted at round 3 of 40)"


def test_every_table_says_the_same(store):
    half = SeedMean.of([0.96, 0.98]).half
    listed = CliRunner().invoke(application(), ["runs", "--store", str(store.path)], terminal_width=200).output
    assert f"97.00% ±{half:.2%}" in listed
    compared = shown(table(Comparison.stored(store, [])))
    assert f"±{half:.1%}" in compared
    assert "grp (2 finished, 1 interrupted)" in compared
    assert "grp without seed 2 (interrupted at round 3 of 40)" in compared
    page = report_page(store, [])
    assert f"97.00% ± {half:.2%}" in page
    assert "2 finished, 1 interrupted" in page
    assert "seed 2 (interrupted at round 3 of 40)" in page


def test_exports_and_figures_have_the_runs_that_count(store):
    comparison = Comparison.stored(store, [])
    assert to_csv(comparison).count("\n") == 3
    assert json.loads(to_json(comparison))["groups"][0]["left_out"][0]["status"] == "interrupted"
    figure(comparison)


def test_a_seed_that_has_measured_less_or_nothing_hides_no_metric(tmp_path):
    with RunStore(tmp_path / "runs.db") as made:
        train(made, 0, 0.9, **{"clients/loss": 1.0})
        train(made, 1, 0.9, done=0, status=None)
        made.create(
            "grp", {"name": "grp", "seed": 2, "rounds": 40, "algorithm": {"name": "fedavg"}, "data": {"seed": 2}}, "grp"
        )
        (group,) = stored_groups(made, made.runs())
        assert "clients/loss" in group.metrics
        assert [one.seed for one in group.unfinished] == [1, 2]
        assert Comparison.stored(made, [], metric="clients/loss").metric == "clients/loss"


def test_where_no_seed_has_finished_there_is_what_there_is_and_it_is_marked(tmp_path):
    with RunStore(tmp_path / "runs.db") as made:
        run = train(made, 0, 0.8, done=20, status=None)
        train(made, 1, 0.8, done=4, status=None)
        made.claim(run)
        (group,) = stored_groups(made, made.runs())
        assert (group.status, group.rounds) == ("1 running, 1 interrupted", "4–20 of 40")
        curve = group.curve("central/accuracy")
        assert curve.rounds[-1] == 20
        np.testing.assert_allclose(curve.mean, 0.8 * np.arange(21) / 40)
        np.testing.assert_allclose(curve.megabytes, np.arange(21))
        compared = shown(table(Comparison.stored(made, [])))
        assert "1 running, 1 interrupted" in compared
        assert "4–20 of 40" in compared
        assert "Unfinished runs: as far as they have come" in compared
        assert "4–20 of 40" in report_page(made, [])


def test_a_run_going_on_is_marked(tmp_path):
    with RunStore(tmp_path / "runs.db") as made:
        made.claim(train(made, 0, 0.8, done=810, planned=3000, status=None))
        assert "grp (running, 810 of 3000 rounds)" in shown(table(Comparison.stored(made, [])))
        assert ">810 of 3000<" in report_page(made, [])


def test_seeds_that_end_apart_count_as_far_as_they_got(tmp_path):
    with RunStore(tmp_path / "runs.db") as made:
        train(made, 0, 1.0, done=10)
        train(made, 1, 1.0, done=20)
        (group,) = stored_groups(made, made.runs())
    assert group.curve("central/accuracy").rounds.tolist() == list(range(21))
    assert group.rounds == "10–20"


def test_a_seed_that_diverged_is_not_taken_for_one_that_is_missing(tmp_path):
    with RunStore(tmp_path / "runs.db") as made:
        train(made, 0, 0.5)
        train(made, 1, float("nan"))
        (group,) = stored_groups(made, made.runs())
        assert np.isnan(group.curve("central/accuracy").mean).all()
        compared = shown(table(Comparison.stored(made, [])))
        assert "1 of 2" in compared
        assert "diverged" in compared
        assert "1 of 2 diverged" in report_page(made, [])


def test_pairs_say_that_rounds_differ(tmp_path):
    with RunStore(tmp_path / "runs.db") as made:
        for seed in (0, 1):
            train(made, seed, 0.5 + 0.01 * seed, name="short", done=15, planned=15)
            train(made, seed, 0.6, name="long", done=20, planned=20)
        words = shown(pairs_table(Comparison.stored(made, [])))
    assert "They were not trained for equally many rounds: short 15, long 20." in words
