"""Proposition 7, Theorems 8, 10, 11 and Lemma 27 of paper 000 over random problems, against exact expectations."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.core.errors import InputError
from parley.theory import kernel as k

SEEDS = st.integers(0, 10**6)
few = settings(deadline=None, max_examples=25)
ROUNDS = np.array([1, 2, 3, 10, 100, 10**4, 10**7])


class Case:
    """A problem with a target f, heterogeneous truths and noise, and its exact expected error."""

    def __init__(self, problem: Callable, seed: int) -> None:
        drawn = problem(seed)
        rng = drawn.rng
        self.federation = drawn.federation
        self.problem = drawn
        f, f0 = drawn.function() * rng.uniform(0, 3), drawn.function() * rng.uniform(0, 3)
        self.f = drawn.values(f)
        self.start = drawn.values(f0)
        self.distance = drawn.norm(f0 - f)
        self.truths = self.f.copy()
        for part in drawn.federation.samples.slices:
            self.truths[part] = drawn.values(f + rng.choice([0, 1]) * drawn.function())[part]
        self.delta = float(np.linalg.norm(self.truths - self.f))
        self.sigma = float(10 ** rng.uniform(-2, 1))
        self.basis = k.exact_basis(drawn.federation)
        self.spectrum = k.exact_spectrum(drawn.federation)
        self.error = k.expected_error(drawn.federation, self.f, self.sigma, self.truths, self.start, self.basis)


@few
@given(seed=SEEDS)
def test_expected_error_is_the_mean_over_noise(seed: int, problem: Callable) -> None:
    case = Case(problem, seed)
    N, t = case.federation.samples.N, 7
    L = np.eye(N) - np.stack([case.federation.step(np.zeros(N), e) for e in np.eye(N)], axis=1)
    Lt = np.linalg.matrix_power(L, t)
    mean = Lt @ (case.start - case.f) + (np.eye(N) - Lt) @ (case.truths - case.f)
    variance = case.sigma**2 * np.linalg.norm(np.eye(N) - Lt) ** 2 / N
    np.testing.assert_allclose(case.error.variance(t), variance, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(case.error.total(t), (mean**2).mean() + variance, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(case.error.bias(t), ((Lt @ (case.start - case.f)) ** 2).mean(), rtol=1e-8, atol=1e-12)
    # The run on the truths without noise is the mean of the runs on data.
    run = k.trajectory(case.federation, case.truths, case.start, case.basis)
    np.testing.assert_allclose(run.at(t) - case.f, mean, atol=1e-10)


@few
@given(seed=SEEDS)
def test_proposition_7_and_its_two_rates(seed: int, problem: Callable) -> None:
    case = Case(problem, seed)
    spectrum, method, N = case.spectrum, case.federation.method, case.federation.samples.N
    slack = 1 + 1e-9
    bound = k.proposition7(spectrum, ROUNDS, case.distance, case.sigma, case.delta)
    assert (case.error.total(ROUNDS) <= bound * slack + 1e-12).all()
    assert (case.error.bias(ROUNDS) <= spectrum.kappa * spectrum.bias(ROUNDS) * case.distance**2 * slack + 1e-12).all()
    assert (case.error.variance(ROUNDS) <= spectrum.kappa * spectrum.variance(ROUNDS) * case.sigma**2 * slack).all()
    assert (case.error.heterogeneity(ROUNDS) <= spectrum.kappa * case.delta**2 / N * slack + 1e-12).all()
    # (19) with its e, (20) and Lemma 21.
    time = method.eta * method.s * ROUNDS
    assert (spectrum.bias(ROUNDS) <= slack / (2 * np.e * time)).all()
    capped = np.minimum(1, method.eta * ROUNDS * spectrum.update[:, None]).sum(axis=0) / N
    assert (spectrum.variance(ROUNDS) <= capped * slack).all()
    assert (capped <= time * k.rademacher(spectrum.kernel, N, 1 / np.sqrt(time)) ** 2 * slack + 1e-12).all()


@few
@given(seed=SEEDS)
def test_theorem_8_up_to_the_stopping_round(seed: int, problem: Callable) -> None:
    case = Case(problem, seed)
    stop = k.stopping_round(case.spectrum.kernel, case.federation.samples.N, case.federation.method, case.sigma)
    if stop.T >= 1:
        rounds = np.unique(np.geomspace(1, stop.T, 20).astype(int))
        bound = k.theorem8(case.spectrum, rounds, case.distance, case.delta)
        assert (case.error.total(rounds) <= bound * (1 + 1e-9)).all()
        # Theorem 8 follows from Proposition 7 by the rule, so it is the larger of the two.
        sharper = k.proposition7(case.spectrum, rounds, case.distance, case.sigma, case.delta)
        assert (sharper <= bound * (1 + 1e-9)).all()
        assert (bound <= k.theorem10(case.spectrum, rounds, case.distance, case.delta)).all()
    radius = k.critical_radius(case.spectrum.kernel, case.federation.samples.N, case.sigma)
    assert 1 / radius**2 == pytest.approx(stop.time, rel=1e-9)


@few
@given(seed=SEEDS)
def test_theorem_11(seed: int, problem: Callable) -> None:
    case = Case(problem, seed)
    bound = k.theorem11(case.spectrum, ROUNDS, case.distance, case.sigma, case.delta)
    assert (case.error.total(ROUNDS) <= bound * (1 + 1e-9)).all()


def sobolev() -> tuple[k.KernelFederation, k.Spectrum, np.ndarray, float]:
    """A problem on which the tails can be simulated: f = k(., 1/2), ||f||_H^2 = 1/2, unequal clients."""
    rng = np.random.default_rng(0)
    federation = k.KernelFederation.of(
        k.Sobolev(), [np.sort(rng.uniform(0, 1, n)) for n in (10, 40, 70)], k.GradientSteps(0.5, 4)
    )
    f = np.minimum(federation.samples.x[:, 0], 0.5)
    return federation, k.exact_spectrum(federation), f, float(np.sqrt(0.5))


@pytest.mark.parametrize("noise", ["gaussian", "rademacher", "student"])
def test_theorem_10_and_lemma_27_hold_with_their_proven_constants(noise: str) -> None:
    federation, spectrum, f, norm = sobolev()
    rng = np.random.default_rng(1)
    sigma, draws, N = 0.5, 2000, 120
    T = k.stopping_round(spectrum.kernel, N, federation.method, sigma).T
    moment = None
    if noise == "gaussian":
        xi = sigma * rng.standard_normal((draws, N))
    elif noise == "rademacher":
        xi = sigma * rng.choice([-1.0, 1.0], (draws, N))
    else:  # variance 10/8 and fourth moment 3 * 10^2 / (8 * 6) before scaling
        xi = rng.standard_t(10, (draws, N)) * sigma / np.sqrt(10 / 8)
        moment = (4.0, sigma**4 * 3 * 100 / 48 / (10 / 8) ** 2)
    basis = k.exact_basis(federation)
    for t in (max(1, T // 8), T):
        level, tail = k.theorem10(spectrum, t, norm), k.theorem10_tail(spectrum, t, sigma, moment)
        runs = [k.trajectory(federation, f + row, basis=basis) for row in xi[:300]]
        errors = np.array([((run.at(t) - f) ** 2).mean() for run in runs])
        assert (errors >= level).mean() <= tail
        # ||f_t - f||_H <= ||f_t|| + ||f||; Lemma 27 bounds ||f_t - f|| itself, whose square is exact here.
        norms = np.array([run.distance(t) ** 2 - 2 * run.predict([0.5], t)[0] + norm**2 for run in runs])
        fails = (np.sqrt(np.maximum(norms, 0)) > k.lemma27(spectrum, t, norm)).mean()
        if moment is None:
            assert fails <= k.lemma27_tail(spectrum, t, sigma)
    assert 0 < k.theorem10_tail(spectrum, 1, sigma) < k.theorem10_tail(spectrum, T, sigma) < 1


def test_printed_formulas() -> None:
    spectrum = k.Spectrum(k.GradientSteps(0.5, 2), 50, np.array([1.0, 0.25]), np.array([1.6, 0.4]), 0.5)
    kappa, time, noise = 0.5 * 2 / (1 - 0.5**2), 0.5 * 2 * 3, 0.7
    assert spectrum.kappa == pytest.approx(kappa)
    kept = 1 - 0.5 * np.array([1.6, 0.4])
    worst, fitted = max(kept**6 * np.array([1.6, 0.4])) / 2, ((1 - kept**3) ** 2).sum() / 50
    sharp = 3 * kappa * (worst * 4 + fitted * noise**2 + 16 / 50)
    assert k.proposition7(spectrum, 3, 2.0, noise, 4.0) == pytest.approx(sharp)
    assert k.theorem8(spectrum, 3, 2.0, 4.0) == pytest.approx(3 * kappa / (2 * np.e * time) * 5 + 3 * kappa / 50 * 16)
    assert k.theorem10(spectrum, 3, 2.0, 4.0) == pytest.approx(3 * kappa / (2 * np.e * time) * 7 + 3 * kappa / 50 * 16)
    decay = np.exp(-2 * 0.5 * 2 / kappa * 0.25 * 3)
    expected = 3 * kappa / (0.5 * 2) * 4 * decay + 3 * kappa * noise**2 * 2 / 50 + 3 * kappa / 50 * 16
    assert k.theorem11(spectrum, 3, 2.0, noise, 4.0) == pytest.approx(expected)
    assert k.lemma27(spectrum, 3, 2.0, 4.0) == pytest.approx(3 + np.sqrt(time / 50) * 4)
    assert k.lemma27_tail(spectrum, 3, noise) == pytest.approx(np.exp(-k.NORM_TAIL_RATE * 50 / (noise**2 * time)))
    assert k.theorem10_tail(spectrum, 3, noise) == pytest.approx(np.exp(-k.TAIL_RATE * 50 / (noise**2 * time)))
    heavy = np.e / 2 * time / (50 * noise**2)
    assert k.theorem10_tail(spectrum, 3, noise, (4.0, 3.0)) == pytest.approx(3.0 * heavy)
    assert k.theorem10_tail(spectrum, 3, noise, (6.0, 0.1), constant=2.0) == pytest.approx(
        0.2 * (time / (50 * noise**2)) ** 1.5
    )


def test_tail_constants() -> None:
    assert pytest.approx(0.0703, abs=1e-4) == k.TAIL_RATE
    assert pytest.approx(0.2110, abs=1e-4) == k.NORM_TAIL_RATE
    z = np.sqrt(k.TAIL_RATE * np.e)
    assert z**2 + z / np.sqrt(2) == pytest.approx(0.5)
    v = k.NORM_TAIL_RATE
    assert 1 / (2 * np.e) + 2 * np.sqrt(v / (2 * np.e)) + 2 * v == pytest.approx(1)


def test_rates_of_appendix_b3() -> None:
    sigma, beta = 0.5, 1.5
    N = np.array([10**3, 10**5])
    # Corollary 24: the critical radius of i^-2beta falls at the stated rate.
    mu = np.arange(1, 10**6) ** (-2 * beta)
    radii = [k.critical_radius(mu, n, sigma) for n in N]
    slope = np.log(radii[1] ** 2 / radii[0] ** 2) / np.log(N[1] / N[0])
    assert slope == pytest.approx(-2 * beta / (2 * beta + 1), rel=0.02)
    stated = k.corollary24(1.0, sigma, beta, 10**5) / k.corollary24(1.0, sigma, beta, 10**3)
    assert np.log(stated) / np.log(100) == pytest.approx(-2 * beta / (2 * beta + 1))
    assert k.corollary24(3.0, sigma, beta, 100, constant=2.0) == pytest.approx(6 * (0.25 / 100) ** 0.75)
    # Corollary 23: for rank r the radius squared is 2e sigma^2 r / N.
    assert k.critical_radius(np.ones(7), 10**5, sigma) ** 2 == pytest.approx(2 * np.e * sigma**2 * 7 / 10**5, rel=1e-9)
    assert k.corollary23(2.0, sigma, 7, 100, constant=3.0) == pytest.approx(3 * 2 * 0.25 * 7 / 100)
    assert k.theorem22(2.0, 0.1, 3.0, 4.0, 100) == pytest.approx(2 * (0.01 * 10 + 0.16))


def test_bounds_refuse_what_they_do_not_cover() -> None:
    _, spectrum, _, _ = sobolev()
    for call in (
        lambda: k.theorem8(spectrum, 0, 1.0),
        lambda: k.theorem10_tail(spectrum, 1, 1.0, (2.0, 1.0)),
        lambda: k.theorem10_tail(spectrum, 1, 1.0, (6.0, 1.0)),
        lambda: k.corollary24(1.0, 1.0, 0.5, 10),
        lambda: k.critical_radius([0.0], 10, 1.0),
    ):
        with pytest.raises(InputError):
            call()
    assert k.theorem10_tail(spectrum, 1, 1.0, (6.0, 1.0), constant=2.0) <= 1


class Waves:
    """l^-beta sqrt(2) cos(pi l x), orthogonal for uniform points: L2(P) norms are sums over coefficients."""

    def __init__(self, beta: float, terms: int) -> None:
        self.scales = np.arange(1.0, terms + 1) ** -beta

    def __call__(self, x: np.ndarray) -> np.ndarray:
        order = np.arange(1, len(self.scales) + 1)
        return np.sqrt(2) * np.cos(np.pi * x.reshape(-1, 1) * order) * self.scales


@pytest.mark.parametrize(("beta", "terms"), [(1.5, 60), (0.0, 6)], ids=["polynomial decay", "finite rank"])
def test_theorem_22_and_corollaries_23_24_on_new_points(beta: float, terms: int) -> None:
    """The error of f_T in L2(P), exactly from the coefficients: bounded at every N, and falling at the stated rate."""
    phi, sigma, sizes = Waves(beta, terms), 0.5, (100, 400, 1600, 6400)
    rng = np.random.default_rng(0)
    truth = rng.choice([-1.0, 1.0], terms) * np.arange(1, terms + 1) ** -0.6
    truth /= np.linalg.norm(truth)
    errors, stated = [], []
    for N in sizes:
        clients = np.split(rng.uniform(0, 1, N), np.sort(rng.choice(np.arange(1, N), 4, replace=False)))
        ys = [(phi(x) @ truth)[:, None] + sigma * rng.standard_normal((len(x), 50)) for x in clients]
        largest = max(np.linalg.norm(phi(x), 2) ** 2 / len(x) for x in clients)
        space = k.FeatureSpace.of(phi, clients, ys, k.GradientSteps(0.2 / largest, 3))
        stop = space.spectrum.stop(sigma)
        away = (space.theta(stop.T) - truth[:, None]) * phi.scales[:, None]
        errors.append(float((away**2).sum(axis=0).mean()))
        radius = k.critical_radius(phi.scales**2, N, sigma)
        assert 0.5 < radius * np.sqrt(stop.time) < 2  # Lemma 26: the sample's radius is the population's
        assert errors[-1] <= k.theorem22(space.kappa, radius, 1.0, 0.0, N)
        rate = k.corollary24(space.kappa, sigma, beta, N) if beta else k.corollary23(space.kappa, sigma, terms, N)
        stated.append(rate / space.kappa)
        assert errors[-1] <= 2 * rate
    slope, expected = (np.polyfit(np.log(sizes), np.log(values), 1)[0] for values in (errors, stated))
    assert slope == pytest.approx(expected, rel=0.15)
