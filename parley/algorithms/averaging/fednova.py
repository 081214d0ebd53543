"""FedNova: normalised averaging (Wang et al., NeurIPS 2020, Section 4).

    client   x - y_i after tau_i local steps, which is eta sum_k a_k g_k, and a_i = eta ||a||_1 (or eta tau_i)
    server   d_i = (x - y_i) / a_i,  tau_eff = sum_i p_i a_i,  x <- x - tau_eff sum_i p_i d_i

Clients that take more steps no longer pull harder: the fixed point minimises sum_i p_i f~_i / a_i, f~_i the surrogates
of Charles and Konečný. Where all a_i are equal it is FedAvg, bit for bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.exchange import Reply, exchange
from parley.algorithms.protocol import Contexts, Replies, algorithm
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.tree import subtract
from parley.training.stack import Data
from parley.training.task import Task


@algorithm("fednova")
@dataclass(frozen=True)
class FedNova(FedAvg):
    """FedNova (Wang et al., 2020): averages changes per step, so that clients with more steps do not dominate."""

    @exchange(
        form=lambda self, task, message: self.form_of(task, update=task.form, a=(torch.float64, ())),
        accepts=lambda self, task, message: self.form_of(task, model=task.form),
        reads="each",
        compress=("update",),
        bias="lr",
    )
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        x = message["model"]
        local = self.steps_from(task, x, message, memory, data, context)
        return self.reply(task, local, send={"update": subtract(x, local.parameters), "a": local.step_sum})

    def aggregate(self, task: Task, state: State, replies: Replies, number: int, key: Key) -> State:
        a = {i: float(replies[i].tensor("a")) for i in replies.weights}
        first = next(iter(a.values()))
        # The weighted mean, written so that equal a_i give exactly that number.
        excess = math.fsum(p * (a[i] - first) for i, p in replies.weights.items())
        tau_eff = first + excess / math.fsum(replies.weights.values())
        new = super().aggregate(
            task, state, replies.reweighted({i: tau_eff / a_i for i, a_i in a.items()}), number, key
        )
        # Buffers are statistics, not steps: they keep their plain mean.
        return new.replace(buffers=self.folded_buffers(task, state, replies))
