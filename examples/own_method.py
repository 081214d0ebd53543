"""A federated method of your own, with memory: clients send what changed most and keep the rest for later.

    python examples/own_method.py
    parley run examples/own-method.toml

The method works in every runtime, resumes, has its bytes counted and takes models with BatchNorm, without a word about
any of these here. (What it does to FedAvg's messages, a channel does to those of any method: the last line printed.)
"""

from dataclasses import dataclass

import torch

import parley as pl


@dataclass(frozen=True)
class LazyAverage(pl.LocalSGD, pl.OneExchange):
    """FedAvg whose clients hold back small changes until they have grown (error feedback)."""

    share: float = 0.1
    """Share of all entries that are sent in a round."""

    def init(self, task, key):
        return pl.State.of(model=task.initial(), buffers=task.initial_buffers() if task.sent_buffers else {})

    def broadcast(self, task, state, number):
        return pl.Message.of(model=state["model"], buffers=state.get("buffers"))

    @pl.exchange(form=lambda self, task, message: self.form_of(task, **self.largest(task)), reads="each")
    def client(self, task, message, memory, data, context):
        x = message["model"]
        local = self.train(task, x, message, memory, data, context)
        change = torch.cat([(local.parameters[name] - x[name]).flatten() for name in x])
        change = change + memory.tensors.get("held_back", 0.0)
        largest = change.abs().topk(self.count(task)).indices
        sent = {"values": change.gather(0, largest), "places": largest.to(torch.int32)}
        return self.reply(task, local, send=sent, keep={"held_back": change.scatter(0, largest, 0.0)})

    def largest(self, task):
        return {"values": (torch.float32, (self.count(task),)), "places": (torch.int32, (self.count(task),))}

    def count(self, task):
        return max(1, round(self.share * sum(value.numel() for value in task.initial().values())))

    def aggregate(self, task, state, replies, number, key):
        x = state["model"]
        total = torch.cat([value.flatten() for value in x.values()])
        for client, weight in replies.weights.items():
            sent = replies[client]
            total = total.index_add(0, sent.tensor("places").long(), weight * sent.tensor("values"))
        parts = total.split([value.numel() for value in x.values()])
        model = {name: part.view_as(value) for (name, value), part in zip(x.items(), parts, strict=True)}
        return state.replace(model=model, buffers=self.folded_buffers(task, state, replies))


def main() -> None:
    federation = pl.data.digits().split(pl.Dirichlet(0.3), clients=20, seed=0)
    methods = {
        "FedAvg": (pl.FedAvg(lr=0.1), ()),
        "LazyAverage, 10%": (LazyAverage(lr=0.1, share=0.1), ()),
        "LazyAverage, 1%": (LazyAverage(lr=0.1, share=0.01), ()),
        "FedAvg, top-k channel, 10%": (pl.FedAvg(lr=0.1), pl.top_k(0.1)),
    }
    for name, (method, channels) in methods.items():
        run = pl.train(method, federation, model=pl.models.mlp(32), rounds=40, cohort=10, channels=channels)
        print(f"{name:28} accuracy {run.best():.3f}   sent up {run.total('up/bytes') / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
