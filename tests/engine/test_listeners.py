"""Listeners that end a run, and those that tell other programs."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import parley as pl
from parley.core.errors import InputError
from parley.engine.loggers import loggers
from parley.store.runs import RunStore


@pytest.fixture(scope="module")
def federation() -> pl.Federation:
    return pl.data.iris().split(pl.IID(), clients=4)


def study(federation: pl.Federation, **changes: Any) -> pl.Study:
    return pl.Study(pl.FedAvg(), federation, **({"model": pl.models.mlp(3), "rounds": 4} | changes))


def test_a_listener_ends_a_run_well(federation: pl.Federation, tmp_path: Path):
    ended = []

    class Enough(pl.Listener):
        def round(self, record: pl.RoundRecord) -> None:
            if record.number == 2:
                raise pl.StopRun("enough.")

        def end(self, run: pl.Run) -> None:
            ended.append(run.status)

    with RunStore(tmp_path / "runs.db") as store:
        run = pl.train(study(federation), listeners=[Enough()], store=store)
        assert (run.status, run.summary()["rounds"], ended) == ("stopped", 2, ["stopped"])
        assert (store.info("last").status, store.info("last").rounds) == ("stopped", 2)
        resumed = pl.train(study(federation), store=store, resume=True)
        assert (resumed.id, resumed.status, resumed.summary()["rounds"]) == (run.id, "finished", 4)
        assert resumed.last() == pl.train(study(federation)).last()


def test_tensorboard_from_a_study(federation: pl.Federation, tmp_path: Path):
    pytest.importorskip("tensorboard")
    described = study(federation, rounds=1, logging=pl.Logging(tensorboard=str(tmp_path / "board")))
    with RunStore(tmp_path / "runs.db") as store:
        for seed in range(2):
            pl.train(described, seed=seed, store=store)
        assert sorted(path.name for path in (tmp_path / "board").iterdir()) == sorted(i.id for i in store.runs())


def test_wandb_and_mlflow_are_told_every_metric(federation: pl.Federation, monkeypatch: pytest.MonkeyPatch):
    told: list[tuple[str, Any]] = []
    board = SimpleNamespace(
        log=lambda values, step: told.append(("wandb", (step, values["central/accuracy"]))),
        finish=lambda: told.append(("wandb", "finish")),
    )
    monkeypatch.setitem(
        sys.modules, "wandb", SimpleNamespace(init=lambda **options: told.append(("init", options)) or board)
    )
    flow = SimpleNamespace(
        set_experiment=lambda name: told.append(("experiment", name)),
        start_run=lambda run_name: told.append(("mlflow", run_name)),
        log_metrics=lambda values, step: told.append(("mlflow", (step, values["central/accuracy"]))),
        end_run=lambda status: told.append(("mlflow", status)),
    )
    monkeypatch.setitem(sys.modules, "mlflow", flow)
    run = pl.train(study(federation, rounds=2, logging=pl.Logging(wandb="project", mlflow="trial")))
    values = list(zip(*(series.tolist() for series in run.series("accuracy")), strict=True))
    assert [what for who, what in told if who == "wandb"] == [*values, "finish"]
    assert [what for who, what in told if who == "mlflow"] == ["fedavg-iris", *values, "FINISHED"]
    assert ("experiment", "trial") in told
    assert next(options for who, options in told if who == "init")["project"] == "project"


@pytest.mark.parametrize(("name", "title"), [("wandb", "Weights & Biases"), ("mlflow", "MLflow")])
def test_a_missing_package_is_one_sentence(name: str, title: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=f"{title} is not installed; pip install {name}"):
        loggers(pl.Logging(**{name: "x"}))
