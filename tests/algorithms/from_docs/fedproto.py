"""FedProto: clients share prototypes of classes instead of models (Tan et al., AAAI 2022, Algorithm 1).

client   K steps of its own model on f_i + lam ||z(x) - prototype of x's class||^2;  send sums and counts of z by class
server   prototypes = sums / counts
"""

from dataclasses import dataclass

import torch

import parley as pl
from parley.conformance import OwnOptimum


class OwnModel(pl.Learned):
    """The model in a client's memory."""

    def weights(self, message, memory=None):
        return (memory.get("own") if memory is not None else {}) or self.task.initial()


@dataclass(frozen=True)
class FedProto(pl.LocalSGD, pl.OneExchange):
    """FedProto (Tan et al., 2022): models of their own whose representations of a class agree."""

    lam: float = 0.1
    """Weight of the distance to the prototypes."""

    # Quadratics have one "class", and what enters their last layer does not depend on the weights.
    promise = OwnOptimum(partial=True)

    def classes(self, task):
        return task.info.outputs if task.info.kind == "classification" else 1

    def size(self, task):
        x = torch.zeros(1, *task.info.shape, dtype=next(iter(task.initial().values())).dtype)
        return pl.representation(task, task.predictor(task.initial()), x).shape[1]

    def shape(self, task):
        return {
            "sums": (torch.float64, (self.classes(task), self.size(task))),
            "counts": (torch.float64, (self.classes(task),)),
        }

    def init(self, task, key):
        empty = {name: torch.zeros(shape, dtype=dtype) for name, (dtype, shape) in self.shape(task).items()}
        return pl.State.of(prototypes=empty)

    def broadcast(self, task, state, number):
        return pl.Message.of(prototypes=state["prototypes"])

    @pl.exchange(form=lambda self, task, message: pl.Form.of(prototypes=self.shape(task)), reads="sum")
    def client(self, task, message, memory, data, context):
        counts = message["prototypes"]["counts"]
        prototypes = message["prototypes"]["sums"] / counts.clamp(min=1)[:, None]

        def label(y):
            return y if task.info.kind == "classification" else torch.zeros(len(y), dtype=torch.int64)

        def near(gradient, weights, batch):
            leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
            with torch.enable_grad():
                z = pl.representation(task, lambda x: task.apply(leaves, {}, x), batch.x)
                goal, known = prototypes[label(batch.y)].to(z.dtype), counts[label(batch.y)] > 0
                loss = ((z - goal).square().mean(1) * known).mean()
            if not loss.requires_grad:  # the last layer is the only one
                return gradient
            pulls = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
            return pl.tree.add(gradient, dict(zip(leaves, pulls, strict=True)), self.lam)

        x = memory.get("own") or task.initial()
        local = self.train(task, x, message, memory, data, context, transform=pl.transforms.per_batch(near))
        z = pl.representation(task, task.predictor(local.parameters), data.x).double()
        one_hot = torch.nn.functional.one_hot(label(data.y), self.classes(task)).double()
        sent = {"sums": one_hot.T @ z, "counts": one_hot.sum(0)}
        return pl.Reply(pl.Message.of(prototypes=sent), pl.Memory.of(own=local.parameters), local.observed)

    def aggregate(self, task, state, replies, number, key):
        return pl.State.of(prototypes=replies.sum("prototypes"))

    def learned(self, task):
        return OwnModel(task, personal=True)
