"""Gains in closed form: linear least squares and kernel regression, without training anything step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeGuard

import numpy as np
from scipy.linalg import eigh
from scipy.spatial.distance import pdist

from parley.advise.gain.folds import Array, Setup, Tell, looked_at
from parley.advise.gain.measures import SQUARED
from parley.advise.gain.stop import StopAdvice, by_rule, linear_rule
from parley.advise.linear import LinearProblem, least_squares
from parley.algorithms.averaging.local_update import Averaging
from parley.algorithms.averaging.server import Descent
from parley.algorithms.kernel.least_squares import LeastSquares
from parley.algorithms.protocol import Algorithm
from parley.core.errors import InputError, nearest
from parley.core.fields import settings_of
from parley.core.key import Key
from parley.core.tree import flat
from parley.data import ClientData
from parley.engine.settings import Faults
from parley.theory.gain.estimate import GainEstimate, estimate_gains
from parley.theory.gain.models import best_round, feature_local, feature_path, kernel_local, kernel_path
from parley.theory.kernel import (
    RBF,
    GradientSteps,
    Identity,
    Kernel,
    KernelFederation,
    KernelStep,
    Laplace,
    Linear,
    Polynomial,
    TwoLayerNTK,
)
from parley.training.optimizers import LocalOptimizer

KERNELS = ("rbf", "laplace", "linear", "polynomial", "two-layer-ntk")
LARGEST = 5000
"""Samples up to which kernels are taken."""
_SEEN = 500
_COURSE = ("round", "broadcast", "client", "train", "steps_from", "reply", "aggregate")
_UNDERSTOOD = ("lr", "steps", "epochs", "batch", "theta", "alpha", "server", "form", "order", "optimizer", "options")


@dataclass(frozen=True)
class Options:
    """How gains are estimated; see `parley.advise.gain.gain`."""

    folds: int
    repeats: int
    level: float
    sigma: float | None
    norm: float


@dataclass(frozen=True, eq=False)
class Solved:
    """The gains that a closed form gives, or that training gave."""

    estimates: list[GainEstimate]
    """One per judged client; empty where the route cannot tell."""
    stop: StopAdvice | None
    how: str
    notes: Sequence[str] = ()
    measure: str = SQUARED
    """What an error is; closed forms give squared errors, whatever multiple of them the study's loss is."""


def solve_linear(setup: Setup, judged: Sequence[int], options: Options, tell: Tell) -> Solved | None:
    """Least squares with one output; None for other studies. Estimates only where the algorithm is Su et al.'s."""
    if setup.task.info.kind != "regression":
        return None
    problem = linear_problem(setup, [setup.federation.client(id) for id in setup.federation.ids])
    if problem is None:
        return None
    stop, method = linear_stop(setup, problem, options), exact_method(setup, problem.scale)
    if method is None:
        return Solved([], stop, "")
    try:
        estimates = linear_gains(setup, problem, method, judged, options, tell)
    except InputError:
        return Solved([], stop, "", ["the step is too large for the closed form, so the models were trained."])
    how = "Closed form: each client's ridge regression, its penalty by leave-one-out, against the study's "
    return Solved(estimates, stop, how + f"{_title(method)} at its best round (up to {setup.rounds})")


def solve_kernel(
    setup: Setup, name: str | None, lengthscale: float | None, judged: Sequence[int], options: Options, tell: Tell
) -> Solved | None:
    """Kernel regression in place of the study's model; or, without a name, the study's own where it is exactly that."""
    data = [setup.federation.client(id) for id in setup.federation.ids]
    problem = KernelProblem.own(setup, data) if name is None else KernelProblem.of(setup, data, name, lengthscale)
    if problem is None:
        return None
    how = (
        f"Closed form, {problem.kernel}: each client's kernel ridge regression, its penalty by leave-one-out, against "
        f"{_title(problem.method)} at its best round (up to {setup.rounds})"
    )
    estimates = problem.gains(setup, judged, options, tell)
    return Solved(estimates, problem.stop(setup.rounds, options), how)


