"""Paper 004's bounds on the generalisation gap against closed forms, definitions and Monte-Carlo.

Every comparison with a Monte-Carlo mean allows Z standard errors, most on fixed seeds.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.core.errors import InputError
from parley.theory import generalization as g

Z = 4.5
RULES = [g.Minimise(), g.Descend(0.1, 3), g.OnePass(0.1, 4), g.OnePass(0.05, 8)]
seeds = st.integers(0, 2**32 - 1)


def matrices(rng: np.random.Generator, K: int, d: int, least: float = 0.0) -> np.ndarray:
    B = rng.standard_normal((K, d, d)) * 10 ** rng.uniform(-1, 0.5)
    return B @ B.swapaxes(1, 2) + least * np.eye(d)


def mean_problem(seed: int, alike: bool = False) -> g.MeanEstimation:
    """Random covariances, sizes, weights and, every other time, Hessians; `alike` gives iid clients of equal weight."""
    rng = np.random.default_rng(seed)
    K, d = int(rng.integers(1, 7)), int(rng.integers(1, 5))
    if alike:
        H, C = matrices(rng, 1, d, 0.1)[0], matrices(rng, 1, d)[0]
        return g.MeanEstimation(np.tile(rng.standard_normal(d), (K, 1)), 8, C, H)
    weights = rng.dirichlet(np.full(K, 10 ** rng.uniform(-1, 1)))
    means = 10 ** rng.uniform(-2, 1) * rng.standard_normal((K, d))
    hessians = matrices(rng, K, d, 0.1) if rng.integers(2) else rng.uniform(0.1, 5)
    return g.MeanEstimation(means, 8 * rng.integers(1, 6, K), matrices(rng, K, d), hessians, weights)


def ridge_problem(seed: int, samples: int | None = None) -> g.RidgeRegression:
    rng = np.random.default_rng(seed)
    K, d = int(rng.integers(1, 6)), int(rng.integers(1, 5))
    truths = 10 ** rng.uniform(-2, 1) * rng.standard_normal((K, d)) + rng.standard_normal(d)
    n = samples or rng.integers(1, 20, K)
    ridge, noise = 10 ** rng.uniform(-2, 1), 10 ** rng.uniform(-2, 0.5)
    return g.RidgeRegression(truths, n, ridge, noise, matrices(rng, K, d), rng.dirichlet(np.ones(K)))


def agree(estimate: g.Estimate, expected: float) -> None:
    assert abs(estimate.value - expected) <= Z * estimate.error + 1e-12 * abs(expected), (estimate, expected)


# The theorems hold.


@settings(max_examples=60, deadline=None)
@given(seeds, st.sampled_from(RULES))
def test_the_bound_is_above_the_exact_gap(seed: int, rule: g.Rule) -> None:
    problem = mean_problem(seed)
    start = np.random.default_rng(seed).standard_normal(problem.dimension)
    assert g.exact_terms(problem, rule, start).gap <= g.exact_bound(problem, rule, start).total * (1 + 1e-12)


@settings(max_examples=20, deadline=None)
@given(seeds, st.sampled_from(["minimise", "descend"]))
def test_the_bound_is_above_the_measured_gap_of_ridge_regression(seed: int, kind: str) -> None:
    problem = ridge_problem(seed)
    rule = g.Minimise() if kind == "minimise" else g.Descend(1 / problem.L, 5)
    margin = g.simulate(problem, rule, trials=300, rng=np.random.default_rng(seed)).margin()
    assert margin.value >= -Z * margin.error


def test_one_pass_on_ridge_regression_keeps_to_c_1_in_every_round() -> None:
    rounds = g.simulate_rounds(
        ridge_problem(3, samples=12), g.OnePass(0.02, 4), rounds=4, trials=400, rng=np.random.default_rng(0)
    )
    assert len(rounds) == 4
    for found in rounds:
        assert found.margin().value >= -Z * found.margin().error


# Closed forms against the definitions.


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("seed", [1, 2, 5])
def test_closed_forms_agree_with_monte_carlo(seed: int, rule: g.Rule) -> None:
    problem = mean_problem(seed)
    start = np.random.default_rng(seed).standard_normal(problem.dimension)
    terms = g.exact_terms(problem, rule, start)
    found = g.simulate(problem, rule, trials=3000, rng=np.random.default_rng(seed), start=start)
    agree(found.gap, terms.gap)
    agree(found.start_gap, 0.0)
    for estimates, exact in (
        (found.local, terms.local),
        (found.noniid, terms.noniid),
        (found.suboptimality, terms.suboptimality),
    ):
        for estimate, value in zip(estimates, exact, strict=True):
            assert estimate.error > 0 or abs(value) < 1e-12
            assert abs(estimate.value - value) <= Z * estimate.error + 1e-12
    agree(found.bound(), g.exact_bound(problem, rule, start).total)


def test_a_plain_loop_over_the_definitions_gives_the_same() -> None:
    """(1)-(3) written out for two clients, without the package's losses, rules or control."""
    rng = np.random.default_rng(0)
    means, n, p = np.array([[1.0, 0.0], [-1.0, 2.0]]), (3, 5), np.array([0.3, 0.7])
    H = np.array([[2.0, 0.5], [0.5, 1.0]])
    gaps, local, noniid = [], [], []
    for _ in range(2500):
        samples = [mean + rng.standard_normal((size, 2)) for mean, size in zip(means, n, strict=True)]
        models = [z.mean(axis=0) for z in samples]
        merged = p @ models
        empirical = [[0.5 * np.mean([(t - z) @ H @ (t - z) for z in S]) for S in samples] for t in (*models, merged)]
        true = [[0.5 * ((t - m) @ H @ (t - m) + np.trace(H)) for m in means] for t in (*models, merged)]
        gaps.append(p @ (np.array(true[2]) - empirical[2]))
        local.append([true[k][k] - empirical[k][k] for k in (0, 1)])
        noniid.append([empirical[2][k] - empirical[k][k] for k in (0, 1)])
    terms = g.exact_terms(g.MeanEstimation(means, np.array(n), 1.0, H, p))
    agree(g.Estimate.of(np.array(gaps)), terms.gap)
    for k in (0, 1):
        agree(g.Estimate.of(np.array(local)[:, k]), terms.local[k])
        agree(g.Estimate.of(np.array(noniid)[:, k]), terms.noniid[k])


