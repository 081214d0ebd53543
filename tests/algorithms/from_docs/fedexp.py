"""FedExP: the server's step is extrapolated (Jhunjhunwala et al., ICLR 2023, Algorithm 1).

client   K steps from x;  send Delta_i = x - y_i and ||Delta_i||^2
server   eta = max(1, mean ||Delta_i||^2 / (2 (||mean Delta||^2 + epsilon))),  x <- x - eta mean Delta
reported the mean of the last two iterates, because the last one oscillates
"""

from dataclasses import dataclass

import torch

import parley as pl
from parley.conformance import Surrogate


@dataclass(frozen=True)
class FedExP(pl.LocalSGD, pl.OneExchange):
    """FedExP (Jhunjhunwala et al., 2023): FedAvg with a server step that grows where clients disagree."""

    epsilon: float = 1e-3
    """Keeps the step finite where the mean change vanishes."""

    @property
    def promise(self):
        return Surrogate(self.lr, self.steps or 1)

    def init(self, task: pl.Task, key: pl.Key) -> pl.State:
        return pl.State.of(model=task.initial(), before=task.initial())

    def broadcast(self, task: pl.Task, state: pl.State, number: int) -> pl.Message:
        return pl.Message.of(model=state["model"])

    @pl.exchange(
        form=lambda self, task, message: self.form_of(task, update=task.form, square={"sum": (torch.float64, ())}),
        reads="mean",
        compress=("update",),
    )
    def client(
        self, task: pl.Task, message: pl.Message, memory: pl.Memory, data: pl.Data, context: pl.Contexts
    ) -> pl.Reply:
        x = message["model"]
        local = self.train(task, x, message, memory, data, context)
        update = pl.tree.subtract(x, local.parameters)
        square = sum(value.double().square().sum() for value in update.values())
        return self.reply(task, local, send={"update": update, "square": {"sum": square}})

    def aggregate(self, task: pl.Task, state: pl.State, replies: pl.Replies, number: int, key: pl.Key) -> pl.Outcome:
        update = replies.mean_change("update")
        length = sum(float(value.double().square().sum()) for value in update.values())
        eta = max(1.0, float(replies.mean("square")["sum"]) / (2 * (length + self.epsilon)))
        new = state.replace(model=pl.tree.add(state["model"], update, -eta), before=state["model"])
        return new, {"eta": eta}

    def learned(self, task: pl.Task) -> pl.Learned:
        def reported(state: pl.State, since: int | None) -> pl.Message:
            total = pl.tree.add(state["model"], state["before"])
            return pl.Message.of(model=pl.tree.scale(total, 0.5))

        return pl.Learned(task, read=reported)


checked = FedExP(epsilon=0.1)
"""Its last iterate comes to rest; with a smaller epsilon steps near the point are too long for the curvature."""
