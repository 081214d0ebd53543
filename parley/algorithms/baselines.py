"""What federated training is compared with: every client alone, and all data in one place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from parley.algorithms.local_update import FedAvg, LocalUpdate
from parley.algorithms.protocol import OneExchange, Reply, algorithm
from parley.algorithms.server import Descent, ServerOptimizer
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.tree import Tree
from parley.learn.batches import Work
from parley.learn.local import Data, Keys, train
from parley.learn.observe import observations
from parley.learn.optimizers import LocalOptimizer
from parley.learn.task import Predictor, Task


@algorithm("local-only")
@dataclass(frozen=True)
class LocalOnly(OneExchange):
    """Every client trains its own model on its own data; nothing is sent."""

    stackable: ClassVar[bool] = True
    personal: ClassVar[bool] = True

    lr: float = 0.1
    """Step size."""
    steps: int | None = None
    """Steps per round; without steps and epochs, one epoch."""
    epochs: int | None = None
    """Passes over the client's data per round, in place of steps."""
    batch: int | None = 32
    """Samples per step; 0 takes all of a client's samples."""

    def __post_init__(self) -> None:
        if self.batch == 0:
            object.__setattr__(self, "batch", None)
        if self.steps is None and self.epochs is None:
            object.__setattr__(self, "epochs", 1)
        LocalOptimizer(lr=self.lr)
        self.work()

    def work(self) -> Work:
        return Work(self.steps, self.epochs, self.batch)

    def init(self, task: Task, key: Key) -> State:
        return State()

    def client(self, task: Task, message: Message, memory: Memory, data: Data, key: Keys) -> Reply:
        x, buffers = memory["model"] or task.initial(), memory["buffers"] or task.initial_buffers()
        local = train(
            task, x, data, key, buffers=buffers, work=self.work(), optimizer=LocalOptimizer(lr=self.lr)
        )  # fmt: skip
        observed = observations(task, x, local, data, key, buffers)
        return Reply(Message(), Memory.of(model=local.parameters, buffers=local.buffers), observed)

    def predictor(self, task: Task, state: State, memory: Memory | None = None) -> Predictor:
        own = memory if memory is not None else Memory()
        return task.predictor(own["model"] or task.initial(), own["buffers"] or task.initial_buffers())

    def own_weights(self, task: Task, state: State, client: str, memory: Memory) -> Tree:
        return {**(memory["model"] or task.initial()), **(memory["buffers"] or task.initial_buffers())}


@algorithm("centralised")
@dataclass(frozen=True)
class Centralised(FedAvg):
    """SGD on the pooled data of all clients, the same number of local steps per round: an upper baseline."""

    pooled: ClassVar[bool] = True


@algorithm("minibatch-sgd")
@dataclass(frozen=True)
class MinibatchSGD(LocalUpdate):
    """Mini-batch SGD on the pooled data (paper 001, Table 1: Theta_1, gamma = 0, one client)."""

    pooled: ClassVar[bool] = True

    lr: float = 0.0
    """Not used: the server takes the step."""
    steps: int | None = 1
    """One gradient per round."""
    server: ServerOptimizer = field(default_factory=lambda: Descent(lr=0.1))
    """Its learning rate is the step size of SGD."""


@algorithm("lookahead")
@dataclass(frozen=True)
class Lookahead(LocalUpdate):
    """Lookahead (Zhang et al., 2019): K fast steps on the pooled data, then a slow step towards where they led."""

    pooled: ClassVar[bool] = True

    steps: int | None = 5
    """Fast steps per slow step."""
    form: Literal["gradients", "delta"] = "delta"
    """The slow step moves towards the fast weights by server.lr."""
    server: ServerOptimizer = field(default_factory=lambda: Descent(lr=0.5))
    """The slow step size is server.lr."""