@pytest.mark.parametrize("client", [0, 1])
def test_ridge_samples_have_the_population_they_claim(client: int) -> None:
    problem = g.RidgeRegression(np.ones((2, 3)), 4, ridge=0.3, noise=2.0, covariances=np.diag([4.0, 1, 2]))
    drawn, population = problem.draw(client, 20000, 2, np.random.default_rng(0)), problem.population(client)
    for theta in np.random.default_rng(1).standard_normal((3, 3)):
        agree(g.Estimate.of(drawn.pooled().at(theta)), float(population.at(theta)))
    assert np.linalg.eigvalsh(problem.draw(client, 500, 4, np.random.default_rng(2)).hessian).max() <= problem.L


def test_curvatures_are_the_extremes_over_all_clients() -> None:
    problem = g.MeanEstimation(np.zeros((2, 2)), 3, hessians=[np.diag([1.0, 4.0]), np.diag([0.5, 2.0])])
    assert (problem.L, problem.mu) == pytest.approx((4.0, 0.5))


def test_no_ridge_sample_is_steeper_or_flatter_than_stated() -> None:
    problem = g.RidgeRegression(np.ones((1, 3)), 1, 0.2, covariances=np.diag([4.0, 1, 2]))
    eigenvalues = np.linalg.eigvalsh(problem.draw(0, 4000, 1, np.random.default_rng(0)).hessian)
    assert eigenvalues.min() == pytest.approx(problem.mu)
    assert eigenvalues.max() == pytest.approx(problem.L, rel=1e-2)
    assert eigenvalues.max() <= problem.L


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_filters_say_how_a_rule_weighs_each_group(rule: g.Rule) -> None:
    """Move one group's optimum by one and see how far the model moves, along each eigenvector."""
    eigenvalues = np.array([0.3, 1.0, 4.0])
    for t in range(rule.groups):
        linear = np.zeros((1, rule.groups, 3))
        linear[0, t] = eigenvalues
        losses = g.Losses(np.diag(eigenvalues)[None, None], linear, np.zeros((1, rule.groups)))
        np.testing.assert_allclose(rule.run(losses, np.zeros((1, 3)))[0], rule.filters(eigenvalues)[t])


