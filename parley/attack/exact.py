"""What can be read off without any search: inputs from a dense first layer, labels from the last layer's bias.

A dense first layer with bias, z = W x + b, has for every quantity q computed from it (a loss, an output of the network)

    dq/dW = delta x',   dq/db = delta     so     x = (dq/dW)_r / (dq/db)_r     for every unit r with delta_r != 0.

For one sample that is the input itself, from its gradient or from any row of its Jacobian. In a gradient over several
samples, unit r shows the mean of those that it is active for, weighted by their delta: one that a single sample
activates shows that sample exactly, and where several units do, they agree on it.

The bias of a last layer under cross-entropy has the gradient mean_i (p_ic - [y_i = c]): with one sample its only
negative entry is the label.
"""

from __future__ import annotations

import torch
from torch import Tensor

from parley.core.tree import Tree
from parley.training.losses import cross_entropy
from parley.training.task import Task

_ALIKE = 1e-3
"""Two units agree on a sample if they differ by less than this share of its size."""


def first_layer(task: Task) -> tuple[str, str] | None:
    """Names of the weight and the bias of a dense layer that sees the inputs themselves; None if there is none."""
    chain = task.traits.dense
    if chain is None:
        return None
    step = next(step for step in chain if step.kind == "linear")
    before = chain[: chain.index(step)]
    if step.weight is None or step.bias is None or any(other.kind not in ("flatten", "identity") for other in before):
        return None
    return step.weight, step.bias


def divided(weight: Tensor, bias: Tensor, fill: Tensor) -> Tensor:
    """The input behind rows delta_r x' [r, d] and delta_r [r] of one sample: the least squares of all their ratios.

    Entries that were not sent are zero and count for nothing; pixels of which nothing was sent are those of `fill` [d].
    """
    known = (weight != 0) & (bias != 0)[:, None]
    below = (known * bias.square()[:, None]).sum(0)
    x = (known * weight * bias[:, None]).sum(0) / below.clamp(min=torch.finfo(weight.dtype).tiny)
    return torch.where(below > 0, x, fill)


def from_gradient(weight: Tensor, bias: Tensor, samples: int, fill: Tensor) -> Tensor:
    """Inputs [samples, d] from the first layer's gradient of a batch; exact for those that have a unit of their own."""
    if samples == 1:
        return divided(weight, bias, fill)[None]
    active = bias.abs() > 1e-12 * bias.abs().max()
    weight, bias = weight[active], bias[active]
    if not len(bias):
        return fill.expand(samples, -1)
    guesses = weight / bias[:, None]
    apart = torch.cdist(guesses, guesses)
    size = guesses.norm(dim=1).clamp(min=1e-12)
    agree = apart <= _ALIKE * torch.minimum(size[:, None], size[None])
    # Those on which most units agree first; among the rest, those whose bias has the largest gradient.
    worth = agree.sum(1).double() + bias.abs() / bias.abs().max() / 2
    chosen: list[int] = []
    for row in worth.argsort(descending=True).tolist():
        if len(chosen) < samples and not any(agree[row, other] for other in chosen):
            chosen.append(row)
    rebuilt = guesses[chosen]
    return torch.cat([rebuilt, fill.expand(samples - len(chosen), -1)])


def from_jacobian(weight: Tensor, bias: Tensor, fill: Tensor) -> Tensor:
    """Inputs [n, d] from the first layer's part of Jacobians, [n, outputs, units, d] and [n, outputs, units]."""
    return torch.stack([divided(w.flatten(0, 1), b.flatten(), fill) for w, b in zip(weight, bias, strict=True)])


def labels(task: Task, gradient: Tree, samples: int, guess: Tensor) -> Tensor | None:
    """The classes of a batch [samples], in order, from the last bias's gradient; None where that says nothing.

    `guess`: the mean of the model's probabilities over inputs as the server imagines them, [classes].
    """
    last = last_bias(task)
    if last is None or last not in gradient:
        return None
    slope = gradient[last].double()
    if samples == 1:
        return slope.argmin()[None]
    counts = samples * (guess.double() - slope)
    whole = counts.clamp(min=0).floor()
    left = samples - int(whole.sum())
    if left > 0:
        whole[(counts - whole).topk(min(left, len(whole))).indices] += 1
    repeated = torch.repeat_interleave(torch.arange(len(whole)), whole.long())
    return torch.cat([repeated, repeated.new_full((max(samples - len(repeated), 0),), int(slope.argmin()))])[:samples]


def last_bias(task: Task) -> str | None:
    """The bias that is added to the outputs of a classifier trained with cross-entropy."""
    if task.loss is not cross_entropy or task.info.kind != "classification":
        return None
    names = [name for name, spec in task.form.items() if spec is not None and spec[1] == (task.info.outputs,)]
    return names[-1] if names and names[-1] == list(task.form)[-1] else None


def label_share(truth: Tensor, rebuilt: Tensor, classes: int) -> float:
    """The share of a batch's labels that were found, as a set with repetitions.

    Of targets that are numbers (`classes` = 0): of those met within a hundredth of the spread of standardised ones.
    """
    if not classes:
        return float(
            ((truth - rebuilt.reshape(truth.shape)).abs() <= 0.01).reshape(len(truth), -1).all(1).double().mean()
        )
    counts = [torch.bincount(labels.long(), minlength=classes) for labels in (truth, rebuilt)]
    return float(torch.minimum(*counts).sum()) / len(truth)
