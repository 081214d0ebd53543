"""MOON: model-contrastive federated learning (Li, He and Song, CVPR 2021, Algorithm 1).

    client   w <- w - eta gradient of f_i(w) + mu l(w), K times from the server's model x;  keep it as the previous one
             l = -log e^(sim(z, z_x)/T) / (e^(sim(z, z_x)/T) + e^(sim(z, z_p)/T)),  eq. (3), mean over the batch
    server   FedAvg's

z, z_x and z_p are the representations that w, x and the client's previous model p have of a batch, sim is the cosine. A
representation is what enters the last layer; x and p, which do not train, are in evaluation mode. When a client trains
for the first time, p = x and l has no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import cosine_similarity, softplus

from parley.algorithms.base.exchange import Reply, exchange
from parley.algorithms.base.protocol import Contexts, algorithm
from parley.algorithms.local_update import FedAvg
from parley.core.errors import InputError
from parley.core.message import Memory, Message
from parley.core.tree import Tree, add, clone, subtract
from parley.learn.last_layer import representation
from parley.learn.stack import Data
from parley.learn.task import Task
from parley.learn.transforms import Batch, per_batch


@algorithm("moon")
@dataclass(frozen=True)
class MOON(FedAvg):
    """MOON (Li et al., 2021): FedAvg with representations held near the global model's, away from the previous one's.

    mu = 0 is FedAvg. A step takes four forward passes; clients are trained one by one, not in stacks.
    """

    mu: float = 1.0
    """Weight of the contrastive loss; the paper chooses from 0.1, 1, 5 and 10."""
    temperature: float = 0.5
    """What similarities are divided by (T)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.mu >= 0 and self.temperature > 0):
            raise InputError(f"mu must be at least 0, temperature above 0, not {self.mu} and {self.temperature}.")

    @exchange(like=FedAvg.client)
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        x, transform = message["model"], self.proximal(message["model"])
        if self.mu:
            own = self.buffers(task, message, memory)
            previous, statistics = memory.get("previous") or x, memory.get("statistics") or own

            def contrastive(g: Tree, w: Tree, batch: Batch) -> Tree:
                still = ((x, own), (previous, statistics))
                z_x, z_p = (representation(task, task.predictor(*model), batch.x) for model in still)
                leaves = {name: value.detach().requires_grad_() for name, value in w.items()}
                with torch.enable_grad():
                    # The batch's own statistics count in training; those that run were updated with the gradient.
                    z = representation(task, lambda inputs: task.apply(leaves, clone(own), inputs), batch.x)
                    apart = (cosine_similarity(z, z_p) - cosine_similarity(z, z_x)) / self.temperature
                    loss = softplus(apart).mean()
                if not loss.requires_grad:  # a single layer has no representation to hold near another
                    return g
                pulls = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
                return add(g, dict(zip(leaves, pulls, strict=True)), self.mu)

            transform = transform | per_batch(contrastive)
        local = self.train(task, x, message, memory, data, context, transform=transform)
        kept = {"previous": local.parameters, "statistics": local.buffers} if self.mu else {}
        return self.reply(task, local, send={"update": subtract(x, local.parameters)}, keep=kept)
