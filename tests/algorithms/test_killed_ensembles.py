"""Ensembles that grow: a run killed in the middle of a round (kill -9) goes on with the same numbers and trees."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = """
import os, signal, sys
import numpy as np
from parley.algorithms.exchange import exchange
from parley.algorithms.boosting.ffgb import FFGB
from parley.algorithms.trees.histogram_boosting import HistogramBoosting
from parley.data import Federation
from parley.engine.settings import Faults
from parley.algorithms.boosting.weak import RegressionTree
from parley.study.train import train

def reached(context, exchange):
    if __name__ == "__main__" and (context.round, context.exchange) == (5, exchange):
        os.kill(os.getpid(), signal.SIGKILL)

class KilledFFGB(FFGB):
    @exchange(like=FFGB.client)
    def client(self, task, message, memory, data, context):
        reached(context, 0)
        return super().client(task, message, memory, data, context)

class KilledHistograms(HistogramBoosting):
    @exchange(like=HistogramBoosting.descend)
    def descend(self, task, message, memory, data, context):
        reached(context, 2)  # in the middle of a tree
        return super().descend(task, message, memory, data, context)

METHODS = {
    "ffgb": KilledFFGB(steps=2, mu=0.1, learner=RegressionTree(3)),
    "histogram-boosting": KilledHistograms(depth=4, bins=16, min_leaf=2, rows=0.8, columns=0.8),
}

def go(name, **more):
    random = np.random.default_rng(3)
    rows = {str(i): (random.normal(size=(40 + i, 5)).astype("f4"), random.integers(0, 3, 40 + i)) for i in range(5)}
    return train(
        METHODS[name], Federation.from_arrays(rows, test_fraction=0.25), rounds=8, cohort=3,
        faults=Faults(dropout=0.2, quorum=0.0), runtime="inline", **more,
    )

if __name__ == "__main__":
    for name in METHODS:
        child = os.fork()
        if child == 0:
            go(name, store=os.path.join(sys.argv[1], name, "runs.db"), checkpoint=0)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    script = folder / "script.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    subprocess.run([sys.executable, str(script), str(folder)], env=environment, timeout=200, check=True)
    return folder


@pytest.mark.parametrize("name", ["ffgb", "histogram-boosting"])
def test_a_run_killed_in_the_middle_goes_on_with_the_same_numbers(name: str, killed: Path):
    space: dict[str, Any] = {"__name__": "again"}
    exec(compile(SCRIPT, "script", "exec"), space)
    whole, resumed = space["go"](name), space["go"](name, store=killed / name / "runs.db", resume=True)
    assert len(resumed.records) == len(whole.records)
    for metric in whole.metrics():
        if "seconds" not in metric:
            assert whole.series(metric)[1].tolist() == resumed.series(metric)[1].tolist(), metric
    assert whole.state.tensors.keys() == resumed.state.tensors.keys()
    for tensor, value in whole.state.tensors.items():
        assert torch.equal(value, resumed.state.tensors[tensor]), tensor