# The honest 1/K.


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_alike_clients_have_a_gap_of_delta_over_k_and_a_positive_mixed_term(seed: int) -> None:
    problem = mean_problem(seed, alike=True)
    K, terms, bound = len(problem.p), g.exact_terms(problem), g.exact_bound(problem)
    assert terms.gap == pytest.approx(terms.local[0] / K)
    np.testing.assert_allclose(terms.noniid, 0.5 * (1 - 1 / K) * terms.local[0], rtol=1e-9, atol=1e-12)
    ratio = problem.L / problem.mu
    assert bound.local == pytest.approx(ratio * terms.local[0] / K**2)
    assert bound.mixed == pytest.approx(np.sqrt(2 * ratio * (1 - 1 / K)) * terms.local[0] / K, abs=1e-9)


def test_the_first_term_alone_is_no_bound_even_for_alike_clients() -> None:
    for K in (2, 3, 10):
        problem = g.MeanEstimation(np.zeros((K, 3)), 5)
        assert g.exact_bound(problem).local < g.exact_terms(problem).gap


def test_measured_gap_falls_like_one_over_k() -> None:
    K = np.array([1, 2, 4, 8, 16, 32])
    rng = np.random.default_rng(0)
    found = [g.simulate(g.MeanEstimation(np.zeros((k, 4)), 10), trials=800, rng=rng) for k in K]
    slope = np.polyfit(np.log(K), np.log([f.gap.value for f in found]), 1)[0]
    first = np.polyfit(np.log(K), np.log([g.exact_bound(f.problem).local for f in found]), 1)[0]  # type: ignore[arg-type]
    assert slope == pytest.approx(-1, abs=0.05)
    assert first == pytest.approx(-2, abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(seeds, st.floats(0, 100))
def test_the_gap_of_mean_estimation_ignores_disagreement_and_the_bound_does_not(seed: int, apart: float) -> None:
    problem = mean_problem(seed)
    away = replace(problem, means=problem.m * (1 + apart))
    assert g.exact_terms(away).gap == pytest.approx(g.exact_terms(problem).gap)
    assert g.exact_bound(away).total >= g.exact_bound(problem).total * (1 - 1e-9)


# Limits.


def test_one_client_with_equal_curvatures_meets_the_bound() -> None:
    problem = g.MeanEstimation([[1.0, 2.0]], 7, 3.0, 2.0)
    terms, bound = g.exact_terms(problem), g.exact_bound(problem)
    assert bound.total == pytest.approx(terms.gap)
    assert terms.gap == pytest.approx(2 * 3 * 2 / 7)
    assert bound.mixed == terms.noniid[0] == 0


def test_one_sample_and_no_noise() -> None:
    one = g.exact_terms(g.MeanEstimation(np.zeros((2, 3)), 1, 2.0))
    np.testing.assert_allclose(one.local, 6.0)
    silent = g.MeanEstimation([[0.0], [5.0]], 4, 0.0)
    assert g.exact_terms(silent).gap == g.exact_bound(silent).total == 0
    assert (g.exact_terms(silent).noniid > 0).all()


def test_huge_scales_keep_their_signs() -> None:
    problem = g.MeanEstimation(np.full((3, 2), 1e6), 5, 1e10)
    terms = g.exact_terms(problem)
    assert (terms.suboptimality == 0).all()
    assert terms.gap <= g.exact_bound(problem).total


def test_many_steps_are_minimisation_and_c_1_is_then_up_to_twice_4_1() -> None:
    problem = mean_problem(11)
    many, exact = g.exact_terms(problem, g.Descend(1 / problem.L, 100_000)), g.exact_terms(problem)
    np.testing.assert_allclose(many.local, exact.local)
    np.testing.assert_allclose(many.noniid, exact.noniid, atol=1e-9)
    strict = g.theorem_4_1(problem.p, exact.local, exact.noniid, problem.L, problem.mu)
    loose = g.theorem_c_1(problem.p, exact.local, exact.noniid, 0 * exact.local, problem.L, problem.mu)
    assert loose.local == pytest.approx(2 * strict.local)
    assert loose.mixed == pytest.approx(np.sqrt(2) * strict.mixed)


def test_one_pass_of_one_step_is_one_step_of_descent() -> None:
    problem = mean_problem(12)
    for one, other in zip(
        vars(g.exact_terms(problem, g.OnePass(0.1, 1))).values(),
        vars(g.exact_terms(problem, g.Descend(0.1, 1))).values(),
        strict=True,
    ):
        np.testing.assert_allclose(one, other)


def test_formulas_by_hand() -> None:
    p, local, noniid, eps = [0.25, 0.75], [0.4, 0.1], [0.9, 1.6], [0.1, 0.2]
    one = g.theorem_4_1(p, local, noniid, 4.0, 1.0)
    assert one.local == pytest.approx(4 * (0.25**3 * 0.4 + 0.75**3 * 0.1))
    assert one.mixed == pytest.approx(4 * (0.25**2 * 0.6 + 0.75**2 * 0.4))
    two = g.theorem_c_1(p, local, noniid, eps, 2.0, 1.0)
    assert two.local == pytest.approx(4 * (0.25**3 * 0.6 + 0.75**3 * 0.5))
    assert two.mixed == pytest.approx(4 * (0.25**2 * np.sqrt(0.6) + 0.75**2 * np.sqrt(0.5 * 1.8)))
    assert two.total == two.local + two.mixed
    rate = g.theorem_4_3(p, noniid, 2.0, 1.0, samples=16, complexity=4.0, variance=0.3, steps=3, constants=(2.0, 3.0))
    A, B = 2 * (0.5 + 0.1), 3 * (np.array(noniid) + 0.1)
    assert rate.local == pytest.approx(4 * A * (0.25**3 + 0.75**3))
    assert rate.mixed == pytest.approx(4 * (0.25**2 * np.sqrt(A * B[0]) + 0.75**2 * np.sqrt(A * B[1])))


# Local steps and rounds.


def test_more_steps_on_the_same_sample_raise_the_gap_and_fresh_samples_lower_it() -> None:
    taus = [1, 2, 4, 8, 16, 32]
    same = [g.exact_terms(g.MeanEstimation(np.zeros((4, 3)), 32), g.Descend(0.1, t)).gap for t in taus]
    fresh = [g.exact_terms(g.MeanEstimation(np.zeros((4, 3)), 4 * t), g.OnePass(0.1, t)).gap for t in taus]
    assert (np.diff(same) > 0).all()
    assert (np.diff(fresh) < 0).all()
    expected = [3 / 4 * (1 - 0.9**t) / (4 * t) for t in taus]
    np.testing.assert_allclose(fresh, expected)


def test_printed_8_is_zero_in_expectation_and_with_the_model_a_round_makes_it_is_not() -> None:
    problem = g.MeanEstimation([[0.0, 3.0], [2.0, -1.0], [1.0, 1.0]], 6)
    rule = g.OnePass(0.3, 3)
    for found in g.simulate_rounds(problem, rule, rounds=3, trials=2000, rng=np.random.default_rng(0)):
        agree(found.start_gap, 0.0)
        agree(found.gap, g.exact_terms(problem, rule).gap)
        assert found.gap.value > Z * found.gap.error


def test_every_round_goes_on_from_the_last() -> None:
    problem, start = g.MeanEstimation([[0.0, 3.0], [2.0, -1.0]], 6), np.array([10.0, -10.0])
    rounds = g.simulate_rounds(
        problem, g.Descend(0.3, 2), rounds=3, trials=2000, rng=np.random.default_rng(0), start=start
    )
    centre = problem.m.mean(axis=0)
    for number, found in enumerate(rounds, start=1):
        expected = centre + 0.7 ** (2 * number) * (start - centre)
        for coordinate in (0, 1):
            agree(g.Estimate.of(found.models[:, coordinate]), expected[coordinate])


@pytest.mark.parametrize("unknown", [1.0, 1e3, 1e6])
def test_no_constant_makes_4_3s_a_an_upper_bound_of_what_it_stands_for(unknown: float) -> None:
    """A has no place for the distance from a round's start to the clients' minima; eps grows with its square."""
    far = 1e3 * np.sqrt(unknown)
    problem = g.MeanEstimation([[far], [-far]], 100, 1e-4)
    terms = g.exact_terms(problem, g.Descend(0.1, 5))
    A = unknown * (np.sqrt(1 / 100) + 1e-4 / 5)
    assert (terms.local + 2 * terms.suboptimality > A).all()


# Monte-Carlo.


def test_trials_are_reproducible_and_errors_shrink_like_the_root_of_trials() -> None:
    problem = ridge_problem(5)
    few, again, many = (g.simulate(problem, trials=t, rng=np.random.default_rng(1)) for t in (600, 600, 9600))
    np.testing.assert_array_equal(few.gaps, again.gaps)
    assert few.gap.error / many.gap.error == pytest.approx(4, rel=0.25)
    assert few.models.shape == (600, problem.dimension)


def test_a_model_that_never_saw_the_sample_takes_most_of_the_noise_away() -> None:
    found = g.simulate(g.MeanEstimation(np.zeros((32, 5)), 20), trials=500, rng=np.random.default_rng(0))
    assert found.gap.error < found.start_gap.error / 10


def test_the_standard_error_of_the_bound_is_its_spread_over_repetitions() -> None:
    problem = g.MeanEstimation([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]], 5)
    rng = np.random.default_rng(0)
    found = [g.simulate(problem, trials=200, rng=rng) for _ in range(200)]
    for name in ("bound", "margin"):
        estimates = [getattr(trial, name)() for trial in found]
        spread = np.std([e.value for e in estimates], ddof=1)
        assert np.mean([e.error for e in estimates]) == pytest.approx(spread, rel=0.2)


