"""MOON: model-contrastive federated learning (Li, He and Song, CVPR 2021, Algorithm 1).

    client   w <- w - eta gradient of f_i(w) + mu l(w), K times from the server's model x;  keep it as the previous one
             l = -log e^(sim(z, z_x)/T) / (e^(sim(z, z_x)/T) + e^(sim(z, z_p)/T)),  eq. (3), mean over the batch
    server   FedAvg's

z, z_x and z_p are the representations that w, x and the client's previous model p have of a batch, sim is the cosine. A
representation is what enters the last layer; x and p, which do not train, are in evaluation mode. When a client trains
for the first time, p = x and l has no gradient.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, softplus

from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.exchange import Reply, exchange
from parley.algorithms.protocol import Contexts, algorithm
from parley.core.errors import InputError
from parley.core.message import Memory, Message
from parley.core.tree import Tree, add, clone, subtract
from parley.data import ClientData
from parley.training.last_layer import clients_of, cut, joined, last_path, passed_through, replaced, representation
from parley.training.stack import Data
from parley.training.task import Task
from parley.training.transforms import Batch, per_batch

Models = tuple[tuple[Tree, Tree], tuple[Tree, Tree]]
"""Parameters and statistics of x and of p."""
EXACT = 2**24
"""Class numbers below this are exact in float32."""


@algorithm("moon")
@dataclass(frozen=True)
class MOON(FedAvg):
    """MOON (Li et al., 2021): FedAvg with representations held near the global model's, away from the previous one's.

    mu = 0 is FedAvg. A step of a chain without BatchNorm and dropout is one forward pass, and clients are stacked; the
    training loss is then the whole of f + mu l. With other networks a step takes four, and clients train one by one.
    """

    mu: float = 1.0
    """Weight of the contrastive loss; the paper chooses from 0.1, 1, 5 and 10."""
    temperature: float = 0.5
    """What similarities are divided by (T)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.mu >= 0 and self.temperature > 0):
            raise InputError(f"mu must be at least 0, temperature above 0, not {self.mu} and {self.temperature}.")

    @exchange(like=FedAvg.client, bias=None)
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        x = message["model"]
        if not self.mu:
            local = self.train(task, x, message, memory, data, context, transform=self.proximal(x))
            return self.reply(task, local, send={"update": subtract(x, local.parameters)})
        buffers = self.buffers(task, message, memory)
        still = ((x, buffers), (memory.get("previous") or x, memory.get("statistics") or buffers))
        halves = None if task.buffer_form else cut(task.network, _last_parameters(task.network))
        if halves is not None and (prepared := self._prepared(task, halves, still, data)) is not None:
            joint, samples = prepared
            trained = self.train(joint, x, message, memory, samples, context, transform=self.proximal(x)).trained
            local = self.local(task, x, trained, data, context, buffers)
        else:
            transform = self.proximal(x) | per_batch(self._contrastive(task, still))
            local = self.train(task, x, message, memory, data, context, transform=transform)
        kept = {"previous": local.parameters, "statistics": local.buffers}
        return self.reply(task, local, send={"update": subtract(x, local.parameters)}, keep=kept)

    def _apart(self, z: Tensor, z_x: Tensor, z_p: Tensor) -> Tensor:
        """Eq. (3) of every sample."""
        return softplus((cosine_similarity(z, z_p) - cosine_similarity(z, z_x)) / self.temperature)

    def _prepared(
        self, task: Task, halves: tuple[nn.Sequential, nn.Sequential], still: Models, data: Data
    ) -> tuple[Task, Data] | None:
        """The same as one loss of one network, for a chain that can be cut before its last layer.

        x and p do not train: z_x and z_p of all samples are computed once and go with the targets. The network gives z
        beside its outputs, so a step is one pass, and clients are stacked.
        """
        (body, head), data = halves, joined(data)
        seen = [passed_through(task, body, weights, data) for weights, _ in still]
        clients, features = clients_of(data), seen[0][0].shape[1:]
        shape, dtype = clients[0].y.shape[1:], clients[0].y.dtype
        if len(features) != 1 or len(head) != 1 or len(shape) > 1 or task.info.outputs >= EXACT:
            return None

        def joint_loss(outputs: Tensor, targets: Tensor) -> Tensor:
            y, z_x, z_p = targets.split([targets.shape[1] - 2 * features[0], features[0], features[0]], 1)
            out, z = outputs[:, : -features[0]], outputs[:, -features[0] :]
            return task.loss(out, y.reshape(len(y), *shape).to(dtype)) + self.mu * self._apart(z, z_x, z_p)

        samples = tuple(
            ClientData(client.x, torch.cat([client.y.reshape(len(client), -1).to(z_x.dtype), z_x, z_p], 1))
            for client, z_x, z_p in zip(clients, *seen, strict=True)
        )
        joint = replace(task, module=_Both(*halves), loss=joint_loss, observe=frozenset())
        return joint, replaced(data, samples)

    def _contrastive(self, task: Task, still: Models) -> Callable[[Tree, Tree, Batch], Tree]:
        """Adds the gradient of the contrastive loss to a batch's, whatever the network is."""

        def contrastive(g: Tree, w: Tree, batch: Batch) -> Tree:
            z_x, z_p = (representation(task, task.predictor(*model), batch.x) for model in still)
            leaves = {name: value.detach().requires_grad_() for name, value in w.items()}
            with torch.enable_grad():
                # The batch's own statistics count in training; those that run were updated with the gradient.
                z = representation(task, lambda inputs: task.apply(leaves, clone(still[0][1]), inputs), batch.x)
                loss = self._apart(z, z_x, z_p).mean()
            if not loss.requires_grad:  # a single layer has no representation to hold near another
                return g
            pulls = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
            return add(g, dict(zip(leaves, pulls, strict=True)), self.mu)

        return contrastive


class _Both(nn.Sequential):
    """A chain that gives what enters its last layer beside its outputs, under the names of the whole."""

    def __init__(self, body: nn.Sequential, head: nn.Sequential) -> None:
        super().__init__(OrderedDict([*body._modules.items(), *head._modules.items()]))

    def forward(self, x: Tensor) -> Tensor:
        *body, last = self
        for layer in body:
            x = layer(x)
        return torch.cat([last(x), x], 1)


def _last_parameters(network: nn.Module) -> tuple[str, ...]:
    """Names of the trainable parameters of the last layer."""
    path = last_path(network)
    parameters = network.get_submodule(path).named_parameters(path) if path else network.named_parameters()
    return tuple(name for name, parameter in parameters if parameter.requires_grad)
