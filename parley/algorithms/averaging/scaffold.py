"""SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1; Gholami and Seferoglu, Algorithm 3).

    server   x <- SERVEROPT(x, sum_i w_i (x - y_i)),  c <- c + |S|/N sum_i w_i (c_i+ - c_i)
    client   y = x;  for k = 1 ... K:  y <- y - eta (g_k - c_i + c)
             c_i+ = the gradient of f_i at x                           (option I)
             c_i+ = c_i - c + (x - y) / (eta ||a||_1)                  (option II; ||a||_1 = K without momentum)

With momentum x - y is eta sum_k a_k (g_k - c_i + c), so ||a||_1 and not K turns it back into a mean gradient: the
printed division by K eta diverges at beta = .9. Momentum that runs through the rounds has ||a||_1 = K/(1 - beta).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.exchange import Reply, exchange
from parley.algorithms.protocol import Contexts, Needs, Replies, algorithm
from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.tree import add, subtract, zeros_like
from parley.training import transforms
from parley.training.stack import Data
from parley.training.task import Task


@algorithm("scaffold")
@dataclass(frozen=True)
class Scaffold(FedAvg):
    """SCAFFOLD (Karimireddy et al., 2020): corrects client drift with control variates; twice FedAvg's traffic.

    c stays the mean of the c_i, and the fixed point the true optimum, also under partial participation with clients of
    unequal sizes: cohorts are drawn by the scheme "unbiased" unless the study says otherwise.
    """

    option: Literal["I", "II"] = "II"
    """New variates: the full gradient at the server's model (I, one pass more), or from the steps just taken (II)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.option == "II" and (self.optimizer != "sgd" or self.schedule.by == "step"):
            raise InputError('option II reads gradients off SGD steps of one size; use option = "I".')

    @property
    def needs(self) -> Needs:
        return Needs(cohorts="unbiased")

    def init(self, task: Task, key: Key) -> State:
        return super().init(task, key).replace(c=zeros_like(task.initial()))

    def broadcast(self, task: Task, state: State, number: int) -> Message:
        return super().broadcast(task, state, number).replace(c=state["c"])

    @exchange(
        form=lambda self, task, message: self.form_of(task, update=task.form, c=task.form),
        accepts=lambda self, task, message: self.form_of(task, model=task.form, c=task.form),
        reads="mean",
        compress=("update",),
    )
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        x, c = message["model"], message["c"]
        c_i = memory.get("c_i") or zeros_like(x)
        correction = transforms.add(c) | transforms.add(c_i, -1.0) | self.proximal(x)
        local = self.train(task, x, message, memory, data, context, transform=correction)
        moved = subtract(x, local.parameters)
        if self.option == "I":
            change = subtract(self.full_gradient(task, x, message, memory, data, context), c_i)
        else:
            change = subtract(local.mean_gradient(moved), c)
        return self.reply(task, local, send={"update": moved, "c": change}, keep={"c_i": add(c_i, change)})

    def aggregate(self, task: Task, state: State, replies: Replies, number: int, key: Key) -> State:
        c = add(state["c"], replies.mean_change("c"), replies.count / task.population)
        return super().aggregate(task, state, replies, number, key).replace(c=c)