def linear_problem(setup: Setup, data: Sequence[ClientData]) -> LinearProblem | None:
    """The study as least squares with one output; None if it is none."""
    sizes = np.array([len(client) for client in data], dtype=np.float64)
    problem = least_squares(setup.task, data, sizes / sizes.sum(), 0.0)
    return problem if problem is not None and problem.outputs == 1 else None


def moved_per_round(setup: Setup, scale: float, sizes: Sequence[int]) -> float | None:
    """eta * s: how far one round goes along the gradient of half the squares, on average; None if not SGD."""
    method = setup.algorithm
    if isinstance(method, LeastSquares):
        return method.method.eta * method.method.s
    if not _plain(method):
        return None
    weights = np.asarray(sizes) / np.sum(sizes)
    steps = float(weights @ [method.work().count(n) for n in sizes]) if method.theta == "all" else 1.0
    return scale * steps * method.server.lr * (method.lr if method.form == "delta" else 1.0) or None


def exact_method(setup: Setup, scale: float) -> KernelStep | None:
    """The study's algorithm as Su et al.'s FedAvg or FedProx; None unless it is exactly that."""
    method, sampling = setup.algorithm, setup.sampling
    everyone = sampling.size in (None, len(setup.federation)) and sampling.scheme in ("auto", method.needs.cohorts)
    quiet = setup.faults == Faults(deadline=setup.faults.deadline, quorum=setup.faults.quorum)
    if not (everyone and sampling.weights == "size" and quiet):
        return None
    if isinstance(method, LeastSquares):
        return method.method if method.batch is None else None
    if not _plain(method):
        return None
    averages = method.server.lr == (1.0 if method.form == "delta" else method.lr)
    whole = method.batch is None and method.theta == "all" and not method.alpha
    if not (averages and whole and method.lr > 0):
        return None
    return GradientSteps(eta=scale * method.lr, s=method.work().count(1))


def _plain(method: Algorithm) -> TypeGuard[Averaging]:
    """Local SGD and an average, nothing a subclass or a setting unknown here would change."""
    if not isinstance(method, Averaging) or method.needs.pooled or type(method.server) is not Descent:
        return False
    inherited = all(getattr(type(method), name) is getattr(Averaging, name) for name in _COURSE)
    usual = all(getattr(method, s.name) == s.default for s in settings_of(type(method)) if s.name not in _UNDERSTOOD)
    return inherited and usual and LocalOptimizer(method.optimizer, method.lr, method.options).plain


def linear_gains(
    setup: Setup, problem: LinearProblem, method: KernelStep, judged: Sequence[int], options: Options, tell: Tell
) -> list[GainEstimate]:
    """Ridge regression of each client against the study's FedAvg at its best round."""
    start = problem.coordinates(flat(setup.task.initial()))
    path = feature_path(Identity(), method, looked_at(setup.rounds), start)
    rng = Key(setup.seed).fold("gain").numpy()
    return estimate_gains(
        problem.designs,
        [y[:, 0] for y in problem.targets],
        best_round(path, rng),
        feature_local(Identity()),
        rng=rng,
        folds=options.folds,
        repeats=options.repeats,
        level=options.level,
        judged=judged,
        tell=partial(tell, "fits"),
    )


def linear_stop(setup: Setup, problem: LinearProblem, options: Options) -> StopAdvice | None:
    """The stopping rule; None where the algorithm's steps are not gradient steps of a known size."""
    moved = moved_per_round(setup, problem.scale, [len(Z) for Z in problem.designs])
    if moved is None:
        return None
    start = problem.coordinates(flat(setup.task.initial()))
    Z, y = np.vstack(problem.designs), np.concatenate([y[:, 0] for y in problem.targets])
    return linear_rule(Z, y - Z @ start, moved, setup.rounds, options.sigma, options.norm)


