"""Every rule against brute force or a closed form, and at its breakdown point with 1e300, infinities and NaN."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import hypergeom

import parley as pl
from parley.core.errors import InputError
from parley.robust import rules
from parley.robust.reading import capped


def drawn(n, d=5, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def even(n):
    return np.full(n, 1 / n)


SHAPES = st.tuples(st.integers(1, 12), st.integers(1, 6), st.integers(0, 2**20))


@settings(max_examples=40, deadline=None)
@given(SHAPES)
def test_median_and_trimmed_mean_are_numpy_s(shape):
    n, d, seed = shape
    x = drawn(n, d, seed)
    np.testing.assert_allclose(rules.median(x, even(n)), np.median(x, axis=0), atol=1e-12)
    for f in range((n + 1) // 2):
        np.testing.assert_allclose(rules.trimmed_mean(x, even(n), f), np.sort(x, 0)[f : n - f].mean(0), atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(SHAPES)
def test_whole_weights_are_repetitions(shape):
    """A client of weight 3 is three clients of weight 1: of the mean, the medians and the clipped mean."""
    n, d, seed = shape
    x, times = drawn(n, d, seed), np.random.default_rng(seed).integers(1, 4, n)
    w, many = times / times.sum(), np.repeat(x, times, axis=0)
    same = even(len(many))
    np.testing.assert_allclose(rules.mean(x, w), many.mean(0), atol=1e-12)
    np.testing.assert_allclose(rules.median(x, w), np.median(many, axis=0), atol=1e-12)
    cost = [_total(rules.geometric_median(*given), many, same) for given in ((x, w), (many, same))]
    np.testing.assert_allclose(*cost, rtol=1e-9, atol=1e-12)  # on a line the best place need not be the only one
    clip = [rules.centred_clip(*given, np.zeros(d), 0.7, 3) for given in ((x, w), (many, same))]
    np.testing.assert_allclose(*clip, atol=1e-12)


def _total(y, x, w):
    return float((w * np.linalg.norm(x - y, axis=1)).sum())


@pytest.mark.parametrize("seed", range(5))
def test_the_geometric_median_is_the_minimum(seed):
    x, w = drawn(9, 4, seed), np.random.default_rng(seed).dirichlet(np.ones(9))
    found = minimize(_total, x.mean(0), (x, w), method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-14})
    y = rules.geometric_median(x, w)
    np.testing.assert_allclose(y, found.x, atol=1e-6)
    assert _total(y, x, w) <= found.fun + 1e-12


def test_geometric_medians_with_a_closed_form():
    triangle = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])  # Fermat's point of an even triangle
    np.testing.assert_allclose(rules.geometric_median(triangle, even(3)), triangle.mean(0), atol=1e-9)
    at_one = np.array([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [5.0, 1.0], [-3.0, 9.0]])  # three of five agree
    np.testing.assert_allclose(rules.geometric_median(at_one, even(5)), 0, atol=1e-9)


def _scores(x, f):
    """Blanchard et al., 2017: the sum of squared distances to the n - f - 2 closest other vectors, by two loops."""
    scores = []
    for i in range(len(x)):
        far = sorted(float(((x[i] - x[j]) ** 2).sum()) for j in range(len(x)) if j != i)
        scores.append(sum(far[: len(x) - f - 2]))
    return np.array(scores)


@pytest.mark.parametrize(("n", "f"), [(5, 1), (7, 2), (9, 2), (9, 3), (12, 0)])
def test_krum_by_brute_force(n, f):
    for seed in range(5):
        x, w = drawn(n, 3, seed), np.random.default_rng(seed).dirichlet(np.ones(n))
        order = np.argsort(_scores(x, f))
        np.testing.assert_array_equal(rules.krum(x, f), x[order[0]])
        for m in (1, n - f - 2):
            kept = order[:m]
            wanted = (w[kept, None] * x[kept]).sum(0) / w[kept].sum()
            np.testing.assert_allclose(rules.multi_krum(x, w, f, m), wanted, atol=1e-12)


def test_mixing_by_brute_force():
    x, f = drawn(8), 3
    for i, row in enumerate(rules.mixed(x, f)):
        near = sorted(range(8), key=lambda j: ((x[i] - x[j]) ** 2).sum())[:5]
        np.testing.assert_allclose(row, x[near].mean(0), atol=1e-12)


def test_bounds_and_clipping():
    x = drawn(6) * 10
    np.testing.assert_allclose(np.linalg.norm(rules.bounded(x, 0.5), axis=1), 0.5)
    np.testing.assert_array_equal(rules.bounded(x, 1e6), x)
    np.testing.assert_array_equal(rules.bounded(np.zeros((2, 3)), 1.0), 0)
    np.testing.assert_allclose(rules.centred_clip(x, even(6), np.ones(5), 1e6, 1), x.mean(0), atol=1e-12)


def _rule(name, x, f):
    x, w = rules.tamed(x), even(len(x))
    return {
        "median": lambda: rules.median(x, w),
        "geometric-median": lambda: rules.geometric_median(x, w),
        "trimmed-mean": lambda: rules.trimmed_mean(x, w, f),
        "krum": lambda: rules.krum(x, f),
        "multi-krum": lambda: rules.multi_krum(x, w, f, len(x) - f - 2),
        "mixed median": lambda: rules.median(rules.mixed(x, f), w),
    }[name]()


LIES = (1e300, -1e300, np.inf, -np.inf, np.nan, 1e30, "mixture")
LEAST = {"median": 1, "geometric-median": 1, "trimmed-mean": 1, "mixed median": 1, "krum": 3, "multi-krum": 3}
"""n - 2 f of the smallest cohort that withstands f."""


def attacked(n, f, lie, seed=0):
    x = drawn(n, 4, seed)
    x[:f] = np.resize([np.nan, np.inf, -1e300, 1e300], (f, 4)) if lie == "mixture" else lie
    return np.random.default_rng(seed).permutation(x)


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("name", LEAST)
def test_f_attackers_of_the_smallest_cohort_are_withstood(name, lie):
    """What comes out lies where honest replies lie, whatever f of them are."""
    for f in (1, 2, 5):
        n = 2 * f + LEAST[name]
        got = _rule(name, attacked(n, f, lie), f)
        # The geometric median leaves a ball around the honest replies by a factor of 2 (n - f) / (n - 2 f) at most; the
        # median of each coordinate and what it is mixed of by the root of their number.
        factor = {"geometric-median": 2 * (n - f) / (n - 2 * f), "krum": 1, "multi-krum": 1}.get(name, 2)
        assert np.linalg.norm(got) <= factor * np.linalg.norm(drawn(n, 4)[f:], axis=1).max(), (f, got)
        if name in ("median", "trimmed-mean"):
            honest = drawn(n, 4)[f:]
            assert (got >= honest.min(0) - 1e-12).all()
            assert (got <= honest.max(0) + 1e-12).all()


@pytest.mark.parametrize("name", LEAST)
def test_more_attackers_break_it(name):
    """f + 1 take the smallest cohort wherever they like; Krum, which needs three replies more, f + 2 of them."""
    for f in (1, 2, 5):
        n = 2 * f + LEAST[name]
        got = _rule(name, attacked(n, f + (2 if "krum" in name else 1), 1e300), f)
        assert np.linalg.norm(got) > 1e90, f


@pytest.mark.parametrize("lie", LIES)
def test_clipping_moves_by_the_radius_at_most(lie):
    """However many lie: per iteration by the radius, and f of n change the result by at most 2 f / n of it each."""
    for f in (1, 4, 7):
        x, centre = rules.tamed(attacked(7, f, lie)), np.ones(4)
        assert np.linalg.norm(rules.centred_clip(x, even(7), centre, 0.5, 3) - centre) <= 1.5 + 1e-12
        honest = attacked(7, 0, lie)
        moved = rules.centred_clip(x, even(7), centre, 0.5, 1) - rules.centred_clip(honest, even(7), centre, 0.5, 1)
        assert np.linalg.norm(moved) <= 2 * f / 7 * 0.5 + 1e-12
        assert np.linalg.norm(rules.mean(rules.bounded(x, 0.5), even(7))) <= 0.5 + 1e-12


@pytest.mark.parametrize(
    ("settings", "n"),
    [
        ({"rule": "median", "f": 2}, 5),
        ({"rule": "geometric-median", "f": 2}, 5),
        ({"rule": "trimmed-mean", "f": 2}, 5),
        ({"rule": "krum", "f": 2}, 7),
        ({"rule": "multi-krum", "f": 2}, 7),
        ({"rule": "multi-krum", "f": 2, "m": 4}, 8),
        ({"rule": "centred-clip", "f": 2}, 5),
        ({"rule": "mean", "f": 2, "bound": 1.0}, 5),
        ({"rule": "median", "f": 2, "cap": 3.0}, 9),
        ({"rule": "geometric-median", "f": 1, "cap": 1.5}, 3),
    ],
)
def test_the_smallest_cohort(settings, n):
    assert pl.Robust(**settings).obstacle(n) is None
    assert pl.Robust(**settings).obstacle(n - 1) is not None


def test_capped_weights():
    np.testing.assert_allclose(capped([0.7, 0.2, 0.1], None), 1 / 3)
    np.testing.assert_allclose(capped([0.7, 0.2, 0.1], 3.0), np.array([3, 2, 1]) / 6)
    np.testing.assert_allclose(capped([0.9, 0.1, 0.0], 2.0), np.array([2, 1, 1]) / 4)  # nobody has no weight at all
    w = capped([1e6, 1e6, 1.0, 1.0, 1.0, 1.0, 1.0], 2.0)  # two liars that claim a million samples each
    assert w[:2].sum() < 0.5


@pytest.mark.parametrize("name", ["median", "geometric-median"])
def test_capped_attackers_are_withstood_up_to_the_size_that_is_allowed(name):
    settings = pl.Robust(name, f=2, cap=3.0)
    for n, broken in ((9, False), (7, True)):
        assert (settings.obstacle(n) is not None) == broken
        x = drawn(n, 4)
        x[:2] = 1e100
        w = capped([1e9] * 2 + [1.0] * (n - 2), 3.0)
        rule = rules.median if name == "median" else rules.geometric_median
        assert (np.linalg.norm(rule(x, w)) > 100) == broken


@pytest.mark.parametrize(
    "settings",
    [
        {"f": -1}, {"m": 2}, {"rule": "multi-krum", "m": 0}, {"radius": 0.0}, {"bound": -1.0}, {"cap": 1.0},
        {"rule": "mean"}, {"rule": "mode"}, {"rule": "krum", "cap": 2.0}, {"iterations": 0}, {"bound": float("nan")},
    ],
)  # fmt: skip
def test_settings_without_sense_are_refused(settings):
    with pytest.raises(InputError, match="robust"):
        pl.Robust(**settings)


def test_the_breakdown_is_per_cohort():
    """docs/robust.md: 20 of 100 attack, cohorts of 10: half or more of a cohort in 2.5% of rounds, 92% of runs."""
    broken = float(hypergeom(100, 20, 10).sf(4))
    assert round(100 * broken, 1) == 2.5
    assert round(100 * (1 - (1 - broken) ** 100)) == 92


def test_the_median_misses_the_optimum_of_clients_that_differ():
    """docs/robust.md: optima 0, 0, 0, 0, 10; the mean's fixed point is 2, the median's 0, with nobody lying."""
    optima = np.array([[0.0], [0.0], [0.0], [0.0], [10.0]])
    for rule, wanted in ((rules.mean, 2.0), (rules.median, 0.0), (rules.geometric_median, 0.0)):
        model = np.array([5.0])
        for _ in range(200):
            model = model - 0.1 * rule(model - optima, even(5))
        assert abs(model[0] - wanted) < 1e-6
