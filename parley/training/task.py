"""A task: what is learned. The same on the server, in every worker and on every client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from parley.core.errors import InputError
from parley.core.form import Form
from parley.core.show import Brief
from parley.core.tree import Tree
from parley.data import DataInfo
from parley.models.buffers import BufferPolicy, batch_statistics
from parley.models.spec import Traits, traits
from parley.training.devices import CPU
from parley.training.losses import Loss

Precision = Literal["full", "bf16"]
Predictor = Callable[[Tensor], Tensor]
"""Inputs [n, ...] -> outputs: logits of classes [n, classes] (or [n, classes, positions]), or values [n, ...]."""


@dataclass(frozen=True, repr=False)
class Task(Brief):
    """A module, a per-sample loss and the data's shape. The module's own weights and buffers are never changed."""

    module: nn.Module | None
    """Its weights are the starting point; None for methods that train no network (boosting, kernels)."""
    loss: Loss
    info: DataInfo
    population: int
    """Number of clients in the federation."""
    buffers: BufferPolicy = "average"
    """What happens to buffers that training changes (BatchNorm statistics): averaged like weights, kept by each
    client to itself, or refused."""
    observe: frozenset[str] = frozenset()
    """What listeners want to see of clients besides the loss (see `training.local`); empty costs nothing."""
    public: Tensor | None = None
    """Unlabelled inputs [m, ...] that everybody has: the server, and every recipient that computes with them."""
    precision: Precision = "full"
    """Of forward and backward passes: that of the weights, or bfloat16 (autocast) where torch deems it safe."""
    device: torch.device = CPU
    """Where its tensors are: clients train and models are evaluated there; the server's messages, memories and states
    are on the CPU."""

    def on(self, device: torch.device) -> Task:
        """The same task with its tensors elsewhere; the module stays on the CPU and is only ever called with others."""
        if device == self.device:
            return self
        return replace(self, device=device, public=None if self.public is None else self.public.to(device))

    @property
    def network(self) -> nn.Module:
        """The module, for methods that cannot do without one."""
        if self.module is None:
            raise InputError("this method trains a network; name a model.")
        return self.module

    @cached_property
    def traits(self) -> Traits:
        return traits(self.network)

    @cached_property
    def form(self) -> Form:
        """The form of the trainable parameters."""
        return Form.like({n: p for n, p in self.network.named_parameters() if p.requires_grad})

    @cached_property
    def buffer_form(self) -> Form:
        """The form of the buffers that training updates; empty for models without them."""
        return Form.like(dict(self.network.named_buffers()) if self.traits.has_batchnorm else {})

    @property
    def sent_buffers(self) -> Form:
        """The form of the buffers that travel: those above, unless clients keep them to themselves."""
        return self.buffer_form if self.buffers == "average" else Form()

    def initial(self) -> Tree:
        """The trainable parameters to start from."""
        parameters = {n: p.detach() for n, p in self.network.named_parameters() if p.requires_grad}
        return {n: value.to(self.device, copy=True) for n, value in parameters.items()}

    def initial_buffers(self) -> Tree:
        """Buffers that training updates, as the module has them; empty for models without them."""
        if not self.traits.has_batchnorm:
            return {}
        return {n: b.detach().to(self.device, copy=True) for n, b in self.network.named_buffers()}

    @cached_property
    def fixed(self) -> Tree:
        """On another device than the module: all it has, for what is not given with a call (frozen weights)."""
        if self.device.type == "cpu":
            return {}
        tensors = (*self.network.named_parameters(), *self.network.named_buffers())
        return {name: value.detach().to(self.device) for name, value in tensors}

    def apply(self, parameters: Tree, buffers: Tree, x: Tensor) -> Tensor:
        """The module with these weights. Buffers are updated in place if the module is in training mode, so all that
        training updates must be given then."""
        given = {**self.fixed, **parameters, **buffers}
        if self.precision == "full":
            return cast(Tensor, functional_call(self.network, given, (x,)))
        with torch.autocast(self.device.type, torch.bfloat16):
            outputs = cast(Tensor, functional_call(self.network, given, (x,)))
        return outputs.float()

    def predictor(self, parameters: Tree, buffers: Tree | None = None) -> Predictor:
        """The network in evaluation mode; without statistics of its own it normalises with those of the batch.

        `parameters` may hold the buffers too.
        """
        given = {**parameters, **(buffers or {})}
        borrowed = self.buffers == "local" and bool(self.buffer_form) and not self.buffer_form.keys() & given.keys()
        if self.buffer_form.keys() - given.keys():
            given = {**self.initial_buffers(), **given}

        def predict(x: Tensor) -> Tensor:
            module = self.network
            training = module.training
            module.eval()
            try:
                if borrowed:
                    with batch_statistics(module):
                        return self.apply(given, {}, x)
                return self.apply(given, {}, x)
            finally:
                module.train(training)

        return predict