@dataclass(frozen=True)
class KernelProblem:
    """Kernel regression on a study's data."""

    kernel: Kernel
    method: KernelStep
    points: list[Array]
    values: list[Array]

    @classmethod
    def own(cls, setup: Setup, data: Sequence[ClientData]) -> KernelProblem | None:
        """The study's own kernel and algorithm; None unless they are Su et al.'s, starting from zero."""
        kernel, method = getattr(setup.algorithm, "kernel", None), exact_method(setup, 1.0)
        if not isinstance(setup.algorithm, LeastSquares) or kernel is None or method is None:
            return None
        if setup.task.info.outputs != 1 or sum(len(client) for client in data) > LARGEST:
            return None
        start = setup.task.predictor(setup.task.initial(), setup.task.initial_buffers())
        if any(bool(start(client.x).detach().any()) for client in data):
            return None
        return cls(kernel, method, *_arrays(data))

    @classmethod
    def of(cls, setup: Setup, data: Sequence[ClientData], name: str, lengthscale: float | None) -> KernelProblem:
        """With the study's local steps, and its step size or the largest that is safe, whichever is less."""
        if setup.task.info.kind != "regression" or setup.task.info.outputs != 1:
            raise InputError("--kernel needs a regression study with one target; leave it out for this one.")
        if sum(len(step) for step in data) > LARGEST:
            raise InputError(f"--kernel takes at most {LARGEST:,} samples; leave it out, or take fewer clients.")
        points, values = _arrays(data)
        kernel = make_kernel(name, lengthscale, np.vstack(points))
        # A client's kernel matrix, and that of any part of its samples, has at most this norm.
        largest = max(float(np.diagonal(kernel(x, x)).max()) for x in points)
        step = getattr(setup.algorithm, "lr", 0.0) or np.inf
        steps = getattr(setup.algorithm, "steps", None) or getattr(setup.algorithm, "epochs", None) or 1
        return cls(kernel, GradientSteps(min(float(step), 0.99 / max(largest, 1e-12)), int(steps)), points, values)

    def gains(self, setup: Setup, judged: Sequence[int], options: Options, tell: Tell) -> list[GainEstimate]:
        """Kernel ridge regression of each client against federated kernel regression at its best round."""
        path = kernel_path(self.kernel, self.method, [t for t in looked_at(setup.rounds) if t > 0])
        rng = Key(setup.seed).fold("gain").numpy()
        return estimate_gains(
            self.points,
            self.values,
            best_round(path, rng),
            kernel_local(self.kernel),
            rng=rng,
            folds=options.folds,
            repeats=options.repeats,
            level=options.level,
            judged=judged,
            tell=partial(tell, "fits"),
        )

    def stop(self, rounds: int, options: Options) -> StopAdvice:
        federation = KernelFederation.of(self.kernel, self.points, self.method)
        values, vectors = eigh(federation.gram.dense, check_finite=False)
        coordinates = vectors.T @ np.concatenate(self.values)
        moved = self.method.eta * self.method.s
        return by_rule(
            np.maximum(values, 0.0), coordinates, 0.0, len(values), moved, rounds, options.sigma, options.norm
        )


def _title(method: KernelStep) -> str:
    if isinstance(method, GradientSteps):
        return f"FedAvg with step {method.eta:.3g} and {method.s} local steps"
    return f"FedProx with step {method.eta:.3g}"


def _arrays(data: Sequence[ClientData]) -> tuple[list[Array], list[Array]]:
    """Points and values of every client."""
    return [client.x.double().flatten(1).numpy() for client in data], [
        client.y.double().reshape(-1).numpy() for client in data
    ]


def make_kernel(name: str, lengthscale: float | None, points: Array) -> Kernel:
    """A kernel by name; the lengthscale is by default the median distance between samples."""
    if name in ("rbf", "laplace"):
        some = points[:: max(1, len(points) // _SEEN)]
        distances = pdist(some, "euclidean") if name == "rbf" else pdist(some, "cityblock")
        median = float(np.median(distances)) if len(some) > 1 else 1.0
        length = lengthscale if lengthscale is not None else median or 1.0
        return RBF(length) if name == "rbf" else Laplace(length)
    if lengthscale is not None:
        raise InputError(f"the kernel '{name}' has no lengthscale; leave --lengthscale out.")
    plain: dict[str, Kernel] = {"linear": Linear(1.0), "polynomial": Polynomial(), "two-layer-ntk": TwoLayerNTK()}
    if name not in plain:
        raise InputError(f"unknown kernel '{name}': {nearest(name, KERNELS)}")
    return plain[name]
