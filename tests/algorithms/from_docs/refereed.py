"""Clients with larger losses count more; a party that sees no data says how much, from losses smoothed over rounds.

clients  losses f_i(x)
referee  l_i <- beta l_i + (1 - beta) f_i(x);  answers the factors (l_i + 1)^q
clients  K steps from x;  server  x <- x + sum_i u_i (y_i - x), u_i proportional to w_i times the factors
"""

from dataclasses import dataclass

import numpy as np
import torch

import parley as pl

REFEREE = pl.Party("referee")


@dataclass(frozen=True)
class Fair:
    """x = sum_i u_i(x) y_i(x), iterated in NumPy; smoothed losses are the losses where nothing moves."""

    lr: float
    steps: int
    q: float

    def point(self, clients):
        x = clients.c.mean(0)
        for _ in range(5000):
            losses = np.array([(x - c) @ A @ (x - c) / 2 for A, c in zip(clients.A, clients.c, strict=True)])
            u = clients.p * (losses + 1) ** self.q
            ends = []
            for A, c in zip(clients.A, clients.c, strict=True):
                y = x
                for _ in range(self.steps):
                    y = y - self.lr * A @ (y - c)
                ends.append(y)
            x = u / u.sum() @ np.array(ends)
        return x


@dataclass(frozen=True)
class Refereed(pl.LocalSGD):
    """FedAvg with weights that a referee gives by smoothed losses."""

    q: float = 0.5
    """How much larger losses count; 0 is FedAvg."""
    beta: float = 0.5
    """Share of the smoothed loss that stays in a round."""

    @property
    def promise(self):
        return Fair(self.lr, self.steps or 1, self.q)

    def init(self, task, key):
        return pl.State.of(model=task.initial())

    @pl.exchange(form=lambda self, task, message: pl.Form.of(loss=(torch.float64, ())), reads="each")
    def losses(self, task, message, memory, data, context):
        outputs = task.predictor(message["model"])(data.x)
        return pl.Reply(pl.Message.of(loss=task.loss(outputs, data.y).double().mean()))

    @pl.exchange(reads="each", asks=REFEREE)
    def judge(self, task, message, memory, context):
        before = memory.get("losses")
        losses = {i: self.beta * before.get(i, new) + (1 - self.beta) * new for i, new in message["losses"].items()}
        factors = {i: (loss + 1) ** self.q for i, loss in losses.items()}
        return pl.Reply(pl.Message.of(factors=factors), pl.Memory.of(losses=before | losses))

    @pl.exchange(form=lambda self, task, message: pl.Form.of(update=task.form), reads="each", compress=("update",))
    def client(self, task, message, memory, data, context):
        x = message["model"]
        local = self.train(task, x, message, memory, data, context)
        return self.reply(task, local, send={"update": pl.tree.subtract(local.parameters, x)})

    def round(self, task, state, cohort, number, key):
        message = pl.Message.of(model=state["model"])
        losses = yield pl.ask(self.losses, dict.fromkeys(cohort.ids, message))
        found = pl.Message.of(losses={i: reply.tensor("loss") for i, reply in losses.items()})
        judged = yield pl.ask(self.judge, {REFEREE: found})
        factors = {i: float(factor) for i, factor in judged[REFEREE]["factors"].items()}
        replies = yield pl.ask(self.client, dict.fromkeys(factors, message))
        fair = replies.reweighted(factors)
        return state.replace(model=pl.tree.add(state["model"], fair.mean("update")))
