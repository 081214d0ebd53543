"""A task: what is learned. The same on the server, in every worker and on every client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from torch import Tensor, nn
from torch.func import functional_call

from parley.core.tree import Tree
from parley.data import DataInfo
from parley.learn.losses import Loss
from parley.models.buffers import BufferPolicy, batch_statistics
from parley.models.spec import Traits, traits

Predictor = Callable[[Tensor], Tensor]
"""Inputs [n, ...] -> outputs: logits of classes [n, classes] (or [n, classes, positions]), or values [n, ...]."""


@dataclass(frozen=True)
class Task:
    """A module (its weights are the starting point and are never changed), a per-sample loss and the data's shape."""

    module: nn.Module
    loss: Loss
    info: DataInfo
    population: int
    """Number of clients in the federation."""
    buffers: BufferPolicy = "average"
    """What happens to buffers that training changes (BatchNorm statistics): averaged like weights, kept by each
    client to itself, or refused."""
    observe: frozenset[str] = frozenset()
    """What listeners want to see of clients besides the loss (see `learn.observe`); empty costs nothing."""

    @cached_property
    def traits(self) -> Traits:
        return traits(self.module)

    def initial(self) -> Tree:
        """The trainable parameters to start from."""
        return {n: p.detach().clone() for n, p in self.module.named_parameters() if p.requires_grad}

    def initial_buffers(self) -> Tree:
        """Buffers that training updates; empty for models without them."""
        if not self.traits.has_batchnorm:
            return {}
        return {n: b.detach().clone() for n, b in self.module.named_buffers()}

    def apply(self, parameters: Tree, buffers: Tree, x: Tensor) -> Tensor:
        """The module with these weights. Buffers are updated in place if the module is in training mode."""
        return cast(Tensor, functional_call(self.module, {**parameters, **buffers}, (x,)))

    def predictor(self, parameters: Tree, buffers: Tree | None = None) -> Predictor:
        """The network in evaluation mode; without statistics of its own it normalises with those of the batch."""
        own = buffers or {}
        borrowed = self.traits.has_batchnorm and self.buffers == "local" and not own

        def predict(x: Tensor) -> Tensor:
            training = self.module.training
            self.module.eval()
            try:
                if borrowed:
                    with batch_statistics(self.module):
                        return self.apply(parameters, {}, x)
                return self.apply(parameters, own, x)
            finally:
                self.module.train(training)

        return predict
