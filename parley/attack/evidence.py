"""From what the server received to what an attack compares with: the gradient or the Jacobians behind a reply."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor
from torch.func import functional_call, jacrev

from parley.algorithms.averaging.local_sgd import LocalSGD
from parley.algorithms.averaging.local_update import Averaging
from parley.algorithms.exchange import Reply
from parley.algorithms.protocol import Algorithm
from parley.attack.exact import first_layer, from_gradient, from_jacobian, labels
from parley.attack.intercept import Intercepted, Prepared
from parley.attack.matching import Target
from parley.channels.projection import Projection
from parley.channels.random_k import RandomK
from parley.channels.shuffle import Shuffle
from parley.channels.top_k import TopK
from parley.core.form import Form
from parley.core.message import Memory, Message
from parley.core.tree import Tree, scale
from parley.training.task import Task


@dataclass(frozen=True)
class Gradient:
    """An update that is a gradient of the victim's batch at the server's model, or close to one."""

    task: Task
    parameters: Tree
    buffers: Tree
    tree: Tree
    """The gradient as the server has it; entries that were not sent are zero."""
    seen: Intercepted
    samples: int
    steps: int
    """Local steps that were summed up; from 2 on it is only close to a gradient."""

    @property
    def sparse(self) -> bool:
        """Zeros stand for what was not sent."""
        return any(isinstance(stage, TopK | RandomK) for stage in self.seen.channels.up.stages)

    def target(self, span: tuple[float, float]) -> Target:
        """For a search."""
        info, classify = self.task.info, self.task.info.kind == "classification"
        through = self._through()
        received = flat(self.tree)
        kept = (received != 0).nonzero().squeeze(1) if self.sparse else None
        names = list(self.tree)
        parameters = {name: value.detach().requires_grad_() for name, value in self.parameters.items()}

        def view(x: Tensor, targets: Tensor) -> Tensor:
            loss = self.task.loss(apply(self.task, parameters, self.buffers, x, training=True), targets).mean()
            given = torch.autograd.grad(loss, [parameters[name] for name in names], create_graph=True)
            vector = flat(through(dict(zip(names, given, strict=True))))
            return vector if kept is None else vector[kept]

        return Target(
            received if kept is None else received[kept],
            view,
            (self.samples, *info.shape),
            info.outputs if classify else None,
            info.outputs,
            self.labels(span),
            span,
        )

    def labels(self, span: tuple[float, float]) -> Tensor | None:
        """Classes, from the last bias."""
        low, high = span
        grey = torch.full((1, *self.task.info.shape), (low + high) / 2, dtype=torch.float64)
        with torch.no_grad():
            guess = apply(self.task, self.parameters, self.buffers, grey).softmax(1)[0]
        return labels(self.task, self.tree, self.samples, guess)

    def exact(self, fill: Tensor) -> Tensor | None:
        """Inputs by division, [n, ...]; None where the first layer is not a dense one with a bias."""
        layer = first_layer(self.task)
        if layer is None:
            return None
        rebuilt = from_gradient(self.tree[layer[0]], self.tree[layer[1]], self.samples, fill.flatten())
        return rebuilt.reshape(self.samples, *self.task.info.shape)

    def _through(self):  # type: ignore[no-untyped-def]
        """What a known projection makes of a tree; the server has its key."""
        stages = self.seen.channels.up.stages
        if not any(isinstance(stage, Projection) for stage in stages):
            return lambda tree: tree
        if not all(isinstance(stage, Projection | Shuffle) for stage in stages):
            return lambda tree: tree
        channels, context = self.seen.channels, self.seen.context

        def project(tree: Tree) -> Tree:
            message = Message.of(update=tree)
            sent = channels.send(Reply(message), Memory(), context).message
            return channels.receive(sent, Form.like(message.tensors), context).message["update"]

        return project


def gradient_of(prepared: Prepared, seen: Intercepted, samples: int) -> Gradient | None:
    """The gradient behind a reply with a tree `update` of the model's form; None if there is none."""
    answer = seen.reply()
    if answer is None or "model" not in answer.sent:
        return None
    update, model = answer.received.get("update"), answer.sent["model"]
    if update.keys() != model.keys() or update.keys() != prepared.task.form.keys():
        return None
    steps, rate = work_of(prepared.algorithm, samples)
    buffers = {**prepared.task.initial_buffers(), **answer.sent.get("buffers")}
    return Gradient(
        prepared.task, double(model), double(buffers), scale(double(update), 1 / (rate * steps)), seen, samples, steps
    )


