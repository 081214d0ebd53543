"""Every public function of theory answers bad numbers with a sentence or a number, never with a traceback or NaN."""
# ruff: noqa: E501 (one call a line)

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest

from parley.core.errors import InputError
from parley.theory import gain, generalization, kernel, pareto, surrogate

NAN, INF = float("nan"), float("inf")
NUMBERS = (NAN, INF, -INF, -5, -1.0, 0, 0.0, 1e-300, 1e300)

rng = np.random.default_rng(0)
A = np.stack([np.diag([1.0, 4.0]), np.diag([2.0, 3.0])])
CLIENTS = surrogate.Quadratics(A, np.array([[0.0, 1.0], [1.0, 0.0]]))
POINTS = [rng.standard_normal((n, 2)) for n in (4, 5)]
VALUES = [rng.standard_normal(n) for n in (4, 5)]
STEPS = kernel.GradientSteps(0.05, 3)
FEDERATION = kernel.KernelFederation.of(kernel.RBF(1.0), POINTS, STEPS)
SPECTRUM = kernel.exact_spectrum(FEDERATION)
SPACE = kernel.FeatureSpace.of(kernel.Identity(), POINTS, VALUES, STEPS)
MEANS = generalization.MeanEstimation(means=np.zeros((3, 2)), samples=5)
THIRDS = np.full(3, 1 / 3)
LOCAL, COMMON = gain.feature_local(kernel.Identity()), gain.feature_federated(kernel.Identity(), STEPS, 3)
HELD = gain.HeldOut(np.ones(6), np.ones(6), np.arange(6) % 3, np.ones((3, 6)))

