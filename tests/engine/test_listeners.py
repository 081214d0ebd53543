"""Listeners that end a run, and those that tell other programs."""

import sys
from pathlib import Path
from typing import Any

import pytest

import parley as pl
from parley.core.errors import InputError
from parley.display.loggers import loggers
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


def test_every_run_has_a_folder_of_tensorboard_s_its_own(federation: pl.Federation, tmp_path: Path):
    described = study(federation, rounds=1, logging=pl.Logging(tensorboard=str(tmp_path / "board")))
    with RunStore(tmp_path / "runs.db") as store:
        for seed in range(2):
            pl.train(described, seed=seed, store=store)
        assert sorted(path.name for path in (tmp_path / "board").iterdir()) == sorted(i.id for i in store.runs())


@pytest.mark.parametrize(("name", "title"), [("wandb", "Weights & Biases"), ("mlflow", "MLflow")])
def test_a_missing_package_is_one_sentence(name: str, title: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=rf"{title} is not installed; run pip install .* '\.\[{name}\]'"):
        loggers(pl.Logging(**{name: "x"}))
