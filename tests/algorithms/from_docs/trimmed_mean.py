"""The coordinate-wise trimmed mean (Yin et al., ICML 2018): the largest and the smallest changes do not count."""

from dataclasses import dataclass

import numpy as np
import torch

import parley as pl


@dataclass(frozen=True)
class Trimmed:
    """Where the trimmed mean of the clients' changes is zero, iterated in NumPy."""

    lr: float
    steps: int
    trim: int

    def point(self, clients):
        x = clients.c.mean(0)
        for _ in range(2000):
            ends = []
            for A, c in zip(clients.A, clients.c, strict=True):
                y = x
                for _ in range(self.steps):
                    y = y - self.lr * A @ (y - c)
                ends.append(y)
            cut = min(self.trim, (len(ends) - 1) // 2)
            x = np.sort(ends, axis=0)[cut : len(ends) - cut].mean(0)
        return x


@dataclass(frozen=True)
class TrimmedMean(pl.LocalSGD, pl.OneExchange):
    """FedAvg that leaves out, in every coordinate, the largest and the smallest changes."""

    trim: int = 1
    """How many are left out on each side, at most; one always stays."""

    @property
    def promise(self):
        return Trimmed(self.lr, self.steps or 1, self.trim)

    def init(self, task, key):
        return pl.State.of(model=task.initial(), buffers=task.initial_buffers() if task.sent_buffers else {})

    def broadcast(self, task, state, number):
        return pl.Message.of(model=state["model"], buffers=state.get("buffers"))

    @pl.exchange(form=lambda self, task, message: self.form_of(task, update=task.form), compress=("update",))
    def client(self, task, message, memory, data, context):
        x = message["model"]
        local = self.train(task, x, message, memory, data, context)
        return self.reply(task, local, send={"update": pl.tree.subtract(local.parameters, x)})

    def aggregate(self, task, state, replies, number, key):
        cut = min(self.trim, (len(replies) - 1) // 2)
        model = {}
        for name, value in state["model"].items():
            changes = torch.stack([reply["update"][name] for reply in replies.values()]).sort(0).values
            model[name] = value + changes[cut : len(changes) - cut].mean(0)
        return state.replace(model=model, buffers=self.folded_buffers(task, state, replies))
