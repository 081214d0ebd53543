"""A model that grows is evaluated at the cost of what is new, with the numbers of an evaluation from scratch."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from parley.algorithms.exchange import Reply, exchange
from parley.algorithms.protocol import Learned, OneExchange
from parley.core.message import Message, State
from parley.data import Federation
from parley.engine.settings import Evaluation
from parley.models import linear
from parley.study.train import train


def federation() -> Federation:
    random = np.random.default_rng(0)
    x = random.normal(size=(100, 3)).astype(np.float32)
    y = (x @ random.normal(size=(3, 2))).argmax(1)
    clients = {name: (x[a : a + 20], y[a : a + 20]) for a, name in ((0, "a"), (20, "b"), (40, "c"))}
    return Federation.from_arrays(clients, test=(x[60:], y[60:]), test_fraction=0.25)


@dataclass(frozen=True)
class Ensemble(OneExchange):
    """Adds one linear learner a round; a prediction is the sum of all of them."""

    applied: ClassVar[list[int]] = []
    """Learners that were applied, one number per batch."""

    def init(self, task, key):
        return State()

    def broadcast(self, task, state, number):
        return Message.of(learners=state.get("learners"))

    @exchange()
    def client(self, task, message, memory, data, context):
        residual = torch.nn.functional.one_hot(data.y, 2) - torch.softmax(_sum(message, data.x, None), 1)
        return Reply(Message.of(w=data.x.T @ residual / len(data)))

    def aggregate(self, task, state, replies, number, key):
        mean = torch.stack([replies[client].tensor("w") for client in replies]).mean(0)
        return State.of(learners={**state.get("learners"), f"{number:03}": mean})

    def learned(self, task):
        return SumOfLinear(task, incremental=True, read=_since)


def _since(state, since):
    return Message.of(learners={n: w for n, w in state.get("learners").items() if since is None or int(n) > since})


class SumOfLinear(Learned):
    def outputs(self, message, memory, x, before=None):
        Ensemble.applied.append(len(message.get("learners")))
        return _sum(message, x, before)


def _sum(message, x, before):
    total = torch.zeros(len(x), 2) if before is None else before
    for _, w in sorted(message.get("learners").items()):
        total = total + x @ w
    return total


class FromScratch(Ensemble):
    def learned(self, task):
        return replace(super().learned(task), incremental=False)


CENTRAL = Evaluation(clients="none", batch=16)  # 40 samples: three batches


def trained(method: Ensemble, rounds: int = 6, **settings):
    Ensemble.applied.clear()
    return train(method, federation(), model=linear(), rounds=rounds, runtime="inline", **settings)


def curves(run) -> list[list[float]]:
    return [run.series(name)[1].tolist() for name in run.metrics() if name.startswith(("central/", "clients/"))]


def test_only_new_learners_are_applied():
    run = trained(Ensemble(), evaluation=CENTRAL)
    assert Ensemble.applied == [0] * 3 + [1] * 3 * 6
    again = trained(FromScratch(), evaluation=CENTRAL)
    assert Ensemble.applied == [count for number in range(7) for count in [number] * 3]
    assert curves(run) == curves(again)


def test_rounds_without_evaluation_are_made_up_for():
    evaluation = Evaluation(clients="none", batch=100, every=3)
    run = trained(Ensemble(), 7, evaluation=evaluation)
    assert Ensemble.applied == [0, 3, 3, 1]
    assert curves(run) == curves(trained(FromScratch(), 7, evaluation=evaluation))


@pytest.mark.parametrize("metrics", [(), ("auc", "log-loss")])
def test_the_same_with_metrics_and_with_clients(metrics: tuple[str, ...]):
    evaluation = Evaluation(clients="all", batch=16, metrics=metrics)
    assert curves(trained(Ensemble(), evaluation=evaluation)) == curves(trained(FromScratch(), evaluation=evaluation))


def test_a_resumed_run_goes_on_with_the_same_numbers(tmp_path: Path):
    whole = trained(Ensemble(), evaluation=CENTRAL)
    trained(Ensemble(), 3, evaluation=CENTRAL, store=tmp_path / "runs.db")
    resumed = trained(Ensemble(), 6, evaluation=CENTRAL, store=tmp_path / "runs.db", resume=True)
    assert Ensemble.applied == [4] * 3 + [1] * 3 * 2  # once from scratch, then what is new
    assert curves(resumed) == curves(whole)


def test_in_worker_processes():
    pooled = train(
        Ensemble(),
        federation(),
        model=linear(),
        rounds=4,
        runtime="pool",
        workers=2,
        evaluation=Evaluation(clients="all", batch=16, metrics=("auc",)),
    )
    inline = trained(Ensemble(), 4, evaluation=Evaluation(clients="all", batch=16, metrics=("auc",)))
    assert curves(pooled) == curves(inline)
