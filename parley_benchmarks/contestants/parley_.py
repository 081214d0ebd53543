"""Parley itself: the engine's own loop, unchanged. It draws its cohorts and orders; the work file repeats them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import parley
from parley import (
    ClientData,
    Contexts,
    Data,
    DataInfo,
    Evaluation,
    Faults,
    FedAvg,
    Federation,
    Form,
    Key,
    Memory,
    Message,
    Replies,
    Reply,
    Run,
    Sampling,
    State,
    Task,
    exchange,
    make_task,
)
from parley.data.ids import NumberedIds
from parley.data.sources import Pooled
from parley.engine.evaluation import Evaluator
from parley.engine.loop import Loop, long_lived
from parley.engine.sampling import Sampler
from parley.runtimes import Job, open_runtime
from parley.store.memories import Memories

from .protocol import Options, Work, options, private_output, serve


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


class Parley:
    """One open runtime for the whole race; `reset` starts a new run in it."""

    def __init__(self, work: Work, options: Options) -> None:
        self.work, self.options, self.key = work, options, Key(work.seed)
        self.loop: Loop | None = None
        info = DataInfo("bench", work.shape, work.classes, "classification")
        if work.lazy:
            self.federation = Federation.from_function(work.clients, self._client, work.samples, info=info)
        else:  # as `Dataset.split` leaves them
            rows = torch.arange(work.clients * work.samples)
            samples = Pooled(
                work.x.flatten(0, 1),
                work.y.flatten(),
                rows,
                torch.cat([rows[:: work.samples], torch.tensor([len(rows)])]),
            )
            self.federation = Federation(info, NumberedIds(work.clients), samples)
        self.algorithm = self._algorithm()

    def _client(self, number: int) -> ClientData:
        return ClientData(*self.work.client(number))

    def _algorithm(self) -> FedAvg:
        if self.work.epochs == 0:
            return Idle()
        return FedAvg(lr=self.work.lr, epochs=self.work.epochs, batch=self.work.batch)

    def reset(self, dropout: bool) -> None:
        if self.loop is not None:
            self.loop.runtime.close()
        module: nn.Module = self.work.model(dropout)
        name = "inline" if self.work.epochs == 0 else "auto"
        if self.options.variant == "stacked":
            module, name = Opaque(*module.children()), "stacked"
        name = "ray" if self.options.variant == "ray" else name
        task = make_task(self.federation, module, seed=self.work.seed)
        job = Job(self.algorithm, task, self.federation)
        runtime, _ = open_runtime(name, job, self.options.processes, samples=10**12)
        self.loop = Loop(
            job,
            Run(self.algorithm, task, self.federation, self.algorithm.init(task, self.key)),
            runtime,
            Sampler(self.federation, Sampling(size=self.work.cohort), Faults(), self.key),
            Evaluator(job, Evaluation(central=False), self.key),
            Faults(),
            self.key,
            self.work.cohorts.shape[0] + 1,
            Memories(),
        )
        self.loop.step(1)  # workers are up and warm
        self.loop.run.state = self.algorithm.init(task, self.key)

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