CALLS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (surrogate.Quadratics, {"A": A, "c": np.zeros((2, 2)), "weights": [1.0, 2.0]}),
    (surrogate.Quadratics.from_least_squares, {"features": POINTS, "targets": VALUES, "weights": [1.0, 2.0], "ridge": 0.1}),
    (surrogate.Quadratics.from_kernel, {"gram": np.eye(4), "targets": [np.ones(2), np.ones(2)], "weights": None, "ridge": 0.1}),
    (surrogate.kernel_features, {"gram": np.eye(3)}),
    (surrogate.All, {"K": 3}),
    (surrogate.Last, {"K": 3}),
    (surrogate.Explicit, {"coefficients": (1.0, 2.0)}),
    (CLIENTS.minimiser, {"gamma": 0.1, "theta": surrogate.All(3), "alpha": 0.1}),
    (CLIENTS.hessian, {"gamma": 0.1, "theta": [1.0, 1.0], "alpha": 0.1}),
    (CLIENTS.kappa, {"gamma": 0.1, "theta": surrogate.All(3), "alpha": 0.1}),
    (CLIENTS.gradient, {"x": np.zeros(2), "gamma": 0.1, "theta": surrogate.All(3), "alpha": 0.1}),
    (CLIENTS.loss, {"x": np.zeros(2), "gamma": 0.1, "theta": surrogate.All(3), "alpha": 0.1}),
    (CLIENTS.empirical_loss, {"x": np.zeros(2)}),
    (CLIENTS.empirical_gradient, {"x": np.zeros(2)}),
    (surrogate.distances, {"clients": CLIENTS, "gamma": 0.1, "theta": surrogate.All(3), "alpha": 0.1}),
    (surrogate.residual_spread, {"clients": CLIENTS}),
    (surrogate.drift_bound, {"log_spread": 0.3, "kappa0": 4.0, "C": 1.0}),
    (surrogate.kappa_bound, {"L": 4.0, "mu": 1.0, "gamma": 0.1, "K": 3, "alpha": 0.1}),
    (surrogate.log_kappa_bound, {"L": 4.0, "mu": 1.0, "gamma": 0.01, "K": 3, "alpha": 0.1, "family": "maml"}),
    (surrogate.curvature_bound, {"L": 4.0, "mu": 1.0, "gamma": 0.1, "K": 3, "alpha": 0.1, "family": "fedavg"}),
    (surrogate.log_phi, {"lam": 2.0, "alpha": 0.1, "gamma": 0.1, "K": 3}),
    (surrogate.log_psi, {"lam": 2.0, "alpha": 0.1, "gamma": 0.1, "K": 3}),
    (pareto.log_distortion_spread, {"L": 4.0, "mu": 1.0, "gamma": 0.1, "K": 3, "alpha": 0.1}),
    (pareto.family_frontier, {"L": 4.0, "mu": 1.0, "gamma": [0.1, 0.2], "K": [3, 4], "alpha": [0.0, 0.1]}),
    (pareto.simulated_maml_frontier, {"spectrum": [1.0, 2.0, 4.0], "gamma": [0.1, 0.2], "K": [3, 4], "alpha": [0.0, 0.1]}),
    (pareto.exact_frontier, {"kappa0": 4.0, "points": 5}),
    (pareto.delta_of_spread, {"log_spread": 0.3}),
    (pareto.rho_of_delta, {"delta": 0.1, "kappa0": 4.0}),
    (pareto.delta_of_rho, {"rho": 0.1, "kappa0": 4.0}),
    (pareto.cusp_delta, {"kappa0": 4.0}),
    (pareto.cusp_steps, {"L": 4.0, "mu": 1.0, "gamma": 0.1, "alpha": 0.1}),
    (pareto.rate, {"log_kappa": 1.0, "server": "nesterov"}),
    (pareto.log_kappa_of, {"rho": 0.5, "server": "nesterov"}),
    (pareto.tune, {"server": "heavy-ball", "L": 4.0, "mu": 1.0}),
    (pareto.transient, {"rho": 0.5, "rounds": 3, "server": "heavy-ball"}),
    (pareto.bound_terms, {"log_spread": 0.1, "kappa0": 4.0, "rounds": 3, "start_distance": 1.0, "C": 1.0, "server": "none"}),
    (pareto.best_setting, {"rounds": 3, "start_distance": 1.0, "C": 1.0, "L": 4.0, "mu": 1.0, "alpha": 0.1, "max_steps": 5, "max_gamma": 0.1}),
    (pareto.best_exact_setting, {"clients": CLIENTS, "start": np.ones(2), "rounds": 3, "max_steps": 2, "max_gamma": 0.1, "unit": 1e-7}),
    (pareto.Rounds, {"clients": CLIENTS, "start": np.ones(2)}),
    (pareto.Rounds(CLIENTS, np.ones(2)).descent, {"gamma": 0.1, "K": 3, "alpha": 0.1}),
    (pareto.random_clients, {"dimension": 2, "clients": 2, "kappa0": 4.0, "rng": rng, "rotation": 0.1, "jitter": 0.1}),
    (pareto.wishart_spectrum, {"dimension": 3, "L": 4.0, "mu": 1.0, "rng": rng}),
    (kernel.GradientSteps, {"eta": 0.1, "s": 3}),
    (kernel.ProximalStep, {"eta": 0.1}),
    (kernel.KernelFederation.of, {"kernel": kernel.RBF(1.0), "clients": POINTS, "method": STEPS}),
    (kernel.FeatureSpace.of, {"phi": kernel.Identity(), "clients": POINTS, "targets": VALUES, "method": STEPS}),
    (SPACE.theta, {"t": 3}),
    (SPACE.variance, {"t": 3, "sigma": 0.5}),
    (kernel.trajectory, {"federation": FEDERATION, "y": np.concatenate(VALUES)}),
    (kernel.krylov_trajectory, {"federation": FEDERATION, "y": np.concatenate(VALUES), "rounds": 5, "tolerance": 1e-12}),
    (kernel.expected_error, {"federation": FEDERATION, "target": np.ones(9), "sigma": 0.5}),
    (kernel.rademacher, {"eigenvalues": [1.0, 0.5], "N": 2, "epsilon": 0.3}),
    (kernel.stopping_round, {"eigenvalues": [1.0, 0.5], "N": 2, "method": STEPS, "sigma": 0.3, "norm": 1.0}),
    (kernel.estimate_sigma, {"federation": FEDERATION, "y": np.concatenate(VALUES)}),
    (kernel.critical_radius, {"eigenvalues": [1.0, 0.5], "N": 2, "sigma": 0.3}),
    (kernel.proposition7, {"spectrum": SPECTRUM, "t": 3, "start": 1.0, "sigma": 0.5, "delta": 0.1}),
    (kernel.theorem8, {"spectrum": SPECTRUM, "t": 3, "start": 1.0, "delta": 0.1}),
    (kernel.theorem10, {"spectrum": SPECTRUM, "t": 3, "start": 1.0, "delta": 0.1}),
    (kernel.theorem10_tail, {"spectrum": SPECTRUM, "t": 3, "sigma": 0.5, "constant": 0.1}),
    (kernel.theorem11, {"spectrum": SPECTRUM, "t": 3, "start": 1.0, "sigma": 0.5, "delta": 0.1}),
    (kernel.lemma27, {"spectrum": SPECTRUM, "t": 3, "start": 1.0, "delta": 0.1}),
    (kernel.lemma27_tail, {"spectrum": SPECTRUM, "t": 3, "sigma": 0.5, "constant": 0.1}),
    (kernel.theorem22, {"kappa": 1.5, "radius": 0.3, "start": 1.0, "delta": 0.1, "N": 9, "constant": 1.0}),
    (kernel.corollary23, {"kappa": 1.5, "sigma": 0.5, "rank": 2, "N": 9, "constant": 1.0}),
    (kernel.corollary24, {"kappa": 1.5, "sigma": 0.5, "beta": 1.0, "N": 9, "constant": 1.0}),
    (kernel.theorem12, {"space": SPACE, "t": 3, "start": 1.0, "sigma": 0.5}),
    (kernel.theorem12_distance, {"space": SPACE, "delta": 0.1}),
    (kernel.corollary13, {"method": STEPS, "gamma": 0.5, "t": 3, "start": 1.0, "sigma": 0.5, "d": 2, "N": 9, "alpha": 0.5}),
    (kernel.corollary13_distance, {"kappa": 1.5, "heterogeneity": 1.0, "constant": 1.0}),
    (kernel.corollary14_distance, {"kappa": 1.5, "heterogeneity": 1.0, "alpha": 0.5, "beta": 2.0, "nu": 1.0, "clients": 2, "d": 2, "N": 9}),
    (kernel.leading_eigenvalues, {"federation": FEDERATION, "count": 3, "tolerance": 1e-10}),
    (kernel.lowrank_basis, {"federation": FEDERATION, "tolerance": 1e-10, "max_rank": 5}),
    (kernel.krylov_basis, {"federation": FEDERATION, "vector": np.ones(9), "rounds": 5, "tolerance": 1e-12, "max_steps": 20}),
    (kernel.minibatch_round, {"features": POINTS, "targets": VALUES, "method": STEPS, "batch": 2}),
    (kernel.nystroem, {"kernel": kernel.RBF(1.0), "x": POINTS[0], "features": 2, "rng": rng, "candidates": 3}),
    (kernel.pivoted_cholesky, {"kernel": kernel.RBF(1.0), "x": POINTS[0], "tolerance": 1e-6, "max_rank": 3}),
    (kernel.random_fourier, {"columns": 2, "features": 4, "rng": rng, "lengthscale": 1.0}),
    (kernel.sigma_from_coordinates, {"eigenvalues": np.array([1.0, 0.5, 0.1]), "coordinates": np.ones(3), "outside": 1.0, "N": 9}),
    (kernel.RBF, {"lengthscale": 1.0}),
    (kernel.Laplace, {"lengthscale": 1.0}),
    (kernel.gradient_dissimilarity, {"designs": POINTS}),
    (kernel.coupon_samples, {"nu": 1.0, "d": 3}),
    (gain.minimum_norm, {"design": POINTS[0], "targets": VALUES[0]}),
    (gain.local_risk, {"design": POINTS[0], "truth": np.ones(2), "sigma": 0.5}),
    (gain.expected_gains, {"designs": POINTS, "truths": [np.ones(2)] * 2, "sigma": 0.5, "method": STEPS, "rounds": [1, 2]}),
    (gain.drawn_gains, {"designs": POINTS, "truths": [np.ones(2)] * 2, "targets": VALUES, "method": STEPS, "rounds": 3}),
    (gain.theorem16, {"n": 5, "d": 3, "N": 50, "sigma": 0.5, "radius": 1.0, "heterogeneity": 0.1, "constant": 1.0}),
    (gain.theorem16_threshold, {"n": 5, "d": 3, "sigma": 0.5, "radius": 1.0}),
    (gain.theorem17, {"n": 5, "r": 2, "d": 3, "N": 50, "sigma": 0.5, "radius": 1.0, "kappa": 1.5, "constant": 1.0}),
    (gain.estimate_gains, {"clients": POINTS, "targets": VALUES, "federated": COMMON, "local": LOCAL, "rng": rng, "folds": 3, "local_folds": 4, "repeats": 1, "level": 0.9}),
    (gain.gain_from_losses, {"repeats": [HELD], "level": 0.9}),
    (gain.decide, {"estimates": [gain.gain_from_losses([HELD])], "level": 0.9}),
    (generalization.theorem_4_1, {"weights": THIRDS, "local": np.ones(3), "noniid": np.ones(3), "L": 2.0, "mu": 1.0}),
    (generalization.theorem_c_1, {"weights": THIRDS, "local": np.ones(3), "noniid": np.ones(3), "suboptimality": np.ones(3), "L": 2.0, "mu": 1.0}),
    (generalization.theorem_4_3, {"weights": THIRDS, "noniid": np.ones(3), "L": 2.0, "mu": 1.0, "samples": 5, "complexity": 1.0, "variance": 1.0, "steps": 3, "constants": (1.0, 1.0)}),
    (generalization.printed_case_1, {"weights": THIRDS, "cohort": 2, "local": np.ones(3), "noniid": np.ones(3), "L": 2.0, "mu": 1.0}),
    (generalization.printed_case_2, {"weights": THIRDS, "cohort": 2, "local": np.ones(3), "noniid": np.ones(3), "L": 2.0, "mu": 1.0}),
    (generalization.MeanEstimation, {"means": np.zeros((3, 2)), "samples": 5, "covariances": 1.0, "hessians": 1.0, "weights": THIRDS}),
    (generalization.all_draws, {"weights": THIRDS, "cohort": 2, "replacement": True}),
    (generalization.participation, {"problem": MEANS, "cohort": 2, "replacement": False}),
    (generalization.exact_terms, {"problem": MEANS, "start": np.zeros(2)}),
    (generalization.exact_bound, {"problem": MEANS, "start": np.zeros(2)}),
    (generalization.Descend, {"eta": 0.1, "steps": 3}),
    (generalization.OnePass, {"eta": 0.1, "steps": 3}),
    (generalization.simulate, {"problem": MEANS, "trials": 3, "rng": rng, "start": np.zeros(2)}),
    (generalization.simulate_rounds, {"problem": MEANS, "rule": generalization.Minimise(), "rounds": 2, "trials": 3, "rng": rng}),
]  # fmt: skip


