"""Counts and blocks of neighbouring values: nothing of few, and quantiles within the bound they state."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.statistics.floors import Blocks, above_floor, block_quantiles, by_level, cell_edges, cell_quantiles

SHARES = (0.0, 0.01, 0.25, 0.5, 0.9, 1.0)


@settings(max_examples=100, deadline=None)
@given(row=st.lists(st.integers(0, 30), min_size=1, max_size=12), least=st.integers(1, 25))
def test_no_count_and_no_difference_is_small(row: list[int], least: int):
    counts = np.array([row])
    kept = above_floor(counts, least)
    told = kept[0][kept[0] > 0]
    assert (told >= least).all()
    assert (told == counts[0][kept[0] > 0]).all()
    assert (left := counts.sum() - kept.sum()) == 0 or left >= least or not told.size
    if min((count for count in row if count), default=least) >= least:
        assert np.array_equal(kept, counts)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), least=st.integers(1, 8))
def test_samples_with_several_values_count_once(seed: int, least: int):
    """Of pictures: each cell that is told, and all those left out together, have enough pictures behind them."""
    rng = np.random.default_rng(seed)
    there = rng.random((int(rng.integers(1, 12)), 6)) < rng.random(6)
    counts = (there * rng.integers(1, 9, there.shape)).sum(axis=0)[None]
    kept = above_floor(counts, least, [there])
    told = kept[0] > 0
    assert (there[:, told].sum(axis=0) >= least).all()
    left = there[:, (counts[0] > 0) & ~told]
    assert left.shape[1] == 0 or left.any(axis=1).sum() >= least or not told.any()


@st.composite
def federations(draw) -> list[np.ndarray]:
    """Values of some clients, with ties and gaps."""
    seed, clients = draw(st.integers(0, 10**6)), draw(st.integers(1, 5))
    rng = np.random.default_rng(seed)
    kind = draw(st.sampled_from(["normal", "ties", "heavy"]))
    made = {"normal": rng.normal, "ties": lambda size: rng.integers(0, 4, size) * 1.0, "heavy": rng.standard_cauchy}
    return [made[kind](size=int(rng.integers(0, 90))) + rng.normal() * (i % 2) for i in range(clients)]


@settings(max_examples=80, deadline=None)
@given(clients=federations(), blocks=st.integers(1, 30), least=st.integers(1, 12))
def test_quantiles_are_within_the_bound(clients: list[np.ndarray], blocks: int, least: int):
    """q lies between the pooled values whose ranks are `off` away from the one asked for."""
    told = [Blocks.of(own[None], blocks, least) for own in clients]
    for own, made in zip(clients, told, strict=True):
        assert ((made.weights == 0) | (made.weights >= least)).all()
        assert made.weights.sum() == (len(own) if len(own) >= least else 0)
        assert all((own == mean).sum() >= least for mean in made.means[made.equal])
    means, weights, equal = (
        np.concatenate([getattr(made, name) for made in told]) for name in ("means", "weights", "equal")
    )
    pooled = np.sort(np.concatenate([own for own in clients if len(own) >= least] or [np.empty(0)]))
    n, off = len(pooled), int((weights * ~equal).max(axis=1).sum())
    found = block_quantiles(means, weights, SHARES)
    for share, value in zip(SHARES, found, strict=True) if n else ():
        assert (pooled <= value).sum() >= share * n - off
        assert (pooled < value).sum() <= share * n + off
    for t in pooled[:: max(1, n // 7)]:
        assert abs((pooled <= t).sum() - weights[means <= t].sum()) <= off


def test_one_block_a_value_is_the_order_itself():
    values = np.array([[3.0, 1.0, 2.0, 2.0, np.nan]])
    made = Blocks.of(values, 10, 1)
    assert made.means[0, :4].tolist() == [1, 2, 2, 3]
    assert made.weights[0].tolist() == [1, 1, 1, 1] + [0] * 6
    assert block_quantiles(made.means, made.weights, (0.0, 0.5, 1.0)).tolist() == [1, 2, 3]


def test_of_few_different_values_each_is_a_block_where_it_may_be():
    values = np.array([[0.0] * 30 + [1.0] * 9 + [2.0] * 25 + [np.nan] * 3, np.arange(67.0)])
    made = Blocks.of(values, 8, 10)
    assert made.few.tolist() == [True, False]
    assert made.weights[0].tolist() == [30, 10, 24] + [0] * 5
    assert made.equal[0].tolist() == [True, False, True] + [False] * 5
    assert not made.equal[1].any()
    made = Blocks.of(values, 8, 9)
    assert made.means[0, :3].tolist() == [0, 1, 2]
    assert made.weights[0, :3].tolist() == [30, 9, 25]
    assert made.equal[0, :3].all()
    assert (Blocks.of(values, 2, 9).weights > 0).sum(axis=1).tolist() == [2, 2]
    rare = Blocks.of(np.array([[1.0] * 3 + [2.0] * 60 + [7.0] * 4]), 8, 10)
    assert rare.weights[0, :3].tolist() == [10, 47, 10]
    assert (rare.means[0, 1], rare.equal[0, :3].tolist()) == (2.0, [False, True, False])


def test_blocks_by_level_keep_weights_and_means():
    means, weights = np.array([-1.0, 0.0, 0.25, 1.0, 2.5, 9.0]), np.array([3, 10, 8, 4, 6, 5])
    values, parts = by_level(means, weights, np.array([0.0, 1.0, 4.0]))
    assert parts.sum(axis=0).tolist() == weights.tolist()
    assert ((values * parts).sum(axis=0) == means * weights).all()
    assert set(values[parts > 0].tolist()) == {-1.0, 0.0, 1.0, 4.0, 9.0}


def test_means_of_huge_and_of_equal_values_stay_among_them():
    steps = 0.1 + np.arange(6) * 1e-17
    made = Blocks.of(np.array([[1.7e308] * 6, [0.1] * 6, np.r_[1.6e308:1.7e308:6j]]), 2, 3)
    assert made.means[:2, 0].tolist() == [1.7e308, 0.1]
    assert made.equal[:2, 0].all()
    assert np.isfinite(made.means).all()
    assert Blocks.of(steps[None], 2, 3).means[0, 0] <= steps[-1]


def test_cells():
    edges = cell_edges(np.array([2.0, 5.0, 1e308]), np.array([1.0, 0.0, np.inf]), 6)
    assert edges[0].tolist() == [-1, 0, 1, 2, 3, 4, 5]
    assert (edges[1] == 5).all()
    assert np.isfinite(edges).all()
    counts = np.array([0, 0, 0, 10, 10, 0, 0, 0])
    assert cell_quantiles(edges[0], counts, (0.0, 0.25, 0.5, 1.0)).tolist() == [1, 1.5, 2, 3]
    assert cell_quantiles(edges[0], 0 * counts, (0.5,)).tolist() == [0]