# Bad input.


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"L": 0.5}, "smoothness"),
        ({"mu": 0.0}, "strong convexity"),
        ({"mu": -1.0}, "strong convexity"),
        ({"mu": np.nan}, "strong convexity"),
        ({"L": np.inf}, "smoothness"),
        ({"weights": [0.5, 0.4]}, "sum to one"),
        ({"weights": [1.5, -0.5]}, "non-negative"),
        ({"weights": [np.nan, 1.0]}, "finite"),
        ({"weights": []}, "one per client"),
        ({"local": [0.1]}, "one finite number per client"),
        ({"noniid": [0.1, 0.2, 0.3]}, "one finite number per client"),
        ({"local": [0.1, np.nan]}, "finite"),
        ({"noniid": [0.1, -0.2]}, "non-negative"),
    ],
)
def test_bounds_refuse(change: dict[str, object], words: str) -> None:
    arguments: dict[str, object] = {"weights": [0.5, 0.5], "local": [0.1, 0.1], "noniid": [0.2, 0.2], "L": 2, "mu": 1}
    with pytest.raises(InputError, match=words):
        g.theorem_4_1(**(arguments | change))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=words):
        g.theorem_c_1(**(arguments | {"suboptimality": [0.0, 0.0]} | change))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=words):
        g.printed_case_1(**(arguments | {"cohort": 1} | change))  # type: ignore[arg-type]


