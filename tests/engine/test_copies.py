"""Copies of a run, pickled ones too, go without the samples it was trained on, and can do everything else."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch

import parley as pl
from parley.core.errors import InputError

X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
Y = np.arange(60) % 3


def samples() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {f"c{i}": (X[15 * i : 15 * i + 15], Y[15 * i : 15 * i + 15]) for i in range(4)}


def from_folder(folder: Path) -> pl.Federation:
    folder.mkdir()
    for name, (x, y) in samples().items():
        np.savez(folder / f"{name}.npz", x=x, y=y)
    return pl.Federation.from_folder(folder, test_fraction=0.2)


FEDERATIONS: dict[str, Callable[[Path], pl.Federation]] = {
    "arrays": lambda _: pl.Federation.from_arrays(samples(), test=(X[:5], Y[:5])),
    "views of one tensor, some of it public": lambda _: pl.Federation.from_arrays(
        samples(), public=torch.from_numpy(X)[:2], test_fraction=0.3
    ),
    "standardised": lambda _: pl.Federation.from_arrays(samples(), test=(X[:5], Y[:5])).standardised(),
    "folder": lambda path: from_folder(path / "clients"),
    "pooled": lambda _: pl.data.iris().split("iid", 4),
}
WAYS: dict[str, Callable[[pl.Run], pl.Run]] = {
    "pickle": lambda run: pickle.loads(pickle.dumps(run)),
    "cloudpickle": lambda run: cloudpickle.loads(cloudpickle.dumps(run)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}


@pytest.mark.parametrize("made", FEDERATIONS)
@pytest.mark.parametrize(
    "method", [pl.FedAvg(batch=5), pl.Scaffold(batch=5), pl.LocalOnly(batch=5), pl.FedRep(batch=5)]
)
def test_no_sample_travels(made: str, method: pl.Algorithm, tmp_path: Path):
    federation = FEDERATIONS[made](tmp_path)
    run = pl.train(method, federation, model=pl.models.mlp(5), rounds=2)
    own = [run.federation.client(client) for client in run.federation.ids]
    public = set() if run.task.public is None else {row.numpy().tobytes() for row in run.task.public}
    rows = {row.numpy().tobytes() for data in own for row in data.x} - public
    assert len(rows) > 40
    for dumps in (pickle.dumps, cloudpickle.dumps):
        assert [row for row in rows if row in dumps(run)] == []
    for way in WAYS.values():
        again = way(run)
        assert not again.federation.here
        assert again.federation.test is None
        with pytest.raises(InputError, match="goes without the samples"):
            again.federation.client(again.federation.ids[0])
    assert run.federation.here


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_predicts_exports_and_tells_as_the_run_did(way: str, tmp_path: Path):
    federation = FEDERATIONS["standardised"](tmp_path)
    run = pl.train(pl.LocalOnly(batch=5), federation, model=pl.models.mlp(5), rounds=2)
    again = WAYS[way](run)
    assert again.records == run.records
    assert again.summary() == run.summary()
    assert (again.federation.sizes() == run.federation.sizes()).all()
    assert list(again.clients_with_memory()) == list(run.clients_with_memory())
    for client in run.federation.ids:
        assert torch.equal(again.predict(X, client=client), run.predict(X, client=client))
    again.export(tmp_path / "model", client="c1")
    assert (tmp_path / "model" / "model.onnx").is_file()
    with pytest.raises(InputError, match="there is no client 'c9'"):
        again.predict(X, client="c9")


def test_trees_and_stored_runs_too(tmp_path: Path):
    federation = FEDERATIONS["arrays"](tmp_path)
    run = pl.train(pl.HistogramBoosting(depth=2), federation, rounds=2, store=tmp_path / "runs.db")
    again = pickle.loads(pickle.dumps(run))
    assert torch.equal(again.predict(X), run.predict(X))
    assert again.id == run.id
