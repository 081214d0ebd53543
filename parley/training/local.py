"""The local-training core: K steps or E epochs on one client or on a stack of clients.

Most federated methods are this plus something elementwise. They say what with a gradient transform (a proximal pull, a
control variate) and with Theta, the weights with which gradients are summed (Charles and Konečný, Algorithm 2):

    x_1 = x
    for k = 1 ... K:  g_k = transform(gradient of batch k at x_k);  x_{k+1} = optimizer(x_k, g_k)
    return x_{K+1} and sum_k theta_k g_k
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from parley.core.context import Context
from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.show import Brief
from parley.core.tree import Tree, subtract
from parley.data import ClientData
from parley.training.batches import Work
from parley.training.dense import DenseGradient
from parley.training.devices import wide
from parley.training.gradients import Gradient, SoloGradient, StackGradient
from parley.training.optimizers import Kept, LocalOptimizer, Stepper
from parley.training.randomness import forward_randomness
from parley.training.stack import (
    ClientStack,
    ContextStack,
    Data,
    Keys,
    KeyStack,
    Level,
    Unstackable,
    outside,
    rows,
    stack_batches,
)
from parley.training.task import Task
from parley.training.transforms import Batch, GradientTransform, Stage

Theta = Literal["all", "last"] | Sequence[float]
"""Theta_{1:K} (all gradients), Theta_K (the last one) or explicit weights theta_1 ... theta_K."""

CHUNK = 512
"""Samples of a full gradient taken at once."""


@dataclass(frozen=True, slots=True, repr=False)
class Trained(Brief):
    """The outcome of local training."""

    parameters: Tree
    buffers: Tree
    gradients: Tree
    """sum_k theta_k g_k, empty unless asked for."""
    loss: Tensor
    """Mean training loss over the steps, [] in float64."""
    moved: Callable[[], Tensor]
    optimizer: Kept = field(default_factory=Kept)
    """The local optimizer's state, empty unless asked for."""

    @property
    def step_sum(self) -> Tensor:
        """lr ||a||_1, [] in float64: what divides the change of the model to give the mean gradient of SGD steps."""
        return self.moved()


def train(
    task: Task,
    parameters: Tree,
    data: Data,
    key: Keys,
    *,
    work: Work,
    optimizer: LocalOptimizer,
    transform: GradientTransform | None = None,
    theta: Theta | None = None,
    buffers: Tree | None = None,
    kept: Kept | None = None,
    clip: float | None = None,
    only: Collection[str] | None = None,
) -> Trained:
    """Train locally from `parameters`, which are left as they are.

    `kept` is an optimizer state to go on from (an empty one at first); without it the optimizer starts afresh. `clip`:
    the largest norm of a step's gradient. Without `buffers` those of the module are the starting point. `only`: the
    parameters that move, by default all; to transforms, clipping and the optimizer there are no others.
    """
    names = [name for name in parameters if only is None or name in only]
    if not names:
        raise InputError("local training was given no parameters to move.")
    still = {name: value.detach() for name, value in parameters.items() if name not in names}
    stages = transform.stages if transform is not None else ()
    if isinstance(data, ClientData):
        if not isinstance(key, Key):
            raise InputError("one client's training needs one key.")
        run = _Steps(task, names, optimizer, theta, clip, kept)
        plan = work.plan(len(data), key.fold("batches"))
        statistics = {name: value.clone() for name, value in (buffers or task.initial_buffers()).items()}
        x = [_laid_out(parameters[name].detach()).clone() for name in names]
        carried = [[_ordered(tree, names) for tree in stage.trees] for stage in stages]
        gradient = SoloGradient(
            task, names, statistics, data, plan, {n: _laid_out(value) for n, value in still.items()}
        )
        # Only of a dense chain is it certain that no layer draws random numbers (a module may call F.dropout by hand).
        with forward_randomness(key.fold("forward"), task.traits.dense is None, task.device):
            return _completed(parameters, run(gradient, plan.steps, x, stages, carried, statistics))
    run = _Steps(task, names, optimizer, theta, clip, kept)
    return _completed(parameters, _train_stack(task, names, parameters, still, data, key, work, run, stages))


