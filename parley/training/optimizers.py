"""What a client does with its gradients: plain SGD, or any elementwise optimizer of `torch.optim`."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from parley.core.errors import InputError, UnsupportedError, nearest
from parley.core.message import Memory, Part, Scalar
from parley.core.tree import Tree
from parley.training.devices import CPU
from parley.training.schedules import Constant, Schedule

_GROUP = "optimizer"
_TAKEN = "taken"
"""The count of steps that a schedule goes by, among the numbers kept."""


@cache
def _classes() -> dict[str, type[Optimizer]]:
    members = inspect.getmembers(torch.optim, lambda c: inspect.isclass(c) and issubclass(c, Optimizer))
    # L-BFGS needs a closure, sparse optimizers sparse gradients; neither fits a step that is handed its gradients.
    # Adafactor and Muon are not elementwise: on a stack of clients they would mix what belongs to different clients.
    left_out = {"optimizer", "lbfgs", "sparseadam", "adafactor", "muon"}
    return {name.lower(): value for name, value in members if name.lower() not in left_out}


@dataclass(frozen=True)
class LocalOptimizer:
    """The optimizer of local steps. It starts afresh in every round, unless a method keeps its state (`Kept`)."""

    name: str = "sgd"
    """`sgd`, or the name of an elementwise `torch.optim` class in lower case (`adam`, `adamw`, `rmsprop`, ...)."""
    lr: float = 0.1
    """Step size (gamma); 0 is allowed and leaves the client's model where it is."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of that class, such as momentum or weight_decay."""
    schedule: Schedule = field(default_factory=Constant)
    """How lr changes with the steps taken, over all rounds if the state is kept, else in each round anew; a schedule by
    rounds has been applied to lr already."""

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
        return self.name == "sgd" and not self.options and self.schedule.by == "round"

    def start(self, parameters: list[Tensor], names: list[str] | None = None, kept: Kept | None = None) -> Stepper:
        """Ready to step; with `names` the state can be taken out afterwards, and goes on from `kept`."""
        if self.plain:
            return PlainSteps(self.lr)
        return TorchSteps(_classes()[self.name], self, parameters, names, kept)

    def step_sum(self, steps: int | tuple[int, ...], kept: bool = False, device: torch.device = CPU) -> Tensor:
        """lr ||a||_1: how far gradients of 1 move a parameter, of one client [] or of each of a stack [S], float64.

        lr times the step count without momentum. The change of a model by SGD is lr sum_k a_k g_k, so this turns it
        back into a mean gradient (FedNova, SCAFFOLD). `kept`: with momentum that runs through the rounds.
        """
        if isinstance(steps, int):
            moved = self.stride * steps if kept else self._moved(steps)
            # A number on the CPU can be combined with tensors anywhere, and not every device has float64.
            return torch.tensor(self.lr * moved, dtype=torch.float64)
        once = {k: self.step_sum(k, kept) for k in set(steps)}
        return torch.stack([once[k] for k in steps]).to(device)

    def _moved(self, steps: int) -> float:
        """||a||_1 from a fresh start: the step count without momentum. Weight decay belongs to the gradients."""
        if self.plain:
            return float(steps)
        point = torch.zeros(1, dtype=torch.float64)
        options = {k: v for k, v in self.options.items() if k != "weight_decay"}
        stepper = LocalOptimizer(self.name, 1.0, options, self.schedule).start([point])
        for _ in range(steps):
            stepper.step([point], [torch.ones_like(point)], None)
        return -float(point)

    @property
    def stride(self) -> float:
        """What one gradient of 1 moves a parameter in all, in units of lr: 1/(1 - beta) with momentum that runs on."""
        if self.name != "sgd":
            return 1.0
        momentum, dampening = float(self.options.get("momentum", 0)), float(self.options.get("dampening", 0))
        return (1 - dampening) / (1 - momentum) if momentum else 1.0


@dataclass(frozen=True)
class Kept:
    """An optimizer's state between rounds, as it lies in a client's memory."""

    slots: Tree = field(default_factory=dict)
    """`<slot>/<parameter>`, each of the parameter's shape, such as `momentum_buffer/0.weight`."""
    counts: dict[str, Scalar] = field(default_factory=dict)
    """Numbers that all parameters share, such as `step`."""

    def parts(self, phase: str = "") -> dict[str, Part]:
        """For `Memory.of` and `replace`; methods that train in several phases give each its name."""
        group = _group(phase)
        parts: dict[str, Part] = {f"{group}-{name}": value for name, value in self.counts.items()}
        return parts | {group: self.slots}

    @classmethod
    def of(cls, memory: Memory, phase: str = "") -> Kept:
        group = _group(phase)
        counts = {n[len(group) + 1 :]: v for n, v in memory.scalars.items() if n.startswith(f"{group}-")}
        return cls(memory.get(group), counts)


