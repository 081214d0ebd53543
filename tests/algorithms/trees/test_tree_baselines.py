"""Bagging and cyclic boosting of local trees; what is sent, and what is left of it in files."""

from __future__ import annotations

import json
from pathlib import Path

import lightgbm
import numpy as np
import pytest
import torch

import parley as pl
from parley.algorithms.trees.baselines import TreeBagging, TreeCyclic
from parley.algorithms.trees.histogram_boosting import HistogramBoosting
from parley.algorithms.trees.light_trees import boosted
from parley.core.errors import InputError
from parley.engine.listeners import Listener
from parley.engine.run import Run
from parley.engine.settings import Evaluation
from parley.models.export import export_module
from parley.study.importance import importance

NONE = Evaluation(central=False, clients="none")
SETTINGS = {
    "learning_rate": 0.1,
    "max_depth": 4,
    "num_leaves": 16,
    "max_bin": 255,
    "min_data_in_leaf": 20,
    "lambda_l2": 0.5,
}


def table(kind: str, n: int = 300, gaps: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 3)).astype(np.float32)
    score = x[:, 0] + 0.5 * np.abs(x[:, 1]) + 0.2 * rng.normal(size=n)
    x[rng.random(x.shape) < gaps] = np.nan
    y = (
        score.astype(np.float32)
        if kind == "regression"
        else np.digitize(score, [0.3] if kind == "binary" else [0, 0.8])
    )
    return x, y


def run(method, kind: str = "binary", rounds: int = 3, clients: int = 3, **more) -> Run:
    x, y = table(kind)
    data = {f"c{i}": (x[i::clients], y[i::clients]) for i in range(clients)}
    federation = pl.Federation.from_arrays(data, missing=True, test=(x[:50], y[:50]))
    return pl.train(method, federation, rounds=rounds, runtime="inline", **({"evaluation": NONE} | more))


@pytest.mark.parametrize("kind", ["regression", "binary", "classes"])
@pytest.mark.parametrize("gaps", [0.0, 0.2])
def test_flat_trees_say_what_lightgbm_says(kind, gaps):
    x, y = table(kind, gaps=gaps)
    outputs = 3 if kind == "classes" else 1
    objective = {"regression": "squares", "binary": "logistic", "classes": "softmax"}[kind]
    found = boosted(objective, x.astype(np.float64), y, np.zeros((len(y), outputs)), 5, 4, SETTINGS)
    assert set(found.tensors()) == {"features", "thresholds", "values", "missing"}
    params = {
        "objective": {"regression": "regression", "binary": "binary", "classes": "multiclass"}[kind],
        "num_class": outputs,
        "boost_from_average": False,
        "verbosity": -1,
        "num_threads": 1,
        "min_data_in_bin": 1,
    }
    if kind == "classes":  # its second derivatives are K / (K - 1) times ours
        return
    alone = lightgbm.train(params | SETTINGS, lightgbm.Dataset(x, y, params={"verbosity": -1}), 5)
    new = np.concatenate([x, np.full((1, 3), np.nan, np.float32)])
    ours = found.sum(torch.from_numpy(new))[:, 0].numpy()
    assert np.abs(ours - alone.predict(new, raw_score=True)).max() < 1e-6


def test_trees_of_many_classes_lower_the_loss():
    result = run(TreeBagging(depth=3, min_leaf=5), "classes", 10, evaluation=Evaluation(clients="none"))
    losses = result.series("central/loss")[1]
    assert losses[-1] < 0.7 * losses[0]
    assert (np.diff(losses) < 0).all()


class Asked(Listener):
    def __init__(self) -> None:
        self.clients: list[tuple[str, ...]] = []
        self.sent: set[str] = set()

    def exchange(self, number, index, asked, sent, replies):
        self.clients.append(tuple(sent))
        self.sent |= {name for message in replies.values() for name in (*message.tensors, *message.scalars)}


def test_who_boosts_and_what_is_sent():
    heard = Asked()
    run(TreeCyclic(depth=2), rounds=4, listeners=[heard])
    assert heard.clients == [("c0",), ("c1",), ("c2",), ("c0",)]
    assert heard.sent == {f"grown/{name}" for name in ("features", "thresholds", "values", "missing")}
    heard = Asked()
    run(TreeBagging(depth=2), rounds=2, listeners=[heard])
    assert heard.clients == [("c0", "c1", "c2")] * 2


