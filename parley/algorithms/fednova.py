"""FedNova: normalised averaging (Wang et al., NeurIPS 2020, Section 4).

    client   x - y_i after tau_i local steps, which is eta sum_k a_k g_k, and a_i = ||a||_1 (tau_i without momentum)
    server   d_i = (x - y_i) / a_i,  tau_eff = sum_i p_i a_i,  x <- x - tau_eff sum_i p_i d_i

Clients that take more steps no longer pull harder: the fixed point minimises sum_i p_i f~_i / a_i, f~_i the surrogates
of paper 001. Where all a_i are equal it is FedAvg, bit for bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from parley.algorithms.local_update import FedAvg, answer
from parley.algorithms.protocol import Replies, Reply, algorithm
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.tree import Schema, schema, subtract
from parley.learn.local import Data, Keys
from parley.learn.observe import observations
from parley.learn.optimizers import LocalOptimizer
from parley.learn.task import Task


@algorithm("fednova")
@dataclass(frozen=True)
class FedNova(FedAvg):
    """FedNova (Wang et al., 2020): averages changes per step, so that clients with more steps do not dominate."""

    def client(self, task: Task, message: Message, memory: Memory, data: Data, key: Keys) -> Reply:
        x, buffers = message["model"], memory["buffers"] or message["buffers"]
        local = self.local(task, x, buffers, data, key)
        a = LocalOptimizer(self.optimizer, self.lr, self.options).travels(local.steps)
        sent = Message.of(update=subtract(x, local.parameters), a=a)
        return answer(task, local, sent, observations(task, x, local, data, key, buffers))

    def aggregate(self, task: Task, state: State, replies: Replies, number: int, key: Key) -> State:
        a = {i: float(replies[i].tensor("a")) for i in replies.weights}
        first = next(iter(a.values()))
        # The weighted mean, written so that equal a_i give exactly that number.
        excess = math.fsum(p * (a[i] - first) for i, p in replies.weights.items())
        tau_eff = first + excess / math.fsum(replies.weights.values())
        normalised = {i: p * (tau_eff / a[i]) for i, p in replies.weights.items()}
        state = super().aggregate(task, state, Replies(replies.messages, normalised), number, key)
        if not state["buffers"]:
            return state
        # Buffers are statistics, not steps: they keep their plain mean.
        buffers = replies.average("buffers") if task.buffers == "average" else state["buffers"]
        return State(state.tensors | State.of(buffers=buffers).tensors, state.scalars)

    def expected(self, task: Task) -> Schema:
        buffers = task.initial_buffers() if task.buffers == "average" else {}
        a = torch.zeros((), dtype=torch.float64)
        return schema(Message.of(update=task.initial(), a=a, buffers=buffers).tensors)