def _group(phase: str) -> str:
    return f"{_GROUP}.{phase}" if phase else _GROUP


class PlainSteps:
    def __init__(self, lr: float) -> None:
        self.lr = lr

    def kept(self) -> Kept:
        return Kept()

    def step(self, parameters: list[Tensor], gradients: list[Tensor], active: int | None) -> None:
        """Change `parameters` in place; `active`: the first rows of a stack that are still at work."""
        rows = parameters if active is None else [p[:active] for p in parameters]
        torch._foreach_add_(rows, gradients, alpha=-self.lr)


class TorchSteps:
    """Elementwise optimizers act on a stack as they act on each client; finished rows are put back."""

    def __init__(
        self,
        kind: type[Optimizer],
        spec: LocalOptimizer,
        parameters: list[Tensor],
        names: list[str] | None,
        kept: Kept | None,
    ) -> None:
        self.optimizer = kind(parameters, lr=spec.lr, **spec.options)  # type: ignore[call-arg]
        self.names, self.uneven = names, False
        self.lr, self.schedule, self.taken = spec.lr, spec.schedule, 0
        if kept is not None and names is not None and (kept.slots or kept.counts):
            self._restore(parameters, names, kept)

    def step(self, parameters: list[Tensor], gradients: list[Tensor], active: int | None) -> None:
        if self.schedule.by == "step":
            self.optimizer.param_groups[0]["lr"] = self.lr * self.schedule.factor(self.taken)
        self.taken += 1
        if active is None:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            self.optimizer.step()
            return
        self.uneven = True
        still = parameters if self.names is None else [*parameters, *self._slots().values()]
        finished = [value[active:].clone() for value in still]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = torch.zeros_like(parameter)
            parameter.grad[:active] = gradient
        self.optimizer.step()
        for value, rest in zip(still, finished, strict=True):
            value[active:] = rest

    def kept(self) -> Kept:
        """The state after the last step."""
        slots = self._slots()
        first = self.optimizer.state[self._parameters[0]]
        counts: dict[str, Scalar] = {s: float(value) for s, value in first.items() if s not in self._shaped}
        if self.schedule.by == "step":
            counts[_TAKEN] = self.taken
        if counts and self.uneven:
            raise UnsupportedError(
                "clients that take different numbers of steps cannot keep this optimizer's state in one stack; use "
                'runtime = "inline" or "pool".'
            )
        return Kept({name: value.detach() for name, value in slots.items()}, counts)

    @property
    def _parameters(self) -> list[Tensor]:
        parameters: list[Tensor] = self.optimizer.param_groups[0]["params"]
        return parameters

    @property
    def _shaped(self) -> list[str]:
        """Slots that have the parameters' shapes; the others are numbers that all parameters share."""
        states = [(p, self.optimizer.state[p]) for p in self._parameters]
        return [
            slot
            for slot, value in states[0][1].items()
            if isinstance(value, Tensor) and all(state[slot].shape == p.shape for p, state in states)
        ]

    def _slots(self) -> Tree:
        assert self.names is not None
        named = list(zip(self.names, self._parameters, strict=True))
        return {f"{slot}/{name}": self.optimizer.state[p][slot] for slot in self._shaped for name, p in named}

    def _restore(self, parameters: list[Tensor], names: list[str], kept: Kept) -> None:
        self.taken = int(kept.counts.get(_TAKEN, 0))
        counts = {slot: float(value) for slot, value in kept.counts.items() if slot != _TAKEN}
        slots = dict.fromkeys(name.split("/", 1)[0] for name in kept.slots)
        for name, parameter in zip(names, parameters, strict=True):
            # torch keeps such numbers as tensors of its default precision.
            state: dict[str, Any] = {slot: torch.tensor(value) for slot, value in counts.items()}
            state |= {slot: kept.slots[f"{slot}/{name}"].detach().clone() for slot in slots}
            self.optimizer.state[parameter] = state


Stepper = PlainSteps | TorchSteps