def test_4_3_and_the_cases_refuse() -> None:
    good = {"samples": 4, "complexity": 1.0, "variance": 1.0, "steps": 1}
    for change in ({"samples": 0}, {"complexity": np.nan}, {"variance": -1.0}, {"steps": 0}, {"constants": (0.0, 1.0)}):
        with pytest.raises(InputError):
            g.theorem_4_3([1.0], [0.1], 1, 1, **(good | change))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="at most 2"):
        g.printed_case_2([0.5, 0.5], 3, [1, 1], [1, 1], 1, 1)
    with pytest.raises(InputError, match="at least 1"):
        g.printed_case_1([0.5, 0.5], 0, [1, 1], [1, 1], 1, 1)
    with pytest.raises(InputError, match="suboptimality"):
        g.theorem_c_1([0.5, 0.5], [1, 1], [1, 1], [-1, 0], 1, 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"means": [1.0, 2.0]}, r"\[K, d\]"),
        ({"means": [[np.nan]]}, "finite"),
        ({"samples": 0}, "at least 1"),
        ({"samples": 2.5}, "whole numbers"),
        ({"samples": [3, 3, 3]}, "as many clients"),
        ({"weights": [0.2, 0.3, 0.5]}, "as many clients"),
        ({"hessians": 0.0}, "strong convexity"),
        ({"hessians": [[1.0, 2.0], [0.0, 1.0]]}, "symmetric"),
        ({"covariances": np.diag([1.0, -1.0])}, "negative eigenvalues"),
        ({"covariances": np.ones(3)}, r"\[K, d, d\]"),
        ({"covariances": np.nan}, "finite"),
    ],
)
def test_problems_refuse(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        g.MeanEstimation(**({"means": np.zeros((2, 2)), "samples": 3} | arguments))  # type: ignore[arg-type]


def test_ridge_rules_and_trials_refuse() -> None:
    with pytest.raises(InputError, match="strong convexity"):
        g.RidgeRegression(np.ones((1, 2)), 3, ridge=0.0)
    with pytest.raises(InputError, match="noise"):
        g.RidgeRegression(np.ones((1, 2)), 3, ridge=1.0, noise=np.nan)
    with pytest.raises(InputError, match="as many clients"):
        g.RidgeRegression(np.ones((1, 2)), [3, 3], ridge=1.0)
    for eta, steps, words in ((0.0, 1, "eta"), (np.nan, 1, "eta"), (0.1, 0, "local steps")):
        for rule in (g.Descend, g.OnePass):
            with pytest.raises(InputError, match=words):
                rule(eta, steps)
    problem = g.MeanEstimation(np.zeros((2, 2)), 3)
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match="share equally"):
        g.exact_terms(problem, g.OnePass(0.1, 2))
    with pytest.raises(InputError, match="share equally"):
        g.simulate(problem, g.OnePass(0.1, 2), trials=5, rng=rng)
    with pytest.raises(InputError, match="number of trials must be a whole number of at least 2"):
        g.simulate(problem, trials=1, rng=rng)
    with pytest.raises(InputError, match="start"):
        g.simulate(problem, trials=5, rng=rng, start=[1.0])
    with pytest.raises(InputError, match="start"):
        g.exact_terms(problem, start=[np.inf, 0.0])
    with pytest.raises(InputError, match="round"):
        g.simulate_rounds(problem, g.Minimise(), rounds=0, trials=5, rng=rng)