@singledispatch
def work_of(method: Algorithm, samples: int) -> tuple[int, float]:
    """Local steps of a client with so many samples, and the step size that is part of what it sends."""
    return 1, 1.0


@work_of.register
def _(method: LocalSGD, samples: int) -> tuple[int, float]:
    work = method.work()
    batches = -(-samples // min(work.batch or samples, samples))
    steps = work.steps if work.steps is not None else batches * (work.epochs or 1)
    return steps, method.local_optimizer().lr if method.lr > 0 else 1.0


@work_of.register
def _(method: Averaging, samples: int) -> tuple[int, float]:
    steps, lr = work_of.dispatch(LocalSGD)(method, samples)
    return steps, 1.0 if method.form == "gradients" else lr


@dataclass(frozen=True)
class Jacobian:
    """Sample-wise Jacobians at the server's model, with outputs and labels: what NTK-FL sends."""

    task: Task
    parameters: Tree
    buffers: Tree
    rows: Tree
    """By parameter, [n, outputs, ...]; entries that were not sent are zero."""
    classes: Tensor
    """Labels as they were sent, [n]."""

    def __len__(self) -> int:
        return len(self.classes)

    def target(self, sample: int, span: tuple[float, float], sent_only: bool = False) -> Target:
        """For a search for one sample's input; its label is known. `sent_only`: zeros are not compared."""
        info = self.task.info
        received = flat({name: value[sample] for name, value in self.rows.items()})
        kept = (received != 0).nonzero().squeeze(1) if sent_only else None

        def view(x: Tensor, targets: Tensor) -> Tensor:
            vector = flat(jacobian(self.task, self.parameters, self.buffers, x[0]))
            return vector if kept is None else vector[kept]

        return Target(
            received if kept is None else received[kept],
            view,
            (1, *info.shape),
            info.outputs,
            info.outputs,
            self.classes[sample : sample + 1],
            span,
        )

    def exact(self, fill: Tensor) -> Tensor | None:
        """Inputs by division, [n, ...]; None where the first layer is not a dense one with a bias."""
        layer = first_layer(self.task)
        if layer is None:
            return None
        rebuilt = from_jacobian(self.rows[layer[0]], self.rows[layer[1]], fill.flatten())
        return rebuilt.reshape(len(self), *self.task.info.shape)


def jacobian(task: Task, parameters: Tree, buffers: Tree, x: Tensor) -> Tree:
    """d outputs / d parameters at one input, by parameter [outputs, ...]; differentiable in the input."""

    def outputs(point: Tree) -> Tensor:
        return apply(task, point, buffers, x[None])[0]

    derivatives: Tree = jacrev(outputs)(parameters)
    return derivatives


def apply(task: Task, parameters: Tree, buffers: Tree, x: Tensor, training: bool = False) -> Tensor:
    """The network in double precision, whatever the module's own is."""
    module = task.network
    fixed = {name: value.detach().double() for name, value in module.named_parameters() if name not in parameters}
    statistics = {name: value.clone() for name, value in buffers.items()}
    before = module.training
    module.train(training)
    try:
        outputs: Tensor = functional_call(module, {**fixed, **parameters, **statistics}, (x,))
    finally:
        module.train(before)
    return outputs


def double(tree: Tree) -> Tree:
    return {name: value.double() if value.is_floating_point() else value for name, value in tree.items()}


def flat(tree: Tree) -> Tensor:
    """All entries as one vector, in the order of the tree."""
    return torch.cat([value.flatten() for value in tree.values()])
