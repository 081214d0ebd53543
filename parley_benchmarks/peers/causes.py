"""Why a library settles elsewhere: a sentence with its file, and the same arithmetic in NumPy.

A cause counts as the explanation of what was seen only where the arithmetic it states leads, round by round, to the
library's own numbers; the table says how closely.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from parley.theory.surrogate import Quadratics
from parley.theory.theta import Array
from parley_benchmarks.peers.setting import LR, Method, Setting, Weights, problem, weighted


@dataclass(frozen=True)
class Trained:
    """What was trained: the clients with their weights, their steps and sizes, and the method's alpha."""

    clients: Quadratics
    steps: tuple[int, ...]
    alpha: float
    sizes: tuple[int, ...]

    def gradient(self, client: int, y: Array) -> Array:
        return np.asarray(self.clients.A[client] @ (y - self.clients.c[client]))

    def local(self, client: int, x: Array, extra: Callable[[Array], Array]) -> Array:
        """The client's model after its steps on its gradient plus `extra(y)`."""
        y = x
        for _ in range(self.steps[client]):
            y = y - LR * (self.gradient(client, y) + extra(y))
        return y

    def locals(self, x: Array, extra: Callable[[int, Array], Array]) -> Array:
        """All clients' models, [clients, d]."""
        return np.stack([self.local(i, x, lambda y, i=i: extra(i, y)) for i in range(len(self.steps))])  # type: ignore[misc]


Rule = Callable[[Trained, Array, int], Array]
"""The model after so many rounds from x."""


@dataclass(frozen=True)
class Cause:
    """One library's deviation from a method's paper."""

    library: str
    version: str
    method: str
    variant: str
    file: str
    sentence: str
    rule: Rule

    def predicts(self, method: Method, setting: Setting, weights: Weights, rounds: int) -> Array:
        """Where the stated arithmetic leads."""
        with np.errstate(over="ignore", invalid="ignore"):
            trial = Trained(weighted(setting, weights), setting.steps, method.alpha, setting.sizes)
            return self.rule(trial, problem().start, rounds)


def _scaffold(trial: Trained, x: Array, rounds: int, gradient_as_variate: bool) -> Array:
    """SCAFFOLD whose variates are those of y - x instead of x - y."""
    n, p = len(trial.steps), trial.clients.p
    c_i, c = np.zeros((n, len(x))), np.zeros(len(x))
    for _ in range(rounds):
        models = trial.locals(x, lambda i, y: c - c_i[i])  # noqa: B023
        if gradient_as_variate:
            new = np.stack([-trial.gradient(i, x) for i in range(n)])
        else:
            new = c_i - c + (models - x) / (LR * np.array(trial.steps)[:, None])
        c, c_i, x = c + np.mean(new - c_i, axis=0), new, p @ models
    return x


def _averaged_models(trial: Trained, x: Array, rounds: int) -> Array:
    """FedNova's factors p_i tau_eff / tau_i on the models instead of on their changes."""
    taus = np.array(trial.steps, dtype=np.float64)
    factors = trial.clients.p * (trial.clients.p @ taus) / taus
    for _ in range(rounds):
        x = factors @ trial.locals(x, lambda i, y: np.zeros_like(y))
    return x


def _dyn_fluke(trial: Trained, x: Array, rounds: int) -> Array:
    """FedDyn whose memories grow by alpha_i (x - y) instead of y - x; alpha_i = alpha / (n_i / mean n)."""
    sizes, sent = np.array(trial.sizes), x
    alphas = trial.alpha * sizes.mean() / sizes
    memory = np.zeros((len(sizes), len(x)))
    for _ in range(rounds):
        models = trial.locals(sent, lambda i, y: alphas[i] * (y - sent + memory[i]))  # noqa: B023
        memory = memory + alphas[:, None] * (sent - models)
        x = trial.clients.p @ models
        sent = x + memory.mean(axis=0)
    return x


def _dyn_fedlab(trial: Trained, x: Array, rounds: int) -> Array:
    """FedDyn without its terms on the clients, and with one server model subtracted from the sum of all models."""
    alpha, h, n = trial.alpha, np.zeros_like(x), len(trial.steps)
    for _ in range(rounds):
        models = trial.locals(x, lambda i, y: np.zeros_like(y))
        h = h - alpha / n * (models.sum(axis=0) - x)
        x = models.mean(axis=0) - h / alpha
    return x


def _unsquared(trial: Trained, x: Array, rounds: int) -> Array:
    """FedProx with alpha/2 |y - x|, whose pull has the same strength at any distance."""

    def pull(y: Array, x: Array) -> Array:
        distance = np.linalg.norm(y - x)
        return trial.alpha / 2 * (y - x) / distance if distance else np.zeros_like(y)

    for _ in range(rounds):
        x = trial.clients.p @ trial.locals(x, lambda i, y: pull(y, x))  # noqa: B023
    return x


_SIGN = (
    "the control variates are made from y - x (`get_model_difference`) where the paper has x - y, but enter the"
    " gradient with the paper's sign (`internal/bridge/pytorch/scaffold.py`)"
)
CAUSES = (
    Cause(
        "pfl",
        "0.6.0",
        "scaffold",
        "option I",
        "pfl/algorithm/scaffold.py",
        _SIGN,
        lambda trial, x, rounds: _scaffold(trial, x, rounds, True),
    ),
    Cause(
        "pfl",
        "0.6.0",
        "scaffold",
        "option II",
        "pfl/algorithm/scaffold.py",
        _SIGN,
        lambda trial, x, rounds: _scaffold(trial, x, rounds, False),
    ),
    Cause(
        "fluke",
        "0.8.1",
        "fednova",
        "",
        "fluke/algorithms/fednova.py",
        "the factors p_i tau_eff / tau_i multiply the clients' models instead of their changes, and do not sum to one"
        " when clients take different numbers of steps",
        _averaged_models,
    ),
    Cause(
        "fluke",
        "0.8.1",
        "feddyn",
        "",
        "fluke/algorithms/feddyn.py",
        "`prev_grads` grows by alpha (server - client), but the penalty and the server's model use it as the sum of"
        " (client - server), as in the code of the method's authors",
        _dyn_fluke,
    ),
    Cause(
        "fedlab",
        "1.3.0",
        "feddyn",
        "",
        "fedlab/contrib/algorithm/feddyn.py",
        "the clients' linear and quadratic terms are computed from detached copies of the weights (`param.data`) and"
        " have no gradient, and the server subtracts its model from the sum of the models once instead of once per"
        " client",
        _dyn_fedlab,
    ),
    Cause(
        "flower",
        "1.41.0",
        "fedprox",
        "as its example",
        "flwr/serverapp/strategy/fedprox.py",
        "the formula in the docstring of FedProx has the squared norm, the code printed below it the norm; here the"
        " client does what that code does",
        _unsquared,
    ),
)


def cause_of(library: str, version: str, method: str, variant: str) -> Cause | None:
    """What is known of this very version."""
    for cause in CAUSES:
        if (cause.library, cause.version, cause.method, cause.variant) == (library, version, method, variant):
            return cause
    return None
