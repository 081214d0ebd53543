"""Paper 004, Appendix D: (71), (73), (74) and Lemma D.1 are false, shown where; the repaired bound holds."""

from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.core.errors import InputError
from parley.theory import generalization as g


def random_problem(seed: int, equal: bool = False) -> g.MeanEstimation:
    rng = np.random.default_rng(seed)
    K, d = int(rng.integers(2, 6)), int(rng.integers(1, 4))
    B = rng.standard_normal((2, K, d, d))
    C, H = B @ B.swapaxes(2, 3) + np.array([0.0, 0.1])[:, None, None, None] * np.eye(d)
    weights = None if equal else rng.dirichlet(np.ones(K))
    return g.MeanEstimation(rng.standard_normal((K, d)), rng.integers(1, 9, K), C, H, weights)


# What the draws are.


@pytest.mark.parametrize("cohort", [1, 2, 4])
def test_draws_have_the_stated_distribution(cohort: int) -> None:
    p = np.array([0.5, 0.3, 0.2, 0.0])
    probability, w = g.all_draws(p, cohort, replacement=True)
    assert probability.sum() == pytest.approx(1)
    np.testing.assert_allclose(w.sum(axis=1), 1)
    np.testing.assert_allclose(probability @ w, p, atol=1e-12)
    rng = np.random.default_rng(0)
    sampled = rng.multinomial(cohort, p, size=40000) / cohort
    np.testing.assert_allclose(probability @ w**3, (sampled**3).mean(axis=0), atol=0.01)
    probability, w = g.all_draws(p, cohort, replacement=False)
    assert len(w) == comb(4, cohort)
    np.testing.assert_allclose(probability @ w, p, atol=1e-12)
    assert ((w > 0).sum(axis=1) <= cohort).all()


def test_lemma_d_2_holds_and_lemma_d_1_does_not() -> None:
    p, x, cohort = np.array([0.5, 0.3, 0.2]), np.array([1.0, 4.0, 2.0]), 2
    probability, w = g.all_draws(p, cohort, replacement=False)
    assert probability @ (w**2 @ x) == pytest.approx(3 / 2 * (p * p) @ x)
    assert probability @ (w**3 @ x) == pytest.approx((3 / 2) ** 2 * (p**3) @ x)
    probability, w = g.all_draws(p, cohort, replacement=True)
    assert probability @ (w @ x) == pytest.approx(p @ x)  # the lemma's first statement
    assert probability @ (w**2 @ x) == pytest.approx((p * (p + (1 - p) / cohort)) @ x)
    assert probability @ (w**2 @ x) > 1.2 * (p @ x) / cohort  # its second, (65)
    assert probability @ (w**3 @ x) > 1.2 * (p @ x) / cohort**2  # its third, (66)


# Where the printed bounds fail.


@pytest.mark.parametrize("cohort", [2, 5, 10])
def test_case_1_with_one_client_is_that_client_alone(cohort: int) -> None:
    """All draws are duplicates: delta = 0, the gap is Delta, and (73) says Delta / cohort^2."""
    found = g.participation(g.MeanEstimation([[0.0, 1.0]], 4), cohort, replacement=True)
    assert found.gap == pytest.approx(2 / 4)
    assert found.printed.total == pytest.approx(found.gap / cohort**2)


def test_case_1_fails_for_alike_clients_because_of_duplicates() -> None:
    """Nothing but duplicate draws is at work: the participation part of alike clients is zero."""
    for cohort in (6, 10, 30):
        found = g.participation(g.MeanEstimation(np.zeros((2, 3)), 10), cohort, replacement=True)
        assert found.participation == pytest.approx(0, abs=1e-12)
        assert found.gap == pytest.approx(0.3 * (1 / 2 + 1 / 2 / cohort))
        assert found.gap > 1.3 * found.printed.total
        assert found.gap <= found.repaired.total


def test_case_1_counterexample_measured() -> None:
    """The same by drawing samples and clients, with nothing from the package but the printed formula."""
    rng = np.random.default_rng(0)
    K, cohort, n, trials = 2, 10, 10, 20000
    z = rng.standard_normal((trials, K, n, 1))
    drawn = rng.integers(0, K, (trials, cohort))
    w = np.stack([(drawn == k).mean(axis=1) for k in range(K)], axis=1)
    merged = np.einsum("tk,tkd->td", w, z.mean(axis=2))
    true = 0.5 * (merged**2).sum(axis=1) + 0.5
    empirical = 0.5 * ((merged[:, None, None] - z) ** 2).sum(axis=-1).mean(axis=-1)
    gap = g.Estimate.of(true - (w * empirical).sum(axis=1))
    largest = 0.5 * 2 / n  # delta_k if only the other client was drawn
    printed = g.printed_case_1([0.5, 0.5], cohort, [1 / n] * 2, [largest] * 2, 1.0, 1.0)
    assert gap.value - 5 * gap.error > 2 * printed.total
    exact = g.participation(g.MeanEstimation(np.zeros((K, 1)), n), cohort, replacement=True)
    assert abs(gap.value - exact.gap) < 4.5 * gap.error
    assert printed.total == pytest.approx(exact.printed.total)


