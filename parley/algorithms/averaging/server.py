"""Server optimizers: SERVEROPT of Charles and Konečný's Algorithm 1, and Reddi et al. (ICLR 2021, Alg. 2).

Each takes the server's model x and an estimate q of a gradient. Their learning rate has nothing to do with the
clients' gamma. Heavy ball and Nesterov are the forms Lessard et al. (2016) analyse:

    heavy ball  x+ = x - eta q(x) + beta (x - x_prev)
    Nesterov    x+ = y - eta q(y),  y+ = x+ + beta (x+ - x);  clients start from y
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from parley.core.errors import InputError
from parley.core.registry import Registry
from parley.core.tree import Tree, add, clone, subtract, zeros_like

Slots = dict[str, Tree]
"""What an optimizer remembers: trees by name."""

server_optimizers: Registry[type[ServerOptimizer]] = Registry("server optimizer")


@dataclass(frozen=True)
class ServerOptimizer:
    """Gradient descent, and the base of the others."""

    lr: float = 1.0
    """Server learning rate (eta)."""

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise InputError(f"the server's learning rate lr must be positive, not {self.lr}.")
        for name in ("momentum", "beta1", "beta2"):
            value = getattr(self, name, 0.0)
            if not 0 <= value < 1:
                raise InputError(f"the server's {name} must lie in [0, 1), not {value}.")
        if not getattr(self, "epsilon", 1.0) > 0:
            raise InputError(f"the server's epsilon must be positive, not {getattr(self, 'epsilon', 0)}.")

    def start(self, x: Tree) -> Slots:
        return {}

    def step(self, x: Tree, q: Tree, slots: Slots) -> tuple[Tree, Slots]:
        """The model after the step and what to remember."""
        return add(x, q, -self.lr), {}

    def iterate(self, x: Tree, slots: Slots) -> Tree:
        """The model to report, where it is not the one the clients start from."""
        return x


@server_optimizers("sgd")
@dataclass(frozen=True)
class Descent(ServerOptimizer):
    """Gradient descent: x - eta q."""


@server_optimizers("heavy-ball")
@dataclass(frozen=True)
class HeavyBall(ServerOptimizer):
    """Gradient descent with heavy-ball momentum (FedAvgM)."""

    momentum: float = 0.9
    """beta in [0, 1)."""

    def start(self, x: Tree) -> Slots:
        return {"previous": clone(x)}

    def step(self, x: Tree, q: Tree, slots: Slots) -> tuple[Tree, Slots]:
        ahead = add(x, subtract(x, slots["previous"]), self.momentum)
        return add(ahead, q, -self.lr), {"previous": x}


@server_optimizers("nesterov")
@dataclass(frozen=True)
class Nesterov(ServerOptimizer):
    """Nesterov's momentum. The model the clients start from is the extrapolated y; `settled` is x, the iterate."""

    momentum: float = 0.9
    """beta in [0, 1)."""

    def start(self, x: Tree) -> Slots:
        return {"settled": clone(x)}

    def step(self, x: Tree, q: Tree, slots: Slots) -> tuple[Tree, Slots]:
        settled = add(x, q, -self.lr)
        return add(settled, subtract(settled, slots["settled"]), self.momentum), {"settled": settled}

    def iterate(self, x: Tree, slots: Slots) -> Tree:
        return slots["settled"]


@dataclass(frozen=True)
class Adaptive(ServerOptimizer):
    """Steps divided by sqrt(v) + epsilon; `bias_correction` divides the moments by 1 - beta^t as Kingma and Ba do."""

    lr: float = 0.01
    """Server learning rate (eta)."""
    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.99
    """Decay of the second moment."""
    epsilon: float = 1e-3
    """Adaptivity (tau in Reddi et al.)."""
    bias_correction: bool = False
    """Correct the moments for their start at zero (Reddi et al. do not)."""

    def start(self, x: Tree) -> Slots:
        return {"m": zeros_like(x), "v": zeros_like(x), "t": {"t": torch.zeros((), dtype=torch.float64)}}

    def step(self, x: Tree, q: Tree, slots: Slots) -> tuple[Tree, Slots]:
        t = slots["t"]["t"] + 1
        m = {n: self.beta1 * slots["m"][n] + (1 - self.beta1) * g for n, g in q.items()}
        v = {n: self.second(slots["v"][n], g.square()) for n, g in q.items()}
        first = 1 - self.beta1 ** float(t) if self.bias_correction else 1.0
        second = self.second_correction(float(t)) if self.bias_correction else 1.0
        moved = {n: x[n] - self.lr * (m[n] / first) / ((v[n] / second).sqrt() + self.epsilon) for n in x}
        return moved, {"m": m, "v": v, "t": {"t": t}}

    def second(self, v: torch.Tensor, squared: torch.Tensor) -> torch.Tensor:
        """The new second moment."""
        return self.beta2 * v + (1 - self.beta2) * squared

    def second_correction(self, t: float) -> float:
        return float(1 - self.beta2**t)


@server_optimizers("adam")
@dataclass(frozen=True)
class Adam(Adaptive):
    """FedAdam: v decays exponentially."""


@server_optimizers("yogi")
@dataclass(frozen=True)
class Yogi(Adaptive):
    """FedYogi: v moves by (1 - beta2) q^2 towards q^2, whatever the distance."""

    def second(self, v: torch.Tensor, squared: torch.Tensor) -> torch.Tensor:
        return v - (1 - self.beta2) * squared * torch.sign(v - squared)


@server_optimizers("adagrad")
@dataclass(frozen=True)
class Adagrad(Adaptive):
    """FedAdagrad: v adds up."""

    beta1: float = 0.0
    """Decay of the first moment."""

    def second(self, v: torch.Tensor, squared: torch.Tensor) -> torch.Tensor:
        return v + squared

    def second_correction(self, t: float) -> float:
        return 1.0
