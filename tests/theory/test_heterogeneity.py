"""omega_TV and omega_W1 against closed forms, as metrics, and between their ends where they are sampled."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.core.errors import InputError
from parley.theory.heterogeneity import Distance, Sample, heterogeneity, mixture, total_variation, wasserstein1

seeds = st.integers(0, 10**6)


def drawn(seed: int, n: int, d: int = 2, labels: int = 0) -> Sample:
    random = np.random.default_rng(seed)
    return Sample(random.normal(size=(n, d)), random.integers(labels, size=n) if labels else None)


def kinds(seed: int) -> list[Sample]:
    """Three samples of one kind, which the seed chooses."""
    random = np.random.default_rng(seed)
    kind, found = seed % 5, []
    for _ in range(3):
        n = int(random.integers(2, 7))
        x, y = random.integers(3, size=(n, 2)).astype(float), random.integers(3, size=n)
        weights = random.uniform(0.5, 2, n)
        found.append(
            [
                Sample(x),
                Sample(x[:, :1], None, weights),
                Sample(None, y, weights),
                Sample(x, y, weights),
                Sample(x, y.astype(float), None, True),
            ][kind]
        )
    return found


@settings(deadline=None, max_examples=60)
@given(seeds)
def test_both_are_metrics(seed: int):
    a, b, c = kinds(seed)
    for distance in (total_variation, wasserstein1):
        ab, bc, ac = (distance(*pair).value for pair in ((a, b), (b, c), (a, c)))
        assert ab == pytest.approx(distance(b, a).value, abs=1e-9)
        assert distance(a, a).value == pytest.approx(0, abs=1e-9)
        assert ac <= ab + bc + 1e-9
        assert min(ab, bc, ac) >= 0
    assert total_variation(a, b).value <= 1


@settings(deadline=None, max_examples=40)
@given(seeds, st.integers(2, 6))
def test_total_variation_of_shares(seed: int, classes: int):
    random = np.random.default_rng(seed)
    p, q = random.dirichlet(np.ones(classes), 2)
    a, b = (Sample(None, np.arange(classes), weights) for weights in (p + 1e-12, q + 1e-12))
    assert total_variation(a, b).value == pytest.approx(np.abs(p - q).sum() / 2, abs=1e-9)
    # Classes are 0 or label_cost apart, so W1 is the mass that has to move.
    assert wasserstein1(a, b, label_cost=3.0).value == pytest.approx(3 * np.abs(p - q).sum() / 2, abs=1e-9)
    # In one word: the largest difference that any event has.
    best = max(
        abs(p[list(event)].sum() - q[list(event)].sum())
        for event in ([i for i in range(classes) if mask >> i & 1] for mask in range(2**classes))
    )
    assert total_variation(a, b).value == pytest.approx(best, abs=1e-9)


@settings(deadline=None, max_examples=40)
@given(seeds, st.integers(1, 9))
def test_on_a_line_w1_is_the_area_between_the_quantiles(seed: int, n: int):
    random = np.random.default_rng(seed)
    x, y = random.normal(size=(2, n))
    expected = np.abs(np.sort(x) - np.sort(y)).mean()
    assert wasserstein1(Sample(x[:, None]), Sample(y[:, None])).value == pytest.approx(expected, abs=1e-9)
    assert wasserstein1(Sample(None, x, None, True), Sample(None, y, None, True)).value == pytest.approx(
        expected, abs=1e-9
    )
    # The same points in a plane, by linear programming.
    turned = np.array([[0.6, 0.8]])
    plane = wasserstein1(Sample(x[:, None] @ turned), Sample(y[:, None] @ turned))
    assert plane.value == pytest.approx(expected, abs=1e-9)
    assert plane.exact


@settings(deadline=None, max_examples=20)
@given(seeds, st.floats(-3, 3), st.floats(0.2, 4))
def test_a_shift_costs_its_length_and_scaling_scales(seed: int, shift: float, factor: float):
    a = drawn(seed, 12, 3)
    moved = Sample(a.inputs + np.array([shift, 0, 2 * shift]))
    assert wasserstein1(a, moved).value == pytest.approx(abs(shift) * 5**0.5, abs=1e-8)
    b = drawn(seed + 1, 9, 3)
    scaled = wasserstein1(Sample(a.inputs * factor), Sample(b.inputs * factor)).value
    assert scaled == pytest.approx(factor * wasserstein1(a, b).value, rel=1e-8)


def test_joint_distances():
    """Equal inputs with swapped labels: a pair moves either its label or its input, whichever is cheaper."""
    x = np.array([[0.0, 0.0], [3.0, 0.0]])
    a, b = Sample(x, np.array([0, 1])), Sample(x, np.array([1, 0]))
    assert wasserstein1(a, b, label_cost=1.0).value == pytest.approx(1.0)
    assert wasserstein1(a, b, label_cost=10.0).value == pytest.approx(3.0)
    assert total_variation(a, b).value == pytest.approx(1.0)
    assert total_variation(Sample(x), Sample(x)).value == 0
    numbers = [Sample(x, np.array(y), None, True) for y in ([0.0, 1.0], [0.5, 1.5])]
    assert wasserstein1(*numbers).value == pytest.approx(0.5)


def test_omegas_of_known_clients():
    """Theorem 4.2's example has omega_TV = 1/2: two clients without a common point."""
    apart = heterogeneity([Sample(np.array([[0.0, 0.0]])), Sample(np.array([[3.0, 4.0]]))], "tv")
    assert apart.omega == Distance.known(0.5)
    assert apart.between.tolist() == [[0, 1], [1, 0]]
    w1 = heterogeneity([Sample(np.array([[0.0, 0.0]])), Sample(np.array([[3.0, 4.0]]))], "w1")
    assert w1.omega.value == pytest.approx(2.5)
    assert w1.between[0, 1] == pytest.approx(5)
    one_class_each = [Sample(None, np.full(3 + i, i)) for i in range(5)]
    assert heterogeneity(one_class_each, "tv").omega.value == pytest.approx(1 - 1 / 5)  # sizes do not count
    alike = [Sample(None, np.array([0, 1])), Sample(None, np.array([0, 0, 1, 1]))]
    assert heterogeneity(alike, "tv").omega.value == 0
    assert np.isnan(heterogeneity(alike, "tv", pairs=False).between[0, 1])


