"""Regressions and survival curves over a deployment: the numbers of pooled rows, whatever codes nodes give to texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import parley as pl
from parley.cli import deploy
from parley.cli.main import main
from parley.deploy.serverapp import carry_out

from .test_runs import Place, identity, place  # noqa: F401 (fixtures)

STUDY = """
rounds = 2
[data]
categories = ["arm", "outcome"]
[model]
name = "linear"
[algorithm]
name = "fedavg"
[faults]
at_least = 2
"""
COLUMNS = ["age", "arm", "outcome", "days"]


def followed(place: Place, folder: Path, target: str) -> pd.DataFrame:  # noqa: F811
    """Rows of three nodes, of which one has nobody alive."""
    rng, parts = np.random.default_rng(1), []
    for name, node in place.nodes.items():
        rows = pd.DataFrame(
            {
                "age": rng.normal(60, 10, 80).round(1),
                "arm": rng.choice(["placebo", "drug"], 80),
                "outcome": rng.choice(["alive", "dead", "lost"] if name != "a" else ["dead", "lost"], 80),
                "days": rng.integers(1, 40, 80) * 10.0,
            }
        )
        rows["ill"] = np.where(rows.age + rng.normal(0, 10, 80) > 60, "yes", "no")
        kept = rows[[*COLUMNS, "ill"] if target == "ill" else COLUMNS]
        kept.to_csv(folder / f"{name}.csv", index=False)
        kind = "classification" if target == "ill" else "regression"
        node.set(
            data=str(folder / f"{name}.csv"),
            target=target,
            kind=kind,
            missing=True,
            test_fraction=0.0,
            dtype="float64",
            categories=["arm", "outcome"],
        )
        parts.append(kept.assign(site=name))
    (folder / "study.toml").write_text(STUDY)
    return pd.concat(parts)


@pytest.fixture
def ask(place: Place, tmp_path: Path, monkeypatch, capfd):  # noqa: F811
    """`parley analyse -f`; what the server and the owners do is done here in between."""
    follow = deploy.finished

    def served(path, id, *, whole):
        if place.submissions[id].active:
            for node in place.nodes.values():
                node.decide(place.submissions[id].hash, "approved", disclose=True)
            place.submissions.update(id, attempts=1)
            carry_out(place.folder, id, place.grid)
        return follow(path, id, whole=whole)

    monkeypatch.setattr(deploy, "finished", served)
    monkeypatch.chdir(tmp_path)

    def run(*more: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["analyse", "study.toml", "-f", str(place.folder.path), "--csv", "found.csv", *more])
        captured = capfd.readouterr()
        return int(ended.value.code or 0), captured.out + captured.err

    return run


def pooled(table: pd.DataFrame, target: str) -> pl.Federation:
    kind = "classification" if target == "ill" else "regression"
    return pl.Federation.from_frame(
        table, client="site", target=target, kind=kind, missing=True, dtype="float64", categories=["arm", "outcome"]
    )


def test_a_logistic_regression_asks_for_levels_and_is_that_of_pooled_rows(place: Place, tmp_path: Path, ask):  # noqa: F811
    table = followed(place, tmp_path, "ill")
    code, said = ask("--model", "logistic", "--covariates", "age,arm")
    assert code == 0, said
    found = pd.read_csv("found.csv", index_col="name")
    expected = pl.analyse(pooled(table, "ill"), "logistic", covariates=["age", "arm"], runtime="inline").frame()
    assert found.index.tolist() == expected.index.tolist()
    np.testing.assert_allclose(found[["estimate", "error", "p"]], expected[["estimate", "error", "p"]], rtol=1e-9)
    assert len(place.submissions.all()) == 2
    assert ask("--model", "logistic", "--covariates", "age,arm")[0] == 0
    assert len(place.submissions.all()) == 2  # nobody is asked twice
    assert "--outcome is for simulations" in ask("--outcome", "days")[1]


def test_cox_regression_and_curves_take_the_event_that_is_named(place: Place, tmp_path: Path, ask):  # noqa: F811
    table = followed(place, tmp_path, "days")
    data, event = pooled(table, "days"), ("--event", "outcome=dead")
    code, said = ask("--model", "cox", *event, "--covariates", "age")
    assert code == 0, said
    found = pd.read_csv("found.csv", index_col="name")
    expected = pl.analyse(data, "cox", event="outcome=dead", covariates=["age"], runtime="inline")
    np.testing.assert_allclose(found["estimate"], expected.frame()["estimate"], rtol=1e-9)
    assert expected.events == (table.outcome == "dead").sum()
    code, said = ask(
        "--model", "kaplan-meier", *event, "--by", "arm", "--groups", "drug,placebo", "--grid", "0,150,300"
    )
    assert code == 0, said
    curves = pl.analyse(data, "kaplan-meier", event="outcome=dead", by="arm", grid=(0, 150, 300), runtime="inline")
    assert Path("found.csv").read_text() == curves.csv()
    code, said = ask("--model", "cox", "--event", "outcome", "--covariates", "age")
    assert (code, "holds texts; say which of them is the event" in said) == (1, True), said
