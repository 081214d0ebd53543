"""TCT: FedAvg, then SCAFFOLD on tangent features: its fixed point, its features, every runtime, bad input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from parley.algorithms import algorithms
from parley.algorithms.averaging.baselines import Centralised, LocalOnly
from parley.algorithms.averaging.datashare import DataShare
from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.averaging.scaffold import Scaffold
from parley.algorithms.exchange import disclosed
from parley.algorithms.ntk.tct import TCT, _one_output
from parley.conformance import tct_cases
from parley.core.errors import InputError
from parley.core.message import Message
from parley.data import Federation
from parley.engine.settings import Evaluation
from parley.models import mlp
from parley.store.runs import RunStore
from parley.study.train import train

QUIET = Evaluation(every=1000)
SMALL = TCT(first=FedAvg(lr=0.1, steps=2), rounds=2, second=Scaffold(lr=0.5, steps=5, batch=None), features=40)


@pytest.fixture(scope="module")
def digits() -> Federation:
    """Four clients with other digits each."""
    x, y = load_digits(return_X_y=True)
    x = (x / 8 - 1).astype(np.float32)
    order = np.argsort(y[:600], kind="stable").reshape(4, -1)
    return Federation.from_arrays({str(i): (x[rows], y[rows]) for i, rows in enumerate(order)}, test=(x[600:], y[600:]))


def test_features_are_gradients_of_one_output(digits):
    run = train(SMALL, digits, model=mlp(6), rounds=3, evaluation=QUIET, runtime="inline")
    given, module = Message(run.state.tensors, run.state.scalars), _one_output(run.task.network)
    module.load_state_dict(run.state["network"])
    x = digits.test.x[:5]
    phi = torch.cat(run.algorithm._phi(run.task, run.state["network"], given, x))
    rows = []
    for sample in x:
        grads = torch.autograd.grad(module(sample[None])[0, 0], list(module.parameters()))
        rows.append(torch.cat([g.flatten() for g in grads]))
    assert phi.shape == (5, 40)
    wanted = torch.stack(rows)
    distances = (phi[:, :, None] - wanted[:, None, :]).abs().amax(0)  # every feature is one coordinate
    assert float(distances.amin(1).max()) < 1e-5


def test_second_stage_beats_where_the_first_stood(digits):
    run = train(
        TCT(first=FedAvg(lr=0.1, steps=5), rounds=3, second=Scaffold(lr=1.0, steps=50, batch=None), features=4000),
        digits,
        model=mlp(40),
        rounds=18,
        evaluation=Evaluation(every=3),
        runtime="inline",
    )
    accuracy = {r.number: r.metrics["central/accuracy"].value for r in run.records if "central/accuracy" in r.metrics}
    assert accuracy[18] > accuracy[3] + 0.1


def test_what_travels(digits):
    """Stage 1 as FedAvg; then the network and its moments once per client, and the linear model with its variates."""
    run = train(SMALL, digits, model=mlp(6), rounds=5, evaluation=QUIET, runtime="inline")
    plain = train(SMALL.first, digits, model=mlp(6), rounds=2, evaluation=QUIET, runtime="inline")
    up, down = ([r.metrics[f"{way}/bytes"].value for r in run.records if r.number] for way in ("up", "down"))
    assert up[:2] == [r.metrics["up/bytes"].value for r in plain.records if r.number]
    linear = 4 * 410 * 4
    assert 2 * linear < up[3] < 2 * linear + 4 * 500
    assert 2 * linear < down[3] < 2 * linear + 4 * 500
    assert down[2] > down[3] + 4 * 4 * 390


def test_resumed_and_in_processes(digits, tmp_path):
    whole = train(SMALL, digits, model=mlp(6), rounds=6, cohort=3, evaluation=QUIET, runtime="inline")
    with RunStore(tmp_path / "runs.db") as store:
        first = train(SMALL, digits, model=mlp(6), rounds=4, cohort=3, evaluation=QUIET, runtime="inline", store=store)
        again = train(
            SMALL,
            digits,
            model=mlp(6),
            rounds=6,
            cohort=3,
            evaluation=QUIET,
            runtime="pool",
            workers=2,
            store=store,
            resume=first.id,
        )
    assert whole.state.scalars == again.state.scalars
    for name, value in whole.state.tensors.items():
        assert torch.equal(value, again.state.tensors[name]), name


def test_nodes_give_the_bits_of_inline(digits):
    runs = [
        train(SMALL, digits, model=mlp(6), rounds=4, cohort=3, evaluation=QUIET, runtime=runtime, workers=1)
        for runtime in ("inline", "wire")
    ]
    assert runs[0].state.scalars == runs[1].state.scalars
    for name, value in runs[0].state.tensors.items():
        assert torch.equal(value, runs[1].state.tensors[name]), name


class Forgetful(Scaffold):
    """The planted mistake: the server's variate stays zero."""

    def aggregate(self, task, state, replies, number, key):
        return super().aggregate(task, state, replies, number, key).replace(c=state["c"])


def test_a_second_stage_without_control_variates_is_noticed(monkeypatch):
    honest, case = tct_cases._method, tct_cases.convexified()[0]

    def planted(loss: str) -> TCT:
        method = honest(loss)
        return replace(method, second=Forgetful(lr=method.second.lr, steps=2, batch=None))

    monkeypatch.setattr(tct_cases, "_method", planted)
    assert not case.check("inline").passed


def test_auto_does_not_begin_with_stacks(digits):
    run = train(SMALL, digits, model=mlp(6), rounds=3, evaluation=QUIET)
    assert "stacked" not in run.note.split(":")[0]


def test_bad_input(digits):
    with pytest.raises(InputError, match="rounds and features must be at least 1"):
        TCT(rounds=0)
    with pytest.raises(InputError, match="Centralised does not train one network"):
        TCT(first=Centralised())
    with pytest.raises(InputError, match="LocalOnly does not train one network"):
        train(TCT(first=LocalOnly()), digits, model=mlp(6), rounds=1)
    net = nn.Sequential(nn.Unflatten(1, (1, 64)), nn.Conv1d(1, 10, 64), nn.Flatten())
    with pytest.raises(InputError, match="no dense layer at its end"):
        train(TCT(), digits, model=net, rounds=1)


@pytest.mark.parametrize("name", [n for n in algorithms if n not in ("tct", "cp-ntk-fl")])
def test_what_the_first_method_discloses_and_asks_is_the_whole_methods(name):
    first = algorithms[name]()
    try:
        whole = TCT(first=first)
    except InputError:
        return
    asked = {each.name: each for each in whole.exchanges()}
    assert disclosed(whole.exchanges()) == disclosed(first.exchanges())
    for each in first.exchanges():
        inside = asked[f"first.{each.name}"]
        assert (inside.reads, inside.asks, inside.compress, inside.reorder) == (
            each.reads,
            each.asks,
            each.compress,
            each.reorder,
        )
        assert inside.rounds[1] is not None
    assert asked["second.client"].rounds == (whole.rounds + 1, None)


def test_samples_that_the_first_method_hands_out_are_said():
    assert disclosed(TCT(first=DataShare()).exchanges()) == ("inputs", "labels")