def test_a_resumed_run_is_the_same(tmp_path: Path):
    often = Evaluation(clients="none")
    method = TreeBagging(depth=3, min_leaf=5, trees=2)
    whole = run(method, "regression", 4, evaluation=often)
    run(method, "regression", 2, evaluation=often, store=tmp_path / "runs.db")
    again = run(method, "regression", 4, evaluation=often, store=tmp_path / "runs.db", resume=True)
    assert whole.series("central/loss")[1].tolist() == again.series("central/loss")[1].tolist()
    assert all(torch.equal(value, again.state.tensors[name]) for name, value in whole.state.tensors.items())


def test_a_client_with_one_class_and_one_with_few_rows():
    x, y = table("binary")
    clients = {"zeros": (x[y == 0], y[y == 0]), "ones": (x[y == 1], y[y == 1]), "few": (x[:3], y[:3])}
    federation = pl.Federation.from_arrays(clients, missing=True)
    result = pl.train(TreeBagging(), federation, rounds=3, runtime="inline", evaluation=NONE)
    assert not result.failures()
    assert result.predict(x).isfinite().all()


def test_without_the_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "lightgbm", None)
    with pytest.raises(InputError, match=r"pip install -c constraints.txt '\.\[trees\]'"):
        run(TreeBagging())


# -- out of Parley -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [HistogramBoosting(depth=3, min_leaf=5), TreeBagging(depth=3, min_leaf=5)])
@pytest.mark.parametrize("kind", ["regression", "binary", "classes"])
def test_exported_ensembles(method, kind, tmp_path: Path):
    """As ONNX's TreeEnsemble; missing values and values exactly at thresholds included."""
    result = run(method, kind)
    x = torch.from_numpy(table(kind)[0][:30])
    thresholds = torch.cat([value.flatten() for name, value in result.state.tensors.items() if "thresholds" in name])
    edge = thresholds[thresholds < 1e30][:9].float().reshape(-1, 3)
    x = torch.cat([x, edge, torch.nextafter(edge, torch.tensor(10.0))])
    module = result.module()
    assert torch.allclose(module(x).double(), result.predict(x), atol=1e-6)
    export_module(module, x, tmp_path / "out")
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert {file["format"] for file in card["files"]} == {"safetensors", "torchscript", "onnx"}
    assert not card["left_out"]
    import onnx

    graph = onnx.load(tmp_path / "out" / "model.onnx").graph
    assert [node.op_type for node in graph.node] == ["Flatten", "TreeEnsembleRegressor"]
    names = {attribute.name for attribute in graph.node[1].attribute}
    assert not {"nodes_hitrates"} & names


@pytest.mark.parametrize("kind", ["regression", "classes"])
def test_exported_ffgb(kind, tmp_path: Path):
    x, y = table(kind, gaps=0.0)
    federation = pl.Federation.from_arrays({f"c{i}": (x[i::3], y[i::3]) for i in range(3)})
    method = pl.FFGB(lr=0.5, steps=2, mu=0.1)
    result = pl.train(method, federation, rounds=3, runtime="inline", evaluation=NONE)
    rows = torch.from_numpy(x[:40])
    assert torch.allclose(result.module()(rows).double(), result.predict(rows).double(), atol=1e-5)
    export_module(result.module(), rows, tmp_path / "out", formats=["onnx"])
    linear = pl.train(pl.FFGB(learner=pl.Linear()), federation, rounds=1, runtime="inline", evaluation=NONE)
    with pytest.raises(InputError, match="no module to take out"):
        linear.module()


def test_an_export_before_the_first_tree_is_refused():
    result = run(HistogramBoosting(), rounds=1)
    result.state = pl.State()
    with pytest.raises(InputError, match="no trees yet"):
        result.module()


def test_importance():
    result = run(HistogramBoosting(depth=3, min_leaf=5), rounds=10)
    for by in ("gain", "permutation"):
        found = importance(result, by)
        assert next(iter(found)) == "x0"
        assert set(found) == {"x0", "x1", "x2"}
    assert sum(importance(result).values()) == pytest.approx(1)
    assert importance(result, "permutation", metric="auc")["x0"] > 0.05
    assert importance(result, "permutation", metric="log-loss")["x0"] > 0.05
    with pytest.raises(InputError, match="keeps no gains"):
        importance(run(TreeBagging(depth=2)))
    column = importance(result, "permutation", repeats=1)
    assert column == importance(result, "permutation", repeats=1)
