"""The predictive gain estimated from data, against federations whose truth is known."""

from dataclasses import dataclass

import numpy as np
import pytest

from parley.core.errors import InputError
from parley.theory.gain.estimate import GainEstimate, estimate_gains
from parley.theory.gain.models import (
    feature_federated,
    feature_local,
    kernel_federated,
    kernel_local,
    ridge_weights,
)
from parley.theory.kernel import RBF, GradientSteps, Identity, ProximalStep


@dataclass(frozen=True)
class Seen:
    """An estimate beside the truth: the gain of the models trained on all data, on new data of the client."""

    samples: int
    truth: float
    found: GainEstimate

    @property
    def covered(self) -> bool:
        return self.found.low <= self.truth <= self.found.high

    @property
    def right(self) -> bool:
        return (self.found.gain > 1) == (self.truth > 1)


def simulated(seed: int, sizes: tuple[int, ...], d: int, repeats: int = 1) -> list[Seen]:
    """Linear clients whose truths differ by a random amount; inputs N(0, I), so errors have a closed form."""
    rng = np.random.default_rng(seed)
    spread, shared, sigma = 10 ** rng.uniform(-1, 0.5), rng.standard_normal(d), 1.0
    truths = [shared + spread * rng.uniform(0, 1.5) * rng.standard_normal(d) / np.sqrt(d) for _ in sizes]
    X = [rng.standard_normal((n, d)) for n in sizes]
    y = [x @ theta + sigma * rng.standard_normal(len(x)) for x, theta in zip(X, truths, strict=True)]
    local, federated = feature_local(Identity()), feature_federated(Identity(), GradientSteps(0.05, 5), 200)
    found = estimate_gains(X, y, federated, local, rng=rng, repeats=repeats)
    common = federated(X, y)(np.eye(d))
    seen = []
    for j, theta in enumerate(truths):
        own = local(X[j], y[j])(np.eye(d))
        truth = (sigma**2 + ((own - theta) ** 2).sum()) / (sigma**2 + ((common - theta) ** 2).sum())
        seen.append(Seen(sizes[j], float(truth), found[j]))
    return seen


def judge(seen: list[Seen]) -> None:
    decided = [one for one in seen if one.found.verdict != "undecided"]
    assert np.mean([one.right for one in decided]) >= 0.95
    clear = [one for one in seen if one.samples >= 200 and not 0.8 <= one.truth <= 1.25]
    assert np.mean([one.right for one in clear]) >= 0.95
    assert 0.80 <= np.mean([one.covered for one in seen if one.samples >= 50]) <= 0.97


def test_estimates_on_a_few_federations() -> None:
    judge([one for seed in range(12) for one in simulated(seed, (20, 50, 100, 200, 200), 6)])


@pytest.mark.slow
def test_estimates_on_many_federations() -> None:
    sizes = (10, 20, 50, 50, 100, 100, 200, 200, 400, 400)
    seen = [one for seed in range(100) for one in simulated(seed, sizes, 20)]
    judge(seen)
    for n in (50, 100, 200, 400):
        assert 0.80 <= np.mean([one.covered for one in seen if one.samples == n]) <= 0.97


def test_kernel_models_find_who_should_join() -> None:
    rng = np.random.default_rng(0)
    x = [rng.uniform(0, 1, n) for n in (15, 80, 80, 80)]
    # The first three agree, the last sees the opposite.
    y = [np.sin(6 * p) * (1 if j < 3 else -1) + 0.3 * rng.standard_normal(len(p)) for j, p in enumerate(x)]
    kernel = RBF(0.2)
    found = estimate_gains(
        x, y, kernel_federated(kernel, ProximalStep(2.0), 100), kernel_local(kernel), rng=rng, folds=5, local_folds=10
    )
    assert found[3].verdict == "loses"
    assert found[0].gain > found[3].gain
    assert found[0].samples == 15
    assert found[3].local < 0.3


def test_ridge_takes_the_penalty_of_least_leave_one_out_error() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((15, 4)), rng.standard_normal(15)
    left, singular, right = np.linalg.svd(X, full_matrices=False)
    theta = right.T @ (singular * ridge_weights(left, singular**2, y))

    def brute(penalty: float) -> float:
        total = 0.0
        for i in range(15):
            keep = np.arange(15) != i
            fit = np.linalg.solve(X[keep].T @ X[keep] + penalty * np.eye(4), X[keep].T @ y[keep])
            total += float((y[i] - X[i] @ fit) ** 2)
        return total

    penalties = singular.max() ** 2 * np.geomspace(1e-8, 1e3, 45)
    best = penalties[np.argmin([brute(p) for p in penalties])]
    np.testing.assert_allclose(theta, np.linalg.solve(X.T @ X + best * np.eye(4), X.T @ y), atol=1e-10)


def test_tiny_clients_are_undecided_not_wrong() -> None:
    rng = np.random.default_rng(0)
    X = [rng.standard_normal((n, 2)) for n in (1, 2, 40)]
    y = [x @ [1.0, 2.0] + 0.1 * rng.standard_normal(len(x)) for x in X]
    found = estimate_gains(
        X, y, feature_federated(Identity(), GradientSteps(0.1, 2)), feature_local(Identity()), rng=rng
    )
    assert [(one.low, one.high, one.verdict) for one in found[:2]] == [(0.0, np.inf, "undecided")] * 2
    assert np.isfinite(found[2].high)


def test_bad_input_is_refused() -> None:
    rng = np.random.default_rng(0)
    fits = feature_federated(Identity(), GradientSteps(0.1)), feature_local(Identity())
    cases = [
        (([], []), {}, "one target array per client"),
        (([np.ones((3, 2))], [np.ones(2)]), {}, "client 0 has 3 samples"),
        (([np.ones((2, 2))], [np.array([0.0, np.nan])]), {}, "targets has a NaN"),
        (([np.ones((3, 2))], [np.ones(3)]), {"folds": 1}, "number of folds must be a whole number of at least 2"),
        (([np.ones((3, 2))], [np.ones(3)]), {"level": 1.0}, "between 0 and 1"),
        (([np.ones((1, 2))], [np.ones(1)]), {}, "too little data"),
    ]
    for data, options, text in cases:
        with pytest.raises(InputError, match=text):
            estimate_gains(*data, *fits, rng=rng, **options)
