"""What clients let listeners see in a simulation: nothing but the training loss, unless `task.observe` asks for more.

- `model`: the parameters after local training (consensus distance);
- `statistics`: the floating-point buffers that it has updated, under `model/` too;
- `drift`: ||y - x||^2 of every parameter, y after and x before local training;
- `gradient`: the gradient of the client's loss over all its samples at x (gradient dissimilarity); one pass more.
"""

from __future__ import annotations

from torch import Tensor

from parley.core.context import Context
from parley.core.tree import Tree, subtract
from parley.learn.devices import wide
from parley.learn.local import Trained, full_gradient
from parley.learn.stack import ContextStack, Data
from parley.learn.task import Task


def observations(
    task: Task, x: Tree, local: Trained, data: Data, context: Context | ContextStack, buffers: Tree | None = None
) -> dict[str, Tensor]:
    """For `Reply.observed`: names are `<what>/<parameter>`."""
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
