"""Loggers, with the programs themselves: what they keep is what the run recorded."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest

import parley as pl
from parley.display.loggers import MLflow
from parley.store.records import Metric, RoundRecord


@pytest.fixture(scope="module")
def federation() -> pl.Federation:
    return pl.data.iris().split(pl.IID(), clients=4)


def trained(federation: pl.Federation, tmp_path: Path, **logging: str) -> pl.Run:
    study = pl.Study(pl.FedAvg(), federation, model=pl.models.mlp(3), rounds=2, logging=pl.Logging(**logging))
    return pl.train(study, store=tmp_path / "runs.db")


def points(run: pl.Run, metric: str) -> list[tuple[int, float]]:
    return list(zip(*(series.tolist() for series in run.series(metric)), strict=True))


def test_tensorboard(federation, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = trained(federation, tmp_path, tensorboard=str(tmp_path / "board"))
    found = EventAccumulator(str(tmp_path / "board" / str(run.id)))
    found.Reload()
    assert sorted(found.Tags()["scalars"]) == run.metrics()
    kept = [(event.step, event.value) for event in found.Scalars("central/accuracy")]
    assert kept == [(step, pytest.approx(value)) for step, value in points(run, "accuracy")]


def test_wandb_offline(federation, tmp_path, monkeypatch):
    for name, value in (("MODE", "offline"), ("DIR", str(tmp_path)), ("SILENT", "true")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    run = trained(federation, tmp_path, wandb="project")
    (file,) = tmp_path.glob(f"wandb/offline-run-*-{run.id}/*.wandb")
    assert [step for step, _ in history(file)] == [0, 1, 2]
    kept = [(step, values["central/accuracy"]) for step, values in history(file)]
    assert kept == points(run, "accuracy")


def history(file: Path) -> list[tuple[int, dict[str, float]]]:
    """What a file of W&B's own holds, step by step: a log as LevelDB has it, of protocol buffers."""
    from wandb.proto import wandb_internal_pb2

    found, data, place, whole = [], file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if place % 32768 > 32768 - 7:  # the rest of a block is padding
            place += 32768 - place % 32768
        size, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # complete, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            if record.WhichOneof("record_type") == "history":
                items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                values = {name: json.loads(text) for name, text in items.items()}
                found.append((int(record.history.step.num), values))
    return found


def test_wandb_without_a_login_leaves_nothing_half_done(federation, tmp_path, monkeypatch):
    import wandb

    wandb.teardown()  # it keeps what it knew of its environment
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(pl.InputError, match="Weights & Biases cannot be reached"):
        trained(federation, tmp_path, wandb="project")
    with pl.RunStore(tmp_path / "runs.db") as store:
        assert store.runs() == []


def test_mlflow(federation, tmp_path, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path / 'flow'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run = trained(federation, tmp_path, mlflow="trial")
    client = mlflow.MlflowClient()
    (kept,) = client.search_runs([client.get_experiment_by_name("trial").experiment_id])
    assert (kept.info.run_name, kept.info.status) == (run.id, "FINISHED")
    assert sorted(kept.data.metrics) == run.metrics()
    told = [(one.step, one.value) for one in client.get_metric_history(kept.info.run_id, "central/accuracy")]
    assert told == points(run, "accuracy")


@pytest.mark.parametrize("logged_before", [True, False])
def test_mlflow_goes_on_with_the_run_that_is_resumed(federation, tmp_path, monkeypatch, logged_before):
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path / 'flow'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")

    class Stop(pl.Listener):
        def round(self, record: pl.RoundRecord) -> None:
            if record.number == 2:
                raise pl.StopRun

    study = pl.Study(pl.FedAvg(), federation, model=pl.models.mlp(3), rounds=4)
    logged = replace(study, logging=pl.Logging(mlflow="trial"))
    pl.train(logged if logged_before else study, store=tmp_path / "runs.db", listeners=[Stop()])
    run = pl.train(logged, store=tmp_path / "runs.db", resume=True)
    client = mlflow.MlflowClient()
    (kept,) = client.search_runs([client.get_experiment_by_name("trial").experiment_id])
    assert (kept.info.run_name, kept.info.status) == (run.id, "FINISHED")
    for metric in ("central/accuracy", "up/bytes"):
        told = [(one.step, one.value) for one in client.get_metric_history(kept.info.run_id, metric)]
        assert told == points(run, metric)


def test_mlflow_is_not_told_twice_of_rounds_that_are_redone(federation, tmp_path, monkeypatch):
    """Killed after round 2 without a checkpoint, it begins anew; what MLflow has of it stays."""
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path / 'flow'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run = trained(federation, tmp_path, mlflow="trial")
    logger = MLflow("trial")
    begun = replace(run, records=[])
    logger.start(begun, 3)
    for record in [*run.records, RoundRecord(3, {"up/bytes": Metric(7.0)})]:
        logger.round(record)
    logger.end(run)
    client = mlflow.MlflowClient()
    (kept,) = client.search_runs([client.get_experiment_by_name("trial").experiment_id])
    told = [(one.step, one.value) for one in client.get_metric_history(kept.info.run_id, "up/bytes")]
    assert told == [*points(run, "up/bytes"), (3, 7.0)]


def test_mlflow_that_refuses_folders_says_what_to_set_and_leaves_no_run(federation, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path / 'flow'}")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    with pytest.raises(pl.InputError, match="MLflow cannot be reached") as refused:
        trained(federation, tmp_path, mlflow="trial")
    words = str(refused.value).split()
    assert "MLFLOW_ALLOW_FILE_STORE=true" in words
    assert not [word for word in words if word.startswith("htt") and not word.endswith("migrate-from-file-store")]
    with pl.RunStore(tmp_path / "runs.db") as store:
        assert store.runs() == []
    assert not list((tmp_path / "runs").glob("*"))


def test_tensorboard_that_cannot_write_names_the_setting_and_leaves_no_run(federation, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(pl.InputError, match=r"file/.* \(.*\); name another folder in logging\.tensorboard\."):
        trained(federation, tmp_path, tensorboard=str(tmp_path / "file"))
    with pl.RunStore(tmp_path / "runs.db") as store:
        assert store.runs() == []


def test_a_resumed_run_stays_where_a_logger_cannot_start(federation, tmp_path):
    study = pl.Study(pl.FedAvg(), federation, model=pl.models.mlp(3), rounds=1)
    run = pl.train(study, store=tmp_path / "runs.db")
    with pl.RunStore(tmp_path / "runs.db") as store:
        before = store.runs()
    (tmp_path / "file").write_text("")
    more = replace(study, rounds=2, logging=pl.Logging(tensorboard=str(tmp_path / "file")))
    with pytest.raises(pl.InputError):
        pl.train(more, store=tmp_path / "runs.db", resume=True)
    with pl.RunStore(tmp_path / "runs.db") as store:
        assert store.runs() == before
        assert store.records(str(run.id)) == run.records