def _completed(parameters: Tree, trained: Trained) -> Trained:
    """With the parameters that did not move, in the model's order."""
    if len(trained.parameters) == len(parameters):
        return trained
    return replace(trained, parameters={**parameters, **trained.parameters})


def _train_stack(
    task: Task,
    names: list[str],
    parameters: Tree,
    still: Tree,
    data: ClientStack,
    key: Keys,
    work: Work,
    run: _Steps,
    stages: tuple[Stage, ...],
) -> Trained:
    assert isinstance(key, KeyStack)
    count = len(data.sizes)
    if any(stage.sees_batch for stage in stages):
        raise Unstackable("looks at the batches of local steps")
    with outside() as stack:
        start = [rows(parameters[name], count).detach() for name in names]
        fixed = [rows(value, count) for value in still.values()]
        trees = [[_ordered(tree, names) for tree in stage.trees] for stage in stages]
        carried = [[[rows(value, count).detach() for value in tree] for tree in client_trees] for client_trees in trees]
        if run.kept is not None:
            slots = {name: rows(value, count).detach() for name, value in run.kept.slots.items()}
            run = replace(run, kept=Kept(slots, run.kept.counts))
        batches = stack_batches(data, work.stacked(data.sizes, key.fold("batches").keys), start[0])
        x = [value.clone(memory_format=torch.contiguous_format) for value in start]
        order = [*names, *still]
        gradient: Gradient
        if DenseGradient.applies(task, data.samples):
            gradient = DenseGradient(task, order, batches, fixed)
        else:
            gradient = StackGradient(task, order, batches, fixed)
        trained = run(gradient, batches.steps, x, stages, carried, {})
    return _one_each(trained, stack)


def _one_each(trained: Trained, stack: Level) -> Trained:
    """The outcome of a stack as one client's."""
    return Trained(
        stack.each(trained.parameters),
        {},
        stack.each(trained.gradients),
        stack.client(trained.loss),
        lambda: stack.client(trained.moved()),
        Kept(stack.each(trained.optimizer.slots), trained.optimizer.counts),
    )


@dataclass(frozen=True)
class _Steps:
    """The steps themselves, over one client's tensors or the rows of a stack."""

    task: Task
    names: list[str]
    optimizer: LocalOptimizer
    theta: Theta | None
    clip: float | None
    kept: Kept | None

    def __call__(
        self,
        gradient: Gradient,
        steps: int | tuple[int, ...],
        x: list[Tensor],
        stages: tuple[Stage, ...],
        carried: list[list[list[Tensor]]],
        buffers: Tree,
    ) -> Trained:
        most = max(steps) if isinstance(steps, tuple) else steps
        theta, optimizer = self.theta, self.optimizer
        _check_theta(theta, most)
        total = [torch.zeros_like(value) for value in x] if theta is not None else None
        stepper = optimizer.start(x, self.names if self.kept is not None else None, self.kept)
        plain = optimizer.plain and total is None and self.clip is None
        fused = plain and isinstance(gradient, DenseGradient) and all(stage.linear is not None for stage in stages)
        decay, shift = _linear(stages, carried, optimizer.lr) if fused else (1.0, None)
        shape = (len(steps),) if isinstance(steps, tuple) else ()
        losses = torch.zeros(shape, dtype=wide(x[0].device), device=x[0].device)
        self.task.network.train()
        with torch.no_grad():
            for k in range(most):
                active = _active(steps, k)
                at = x if active is None else [value[:active] for value in x]
                if fused:
                    assert isinstance(gradient, DenseGradient)
                    loss = gradient.descend(at, k, optimizer.lr, decay, _first(shift, active))
                else:
                    g, loss = gradient(at, k)
                    for stage, trees in zip(stages, carried, strict=True):
                        g = self._staged(stage, trees, g, at, active, gradient, k)
                    if self.clip is not None:
                        g = _clipped(g, self.clip, isinstance(steps, tuple))
                    if total is not None and theta is not None:
                        _accumulate(total, g, theta, k, steps)
                    stepper.step(x, g, active)
                (losses if active is None else losses[:active]).add_(loss)
        return self._outcome(x, buffers, total, losses, steps, stepper)

    def _staged(
        self,
        stage: Stage,
        trees: list[list[Tensor]],
        g: list[Tensor],
        x: list[Tensor],
        active: int | None,
        gradient: Gradient,
        k: int,
    ) -> list[Tensor]:
        if stage.sees_batch:
            assert isinstance(gradient, SoloGradient)
            named = [dict(zip(self.names, values, strict=True)) for values in (g, x, *trees)]
            changed: Tree = stage.function(*named[:2], Batch(*gradient.batches[k], k), *named[2:])  # type: ignore[assignment]
            return [value.detach() for value in _ordered(changed, self.names, "what the function of per_batch returns")]
        here = trees if active is None else [[value[:active] for value in values] for values in trees]
        return stage.function(g, x, *here)

    def _outcome(
        self,
        x: list[Tensor],
        buffers: Tree,
        total: list[Tensor] | None,
        losses: Tensor,
        steps: int | tuple[int, ...],
        stepper: Stepper,
    ) -> Trained:
        return Trained(
            parameters=dict(zip(self.names, [value.detach() for value in x], strict=True)),
            buffers=buffers,
            gradients=dict(zip(self.names, total, strict=True)) if total is not None else {},
            loss=losses / _counted(steps, losses),
            moved=partial(self.optimizer.step_sum, steps, self.kept is not None, losses.device),
            optimizer=stepper.kept() if self.kept is not None else Kept(),
        )


