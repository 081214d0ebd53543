"""What a client does with its gradients: plain SGD, or any elementwise optimizer of `torch.optim`."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from parley.core.errors import InputError, nearest


@cache
def _classes() -> dict[str, type[Optimizer]]:
    found = inspect.getmembers(torch.optim, lambda c: inspect.isclass(c) and issubclass(c, Optimizer))
    # L-BFGS needs a closure, sparse optimizers sparse gradients; neither fits a step that is handed its gradients.
    # Adafactor and Muon are not elementwise: on a stack of clients they would mix what belongs to different clients.
    left_out = {"optimizer", "lbfgs", "sparseadam", "adafactor", "muon"}
    return {name.lower(): value for name, value in found if name.lower() not in left_out}


@dataclass(frozen=True)
class LocalOptimizer:
    """The optimizer of local steps. It starts afresh in every round."""

    name: str = "sgd"
    """`sgd`, or the name of an elementwise `torch.optim` class in lower case (`adam`, `adamw`, `rmsprop`, ...)."""
    lr: float = 0.1
    """Step size (gamma); 0 is allowed and leaves the client's model where it is."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of that class, such as momentum or weight_decay."""

    def __post_init__(self) -> None:
        if self.name == "sgd" and not self.options and self.lr >= 0:
            return
        if self.name not in _classes():
            raise InputError(f"unknown local optimizer '{self.name}': {nearest(self.name, _classes())}")
        if not self.lr >= 0:
            raise InputError(f"the local step size lr must be at least 0, not {self.lr}.")
        known = set(inspect.signature(_classes()[self.name]).parameters) - {"params", "lr"}
        for option in self.options:
            if option not in known:
                raise InputError(f"optimizer '{self.name}' has no option '{option}': {nearest(option, known)}")

    @property
    def plain(self) -> bool:
        """x <- x - lr g and nothing else."""
        return self.name == "sgd" and not self.options

    def start(self, parameters: list[Tensor]) -> Stepper:
        return PlainSteps(self.lr) if self.plain else TorchSteps(_classes()[self.name], self, parameters)


class PlainSteps:
    def __init__(self, lr: float) -> None:
        self.lr = lr

    def step(self, parameters: list[Tensor], gradients: list[Tensor], active: int | None) -> None:
        """Change `parameters` in place; `active`: the first rows of a stack that are still at work."""
        rows = parameters if active is None else [p[:active] for p in parameters]
        torch._foreach_add_(rows, gradients, alpha=-self.lr)


class TorchSteps:
    """Elementwise optimizers act on a stack as they act on each client; finished rows are put back."""

    def __init__(self, kind: type[Optimizer], spec: LocalOptimizer, parameters: list[Tensor]) -> None:
        self.optimizer = kind(parameters, lr=spec.lr, **spec.options)  # type: ignore[call-arg]

    def step(self, parameters: list[Tensor], gradients: list[Tensor], active: int | None) -> None:
        if active is None:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            self.optimizer.step()
            return
        finished = [p[active:].clone() for p in parameters]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = torch.zeros_like(parameter)
            parameter.grad[:active] = gradient
        self.optimizer.step()
        for parameter, rest in zip(parameters, finished, strict=True):
            parameter[active:] = rest


Stepper = PlainSteps | TorchSteps
