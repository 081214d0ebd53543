"""SCAFFOLD: stochastic controlled averaging (Karimireddy et al., ICML 2020, Algorithm 1; paper 004, Algorithm 3).

    server   x <- SERVEROPT(x, sum_i w_i (x - y_i)),  c <- c + |S|/N sum_i w_i (c_i+ - c_i)
    client   y = x;  for k = 1 ... K:  y <- y - eta (g_k - c_i + c)
             c_i+ = the gradient of f_i at x                           (option I)
             c_i+ = c_i - c + (x - y) / (eta ||a||_1)                  (option II; ||a||_1 = K without momentum)

With momentum the change x - y is eta sum_k a_k (g_k - c_i + c), a_k the momentum weights, so ||a||_1 and not K turns it
back into a mean gradient. The printed division by K eta multiplies the variates' error by about 1 - 1/(1 - beta) a
round and diverges at beta = .9. Momentum that runs through the rounds has ||a||_1 = K/(1 - beta).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from parley.algorithms.local_update import FedAvg, answer
from parley.algorithms.protocol import Replies, Reply, algorithm
from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.tree import Schema, Tree, add, arranged, schema, subtract, zeros_like
from parley.learn import transforms
from parley.learn.local import Data, Keys, Trained, full_gradient, train
from parley.learn.observe import observations
from parley.learn.optimizers import Kept, LocalOptimizer
from parley.learn.stack import per_client
from parley.learn.task import Task


@algorithm("scaffold")
@dataclass(frozen=True)
class Scaffold(FedAvg):
    """SCAFFOLD (Karimireddy et al., 2020): corrects client drift with control variates; twice FedAvg's traffic.

    c stays the mean of the c_i, and the fixed point the true optimum, under full participation, and under partial
    participation where weights are uniform or `cohort.scheme` is "unbiased".
    """

    option: Literal["I", "II"] = "II"
    """New variates: the full gradient at the server's model (I, one pass more), or from the steps just taken (II)."""
    keep: bool = False
    """Momentum runs through the rounds, kept by each client, instead of starting afresh."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.option == "II" and self.optimizer != "sgd":
            raise InputError(f"option II reads gradients off SGD steps; with '{self.optimizer}' use option = \"I\".")

    def init(self, task: Task, key: Key) -> State:
        return _with(super().init(task, key), zeros_like(task.initial()))

    def broadcast(self, task: Task, state: State, number: int) -> Message:
        return Message.of(model=state["model"], c=state["c"], buffers=state["buffers"])

    def client(self, task: Task, message: Message, memory: Memory, data: Data, key: Keys) -> Reply:
        x = message["model"]
        c, c_i = arranged(message["c"], x), arranged(memory["c_i"] or zeros_like(x), x)
        buffers = memory["buffers"] or message["buffers"]
        correction = transforms.add(c) | transforms.add(c_i, -1.0)
        local = train(
            task, x, data, key, buffers=buffers, work=self.work(), optimizer=self._optimizer,
            transform=correction | transforms.pull(x, self.alpha) if self.alpha else correction,
            kept=Kept.of(memory) if self.keep else None,
        )  # fmt: skip
        if self.option == "I":
            change = subtract(full_gradient(task, x, data, key.fold("variate"), buffers), c_i)
        else:
            change = subtract(self.mean_gradient(subtract(x, local.parameters), local), c)
        # c_i may be zeros without a client axis; the change has one.
        own = {name: c_i[name] + value for name, value in change.items()}
        kept = local.optimizer.memory()
        return answer(
            task, local, Message.of(update=subtract(x, local.parameters), c=change),
            observations(task, x, local, data, key, buffers),
            Memory(Memory.of(c_i=own).tensors | kept.tensors, kept.scalars),
        )  # fmt: skip

    def mean_gradient(self, moved: Tree, local: Trained) -> Tree:
        """The mean of the corrected gradients whose steps moved a client by -`moved`."""
        return per_client(moved, 1 / (self.lr * self._optimizer.travels(local.steps, self.keep)))

    def aggregate(self, task: Task, state: State, replies: Replies, number: int, key: Key) -> State:
        share = len(replies.weights) / task.population
        c = add(state["c"], replies.average("c"), share)
        return _with(super().aggregate(task, state, replies, number, key), c)

    def expected(self, task: Task) -> Schema:
        x, buffers = task.initial(), task.initial_buffers() if task.buffers == "average" else {}
        return schema(Message.of(update=x, c=x, buffers=buffers).tensors)

    @property
    def _optimizer(self) -> LocalOptimizer:
        return LocalOptimizer(self.optimizer, self.lr, self.options)


def _with(state: State, c: Tree) -> State:
    return State(state.tensors | State.of(c=c).tensors, state.scalars)