def _linear(
    stages: tuple[Stage, ...], carried: list[list[list[Tensor]]], lr: float
) -> tuple[float, list[Tensor] | None]:
    """What linear stages make of a plain step: x <- decay x - lr gradient + shift."""
    terms = [
        (factor, tree)
        for stage, trees in zip(stages, carried, strict=True)
        for factor, tree in zip(stage.linear[1] if stage.linear else (), trees, strict=True)
    ]
    decay = 1 - lr * sum(stage.linear[0] for stage in stages if stage.linear)
    if not terms:
        return decay, None
    alike = [all(values[i].stride(0) == 0 for _, values in terms) for i in range(len(terms[0][1]))]
    kept = [(factor, [v[:1] if same else v for v, same in zip(values, alike, strict=True)]) for factor, values in terms]
    shift = [value * (-lr * kept[0][0]) for value in kept[0][1]]
    for factor, values in kept[1:]:
        torch._foreach_add_(shift, values, alpha=-lr * factor)
    return decay, shift


def _first(shift: list[Tensor] | None, active: int | None) -> list[Tensor] | None:
    """The rows of clients that still work; of what all have alike there is one."""
    return shift if shift is None or active is None else [value[:active] for value in shift]


def _ordered(tree: Tree, names: list[str], what: str = "a tree of a gradient transform") -> list[Tensor]:
    """The tensors of a tree in the order of the parameters, all of which it must have."""
    if not isinstance(tree, Mapping):
        raise InputError(f"{what} must be a tree, a tensor by the name of each parameter, not {type(tree).__name__}.")
    if (missing := next((name for name in names if name not in tree), None)) is not None:
        raise InputError(f"{what} lacks '{missing}'; it needs a tensor for every parameter that is trained.")
    return [tree[name] for name in names]


def _counted(steps: int | tuple[int, ...], like: Tensor) -> Tensor | int:
    """How many steps each client took; one number if all took the same."""
    if isinstance(steps, int) or steps[0] == steps[-1]:
        return steps if isinstance(steps, int) else steps[0]
    return torch.tensor(steps, dtype=like.dtype).to(like.device)


