"""Parley itself: the engine's own loop, with the race's cohorts and batch orders in place of drawn ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

import parley
from parley.algorithms.base.exchange import Reply, exchange
from parley.algorithms.base.protocol import Cohort, Contexts, Replies
from parley.algorithms.local_update import FedAvg
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.data import ClientData, DataInfo, Federation
from parley.engine.evaluation import Evaluator
from parley.engine.loop import Loop, long_lived
from parley.engine.run import Run
from parley.engine.sampling import Sampler
from parley.engine.settings import Evaluation, Faults, Sampling
from parley.learn.batches import Plan
from parley.learn.batches import Work as LocalWork
from parley.learn.stack import Data
from parley.learn.task import Task
from parley.runtimes import Job, open_runtime
from parley.store.memories import Memories
from parley.study.train import make_task

from .protocol import Options, Work, options, private_output, serve

_KEY = Key(0)


@dataclass(frozen=True, slots=True)
class ScheduledWork(LocalWork):
    """Batches in the order the race prescribes for each key."""

    orders: dict[bytes, Tensor] = field(default_factory=dict)

    def plan(self, samples: int, key: Key) -> Plan:
        drawn = LocalWork.plan(self, samples, key)
        if key.digest not in self.orders:  # the runtime tries the method out before the race
            return drawn
        order = self.orders[key.digest]
        indices = order if drawn.indices is None else order.repeat(self.epochs or 1)
        return Plan(indices, drawn.lengths)


@dataclass(frozen=True)
class Raced(FedAvg):
    """FedAvg with prescribed batches."""

    orders: dict[bytes, Tensor] = field(default_factory=dict)

    def work(self) -> LocalWork:
        return ScheduledWork(self.steps, self.epochs, self.batch, self.order, self.orders)


@dataclass(frozen=True)
class Idle(FedAvg):
    """Clients that receive the model and do nothing: what is left is the engine."""

    @exchange(form=lambda self, task, message: Form(), reads="nothing")
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        return Reply(Message())

    def aggregate(self, task: Task, state: State, replies: Replies, number: int, key: Key) -> State:
        return state


class Opaque(nn.Sequential):
    """A module whose layers the dense fast path does not look into: any stackable module."""


@dataclass
class Scheduled(Sampler):
    """The race's cohorts."""

    cohorts: Tensor = field(default_factory=lambda: torch.empty(0))

    def draw(self, number: int) -> Cohort:
        ids = tuple(str(client) for client in self.cohorts[number - 1].tolist())
        return Cohort(ids, (1.0 / len(ids),) * len(ids))


class Parley:
    """One open runtime for the whole race; `reset` starts a new run in it."""

    def __init__(self, work: Work, told: Options) -> None:
        self.work, self.told = work, told
        self.loop: Loop | None = None
        info = DataInfo("bench", work.shape, work.classes, "classification")
        self.federation = Federation.from_function(work.clients, self._client, work.samples, info=info)
        self.algorithm = self._algorithm()

    def _client(self, number: int) -> ClientData:
        return ClientData(*self.work.client(number))

    def _algorithm(self) -> FedAvg:
        if self.work.epochs == 0:
            return Idle()
        orders = {}
        for number, (cohort, order) in enumerate(zip(self.work.cohorts, self.work.orders, strict=True), 1):
            for client, own in zip(cohort.tolist(), order, strict=True):
                key = _KEY.fold("round", number).fold("recipient", str(client)).fold("client", 0).fold("batches")
                orders[key.digest] = own
        return Raced(lr=self.work.lr, epochs=self.work.epochs, batch=self.work.batch, orders=orders)

    def reset(self, dropout: bool) -> None:
        if self.loop is not None:
            self.loop.runtime.close()
        module: nn.Module = self.work.model(dropout)
        name = "inline" if self.work.epochs == 0 else "auto"
        if self.told.variant == "stacked":
            module, name = Opaque(*module.children()), "stacked"
        name = "ray" if self.told.variant == "ray" else name
        task = make_task(self.federation, module, seed=0)
        job = Job(self.algorithm, task, self.federation)
        runtime, _ = open_runtime(name, job, self.told.processes, samples=10**12)
        self.loop = Loop(
            job,
            Run(self.algorithm, task, self.federation, self.algorithm.init(task, _KEY)),
            runtime,
            Scheduled(self.federation, Sampling(), Faults(), _KEY, cohorts=self.work.cohorts),
            Evaluator(job, Evaluation(central=False), _KEY),
            Faults(),
            _KEY,
            self.work.cohorts.shape[0] + 1,
            Memories(),
        )
        self.loop.step(1)  # workers are up and warm
        self.loop.run.state = self.algorithm.init(task, _KEY)

    def run(self, start: int, stop: int) -> None:
        assert self.loop is not None
        with long_lived():  # as in `Loop.go`
            for number in range(start, stop):
                self.loop.step(number + 1)

    def parameters(self) -> Mapping[str, Tensor]:
        assert self.loop is not None
        return self.loop.run.state["model"]


if __name__ == "__main__":
    told = options()
    output = private_output()
    work = Work(told.work)
    serve(Parley(work, told), work, output, {"parley": parley.__version__})