@settings(deadline=None, max_examples=20)
@given(seeds, st.integers(2, 5))
def test_the_mixture_is_closer_than_the_clients_are_to_each_other(seed: int, count: int):
    """Convexity: D(mixture, alpha_i) <= 1/N sum_j D(alpha_j, alpha_i)."""
    clients = [drawn(seed + i, 6) for i in range(count)]
    for metric in ("tv", "w1"):
        found = heterogeneity(clients, metric)
        for i, one in enumerate(found.to_mixture):
            assert one.value <= found.between[i].mean() + 1e-9
    assert mixture(clients).shares.sum() == pytest.approx(1)


@pytest.mark.parametrize("seed", range(3))
def test_large_supports_lie_between_the_ends(seed: int):
    """Gaussians with a shift: W1 of their empirical distributions is known from one exact computation."""
    random = np.random.default_rng(seed)
    x, y = random.normal(size=(600, 3)), random.normal(size=(500, 3)) + np.array([1.0, 0, 0])
    a, b = Sample(x), Sample(y)
    truth = wasserstein1(a, b).value
    found = wasserstein1(a, b, limit=120, rng=random)
    assert not found.exact
    assert found.low <= truth <= found.high
    assert found.low <= found.value <= found.high
    assert found.high - found.low < 1.2
    labelled = [Sample(one, (one[:, 0] > 0).astype(int)) for one in (x, y)]
    truth, joint = wasserstein1(*labelled).value, wasserstein1(*labelled, limit=120, rng=random)
    assert joint.low <= truth <= joint.high
    same = wasserstein1(a, Sample(x[::-1].copy()), limit=120, rng=random)
    assert same.low == pytest.approx(0, abs=1e-9)
    repeated = [wasserstein1(a, b, limit=120, rng=np.random.default_rng(7)) for _ in range(2)]
    assert repeated[0] == repeated[1]


def test_bad_input():
    a, b = drawn(0, 5), drawn(1, 5, 3)
    wrong = [
        (lambda: wasserstein1(a, b), "of one width"), (lambda: total_variation(a, drawn(0, 5, labels=2)), "labels"),
        (lambda: Sample(), "needs inputs, labels or both"), (lambda: Sample(np.zeros((0, 2))), "at least one"),
        (lambda: Sample(np.array([[np.nan]])), "finite"), (lambda: Sample(np.zeros((2, 1)), np.zeros(3)), "as many"),
        (lambda: Sample(np.zeros((2, 1)), None, np.array([1.0, 0.0])), "positive"),
        (lambda: heterogeneity([a], "energy"), "'tv' or 'w1'"), (lambda: mixture([]), "at least one client"),
        (lambda: wasserstein1(a, a, label_cost=0.0), "label_cost"),
        (lambda: wasserstein1(drawn(0, 30), a, limit=10), "give a random generator"),
    ]  # fmt: skip
    for call, message in wrong:
        with pytest.raises(InputError, match=message):
            call()


def test_without_pot(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    with pytest.raises(InputError, match=r"pip install -c constraints.txt '\.\[transport\]'"):
        wasserstein1(drawn(0, 4), drawn(1, 4))
    assert total_variation(drawn(0, 4), drawn(1, 4)).value == 1
    assert wasserstein1(drawn(0, 4, 1), drawn(1, 4, 1)).exact