def full_gradient(task: Task, x: Tree, data: Data, key: Keys, buffers: Tree | None = None) -> Tree:
    """The gradient of a client's loss at x over all its samples."""
    work, theta = Work(steps=1), [1.0]
    if isinstance(data, ClientData) and len(data) > CHUNK:
        work = Work(epochs=1, batch=CHUNK)
        theta = [length / len(data) for length in work.plan(len(data), Key()).lengths]
    still = LocalOptimizer(lr=0.0)
    return train(task, x, data, key, work=work, optimizer=still, theta=theta, buffers=buffers).gradients


def _laid_out(value: Tensor) -> Tensor:
    """Weights of convolutions in the layout in which they are fastest on a CPU."""
    return value.contiguous(memory_format=torch.channels_last) if value.ndim == 4 else value


def _clipped(g: list[Tensor], largest: float, stacked: bool) -> list[Tensor]:
    """Scaled down to the norm `largest`, each client by itself."""
    norms = [value.reshape(len(value), -1).norm(dim=1) if stacked else value.norm() for value in g]
    factor = (largest / torch.stack(norms).norm(dim=0).clamp(min=largest)).to(g[0].dtype)
    return [value * (factor.view(-1, *[1] * (value.ndim - 1)) if stacked else factor) for value in g]


def _active(steps: int | tuple[int, ...], k: int) -> int | None:
    """How many clients of a stack still work in step k (from 0); None if all do, or for one client."""
    return None if isinstance(steps, int) or steps[-1] > k else _count(steps, k)


def _check_theta(theta: Theta | None, steps: int) -> None:
    if theta is None or isinstance(theta, str):
        return
    if len(theta) != steps:
        raise InputError(f"Theta has {len(theta)} weights but a client takes {steps} steps; make them equal.")


def _accumulate(total: list[Tensor], g: list[Tensor], theta: Theta, k: int, steps: int | tuple[int, ...]) -> None:
    """total += theta_k g_k (Charles and Konečný, the last line of Algorithm 2)."""
    if theta == "last":
        # The clients whose own last step this is: all or none of one client, the last active rows of a stack.
        ending = slice(_count(steps, k + 1), _count(steps, k)) if isinstance(steps, tuple) else ...
        if isinstance(steps, tuple) or k == steps - 1:
            for into, gradient in zip(total, g, strict=True):
                into[ending] = gradient[ending]
        return
    weight = 1.0 if isinstance(theta, str) else float(theta[k])
    if weight:
        at = (
            total
            if isinstance(steps, int)
            else [into[: len(client_grads)] for into, client_grads in zip(total, g, strict=True)]
        )
        torch._foreach_add_(at, g, alpha=weight)


def _count(steps: tuple[int, ...], k: int) -> int:
    """How many clients of a stack take more than k steps; they are the first ones."""
    return sum(1 for count in steps if count > k)


def observations(
    task: Task, x: Tree, local: Trained, data: Data, context: Context | ContextStack, buffers: Tree | None = None
) -> dict[str, Tensor]:
    """What clients let listeners see in a simulation, for `Reply.observed`: the training loss and what
    `task.observe` names.

    - `model`: the parameters after local training (consensus distance);
    - `statistics`: the floating-point buffers that it has updated, under `model/` too;
    - `drift`: ||y - x||^2 of every parameter, y after and x before local training;
    - `gradient`: the gradient of the client's loss over all its samples at x (gradient dissimilarity); one pass more.
    """
    seen = {"loss": local.loss}
    if "model" in task.observe:
        seen |= _named("model", local.parameters)
    if "statistics" in task.observe:
        seen |= _named("model", {name: value for name, value in local.buffers.items() if value.is_floating_point()})
    if "drift" in task.observe:
        moved = subtract(x, local.parameters)
        seen |= _named("drift", {name: value.to(wide(value.device)).square().sum() for name, value in moved.items()})
    if "gradient" in task.observe:
        seen |= _named("gradient", full_gradient(task, x, data, context.key, buffers))
    return seen


def _named(what: str, tree: Tree) -> Tree:
    return {f"{what}/{name}": value for name, value in tree.items()}
