"""A federated method of your own, with memory: clients send what changed most and keep the rest for later.

    python examples/own_method.py
    parley run examples/own-method.toml

The method works in every runtime, resumes, and has its bytes counted, without a word about any of these here.
"""

from dataclasses import dataclass

import torch

import parley as pl
from parley.learn.local import train


@dataclass(frozen=True)
class LazyAverage(pl.OneExchange):
    """FedAvg whose clients hold back small changes until they have grown (error feedback)."""

    lr: float = 0.1
    """Local step size."""
    share: float = 0.1
    """Share of the entries of each tensor that are sent in a round."""

    def init(self, task, key):
        return pl.State.of(model=task.initial())

    def broadcast(self, task, state, number):
        return pl.Message.of(model=state["model"])

    def client(self, task, message, memory, data, context):
        x = message["model"]
        work, optimizer = pl.Work(epochs=1, batch=32), pl.LocalOptimizer(lr=self.lr)
        local = train(task, x, data, context.key, work=work, optimizer=optimizer)
        held_back = memory.get("held_back")
        sent, kept = {}, {}
        for name, start in x.items():
            change = local.parameters[name] - start + held_back.get(name, 0.0)
            size = change.abs().flatten()
            threshold = size.kthvalue(max(1, round(size.numel() * (1 - self.share)))).values
            sent[name] = torch.where(change.abs() > threshold, change, torch.zeros_like(change))
            kept[name] = change - sent[name]
        return pl.Reply(pl.Message.of(change=sent), pl.Memory.of(held_back=kept))

    def aggregate(self, task, state, replies, number, key):
        change = replies.average("change")
        return pl.State.of(model={name: x + change[name] for name, x in state["model"].items()})


def main() -> None:
    federation = pl.data.digits().split(pl.Dirichlet(0.3), clients=20, seed=0)
    for method in (pl.FedAvg(lr=0.1), LazyAverage(share=0.1), LazyAverage(share=0.01)):
        run = pl.train(method, federation, model=pl.models.mlp(32), rounds=40, cohort=10)
        print(f"{type(method).__name__:12} {run.best():.3f}")


if __name__ == "__main__":
    main()
