"""What federated training is compared with: every client alone, and all data in one place."""

from __future__ import annotations

from dataclasses import dataclass

from parley.algorithms.averaging.local_sgd import LocalSGD
from parley.algorithms.averaging.local_update import AveragedGradients, FedAvg
from parley.algorithms.averaging.preset import Default, preset
from parley.algorithms.averaging.server import Descent
from parley.algorithms.exchange import Reply, exchange
from parley.algorithms.protocol import Contexts, Learned, Needs, OneExchange, algorithm
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.tree import Tree
from parley.training.stack import Data
from parley.training.task import Task


@algorithm("local-only")
@dataclass(frozen=True)
class LocalOnly(LocalSGD, OneExchange):
    """Every client trains its own model on its own data; nothing is sent."""

    def init(self, task: Task, key: Key) -> State:
        return State()

    @exchange(form=lambda self, task, message: Form(), accepts=lambda self, task, message: Form(), reads="nothing")
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        x = memory.get("model") or task.initial()
        local = self.train(task, x, message, memory, data, context)
        kept = self.reply(task, local, send={}, keep={"model": local.parameters, "buffers": local.buffers})
        return Reply(Message(), kept.memory, kept.observed)

    def learned(self, task: Task) -> Learned:
        return OwnModel(task, personal=True)


class OwnModel(Learned):
    """The model in a client's memory, or that which all begin with."""

    def weights(self, message: Message, memory: Memory | None = None) -> Tree:
        kept, task = memory or Memory(), self.task
        return {**(kept.get("model") or task.initial()), **(kept.get("buffers") or task.initial_buffers())}


POOLED = Needs(pooled=True)

Centralised = preset(
    "centralised",
    "Centralised",
    FedAvg,
    "SGD on the pooled data of all clients, the same number of local steps per round: an upper baseline.",
    needs=POOLED,
)
MinibatchSGD = preset(
    "minibatch-sgd",
    "MinibatchSGD",
    AveragedGradients,
    "Mini-batch SGD on the pooled data (Charles and Konečný, Table 1: Theta_1, gamma = 0, one client).",
    needs=POOLED,
    lr=Default(0.0, "Not used: the server takes the step."),
    steps=Default(1, "One gradient per round."),
    server=Default(Descent(lr=0.1), "Its learning rate is the step size of SGD."),
)
Lookahead = preset(
    "lookahead",
    "Lookahead",
    FedAvg,
    "Lookahead (Zhang et al., 2019): K fast steps on the pooled data, then a slow step towards where they led.",
    needs=POOLED,
    steps=Default(5, "Fast steps per slow step."),
    server=Default(Descent(lr=0.5), "The slow step size is server.lr."),
)
