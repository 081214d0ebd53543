"""Clients evaluated together have the scores they have alone; who cannot be evaluated is named and nobody else."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn

from parley import ClientData, FedAvg, Federation, FedRep
from parley.core.failure import Failure
from parley.core.key import Key
from parley.core.message import Memory
from parley.data import DataInfo
from parley.runtimes.execute import evaluate, evaluate_together
from parley.runtimes.protocol import EvaluationCall, Job, Score
from parley.study.train import make_task
from parley.training import metrics
from parley.training.losses import IGNORE

SIZES = [9, 4, 30, 12, 7, 16, 5]


def federation(kind: str = "classes") -> Federation:
    random = torch.Generator().manual_seed(0)

    def targets(n: int) -> Tensor:
        if kind == "numbers":
            return torch.randn(n, 2, generator=random)
        return torch.randint(3, (n,), generator=random)

    clients = {f"c{n}": (torch.randn(n, 4, generator=random), targets(n)) for n in SIZES}
    return Federation.from_arrays(clients, test_fraction=0.5)


def job(fed: Federation, measured: Iterable[str] = (), algorithm: type[FedAvg] = FedAvg) -> Job:
    task = make_task(fed, nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, fed.info.outputs)), seed=0)
    scorers = metrics.scorers(measured, fed.info)
    return Job(algorithm(), task, fed, scorers=scorers)


def calls(work: Job, batch: int) -> list[EvaluationCall]:
    model = work.algorithm.learned(work.task).message(work.algorithm.init(work.task, Key(0)))
    return [EvaluationCall(model, Memory(), client, batch=batch) for client in work.federation.ids]


def agree(ours: Score | Failure, alone: Score | Failure) -> None:
    assert isinstance(ours, Score)
    assert isinstance(alone, Score)
    assert ours.loss == pytest.approx(alone.loss, rel=1e-5)
    assert (ours.samples, ours.positions) == (alone.samples, alone.positions)
    assert ours.correct == alone.correct or math.isnan(ours.correct) == math.isnan(alone.correct) is True
    assert dict(ours.values) == pytest.approx(dict(alone.values), rel=1e-5, nan_ok=True)


@pytest.mark.parametrize("batch", [3, 12, 1000])
@pytest.mark.parametrize(("kind", "measured"), [("classes", ["f1", "log-loss"]), ("numbers", ["r2", "mae"])])
def test_scores_are_those_of_each_client_alone(kind: str, measured: list[str], batch: int) -> None:
    work = job(federation(kind), measured)
    asked = calls(work, batch)
    for ours, alone in zip(evaluate_together(work, asked), [evaluate(work, call) for call in asked], strict=True):
        agree(ours, alone)


def test_own_models_are_evaluated_one_by_one() -> None:
    work = job(federation(), algorithm=FedRep)
    asked = calls(work, 1000)
    assert evaluate_together(work, asked) == [evaluate(work, call) for call in asked]


def test_positions_that_do_not_count_count_for_nobody() -> None:
    fed = federation()
    work = job(fed)

    def ignoring(client: str, held: ClientData | None) -> ClientData | None:
        if held is None or client != "c30":
            return held
        return ClientData(held.x, torch.where(torch.arange(len(held)) < 3, IGNORE, held.y))

    before = fed.client_test
    fed.client_test = lambda client: ignoring(client, before(client))  # type: ignore[method-assign]
    asked = calls(work, 1000)
    scores = evaluate_together(work, asked)
    for ours, alone in zip(scores, [evaluate(work, call) for call in asked], strict=True):
        agree(ours, alone)
    ignored = scores[SIZES.index(30)]
    assert isinstance(ignored, Score)
    assert ignored.positions == ignored.samples - 3


def test_a_client_whose_samples_cannot_be_read_is_the_only_one_that_fails() -> None:
    def make(number: int) -> ClientData:
        if number == 2:
            raise OSError("the disk is gone")
        random = torch.Generator().manual_seed(number)
        return ClientData(torch.randn(10, 4, generator=random), torch.randint(3, (10,), generator=random))

    info = DataInfo("made", (4,), 3, "classification")
    fed = Federation.from_function(5, make, 10, info=info, test_fraction=0.5)
    work = job(fed)
    scores = evaluate_together(work, calls(work, 1000))
    assert [isinstance(score, Failure) for score in scores] == [False, False, True, False, False]
    assert "the disk is gone" in scores[2].reason  # type: ignore[union-attr]