@pytest.mark.parametrize("replacement", [True, False])
def test_71_fails_because_the_model_depends_on_the_draw(replacement: bool) -> None:
    """The participation part is the variance of the drawn mean: V / cohort, times (K - cohort) / (K - 1) without."""
    means = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
    K, cohort = 4, 2
    spread = (means**2).sum(axis=1).mean()
    expected = spread / cohort * (1 if replacement else (K - cohort) / (K - 1))
    for samples in (1, 100, 10**8):
        found = g.participation(g.MeanEstimation(means, samples), cohort, replacement=replacement)
        assert found.participation == pytest.approx(expected)
    assert found.gap > 100 * found.printed.total  # with unlimited samples (73) and (74) vanish and the gap stays


def test_71_fails_measured() -> None:
    rng = np.random.default_rng(1)
    means, n, trials, cohort = np.array([-1.0, 0.0, 4.0]), 50, 20000, 1
    z = means[:, None] + rng.standard_normal((trials, 3, n))
    chosen = rng.integers(0, 3, trials)
    model = z.mean(axis=2)[np.arange(trials), chosen]
    true = 0.5 * (model[:, None] - means) ** 2 + 0.5
    seen = 0.5 * ((model[:, None] - z[np.arange(trials), chosen]) ** 2).mean(axis=1)
    gap = g.Estimate.of(true.mean(axis=1) - seen)
    exact = g.participation(g.MeanEstimation(means[:, None], n), cohort, replacement=False)
    assert abs(gap.value - exact.gap) < 4.5 * gap.error
    assert gap.value - 5 * gap.error > exact.printed.total


def test_case_2_fails_for_alike_clients_of_unequal_weight() -> None:
    """The rescaled weights do not sum to one: the 'average' of equal models is not that model."""
    found = g.participation(g.MeanEstimation(np.ones((3, 1)), 10**8, weights=[0.45, 0.45, 0.1]), 1, replacement=False)
    total = 3 * np.array([0.45, 0.45, 0.1])
    assert found.participation == pytest.approx(-0.5 * ((total - 1) ** 3).mean(), rel=1e-6)
    assert found.gap > 100 * found.printed.total


# What holds.


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.booleans())
def test_theorem_4_1_with_the_drawn_weights_bounds_the_out_of_sample_part(
    seed: int, cohort: int, replacement: bool
) -> None:
    problem = random_problem(seed)
    found = g.participation(problem, min(cohort, len(problem.p)), replacement=replacement)
    assert found.out_of_sample <= found.repaired.total * (1 + 1e-12)
    assert found.gap == pytest.approx(found.participation + found.out_of_sample)


def test_repaired_bound_by_hand() -> None:
    p, local = np.array([0.3, 0.7]), np.array([1 / 2, 1 / 5])
    problem = g.MeanEstimation([[0.0], [3.0]], [2, 5], weights=p)
    alone = g.participation(problem, 1, replacement=True)
    assert (alone.repaired.local, alone.repaired.mixed) == pytest.approx((p @ local, 0))
    two = g.participation(problem, 2, replacement=True)
    both = 2 * 0.3 * 0.7
    spread = 0.5 * 0.25 * (9 + 1 / 2 + 1 / 5)  # delta of either client where each is half of the model
    assert two.repaired.local == pytest.approx(p**2 @ local + both * local.sum() / 8)
    assert two.repaired.mixed == pytest.approx(both * 2 * np.sqrt(spread * local).sum() / 4)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_everyone_drawn_is_full_participation(seed: int) -> None:
    problem = random_problem(seed, equal=True)
    found, bound = g.participation(problem, len(problem.p), replacement=False), g.exact_bound(problem)
    assert found.participation == pytest.approx(0, abs=1e-9)
    assert found.gap == pytest.approx(g.exact_terms(problem).gap)
    for part in ("local", "mixed"):
        assert getattr(found.printed, part) == pytest.approx(getattr(bound, part))
        assert getattr(found.repaired, part) == pytest.approx(getattr(bound, part))


def test_refusals() -> None:
    problem = g.MeanEstimation(np.zeros((3, 1)), 2)
    with pytest.raises(InputError, match="at most 3"):
        g.participation(problem, 4, replacement=False)
    with pytest.raises(InputError, match="at least 1"):
        g.participation(problem, 0, replacement=True)
    with pytest.raises(InputError, match="fewer clients"):
        g.all_draws(np.full(40, 1 / 40), 20, replacement=False)
    with pytest.raises(InputError, match="sum to one"):
        g.all_draws([0.5, 0.6], 1, replacement=True)