def numeric(value: object) -> bool:
    return isinstance(value, int | float | tuple | list | np.ndarray) and not isinstance(value, bool)


def bad(value: Any) -> Iterator[object]:
    """Wrong numbers for a number; for several: none, one fewer, too many, and one of them wrong."""
    if isinstance(value, int | float):
        yield from NUMBERS
        return
    yield from (value[:0], value[:-1], [*value, *value, value[0]])
    if isinstance(value, list) and not isinstance(value[0], int | float):
        for part in bad(value[0]) if numeric(value[0]) else ():
            yield [part, *value[1:]]
        return
    for number in (NAN, INF, -INF, -1.0):
        changed = np.array(value, dtype=np.float64)
        changed.flat[0] = number
        yield changed


def numbers(value: object) -> Iterator[float]:
    """All numbers of a result, however deep."""
    if isinstance(value, int | float | np.ndarray | np.generic) and np.asarray(value).dtype.kind in "fiu":
        yield from np.asarray(value, dtype=np.float64).ravel().tolist()
    elif is_dataclass(value):
        yield from numbers([getattr(value, field.name) for field in fields(value)])
    elif isinstance(value, Mapping):
        yield from numbers(list(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from numbers(part)


def names() -> list[str]:
    return [getattr(call, "__qualname__", repr(call)) for call, _ in CALLS]


@pytest.mark.parametrize(("call", "good"), CALLS, ids=names())
def test_good_arguments_give_numbers(call: Callable[..., Any], good: dict[str, Any]) -> None:
    found = list(numbers(call(**good)))
    assert not np.isnan(found).any()


@pytest.mark.parametrize(("call", "good"), CALLS, ids=names())
def test_bad_arguments_give_a_sentence_or_a_number(call: Callable[..., Any], good: dict[str, Any]) -> None:
    wrong = []
    for name, value in good.items():
        for other in bad(value) if numeric(value) else ():
            try:
                found = list(numbers(call(**good | {name: other})))
                if any(np.isnan(number) for number in found):
                    wrong.append(f"{name} = {other!r}: NaN")
            except InputError as error:
                if len(str(error)) < 15:
                    wrong.append(f"{name} = {other!r}: '{error}' is no sentence")
            except Exception as error:
                wrong.append(f"{name} = {other!r}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)


def test_every_public_function_is_tried() -> None:
    tried = {getattr(call, "__func__", call) for call, _ in CALLS}
    # What takes no numbers, and what makes the models that `estimate_gains` is given.
    others = {"as_theta", "basis_spectrum", "exact_basis", "exact_spectrum", "check_level", "best_round"}
    others |= {f"{kind}_{what}" for kind in ("feature", "kernel") for what in ("federated", "local", "path")}
    for room in (surrogate, pareto, kernel, gain, generalization):
        for name in room.__all__:
            value = getattr(room, name)
            if inspect.isfunction(value) and name not in others:
                assert value in tried, f"{room.__name__}.{name} is not among the calls"
