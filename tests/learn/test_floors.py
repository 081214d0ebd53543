"""Counts and blocks of neighbouring values: nothing of few, and quantiles within the bound they state."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.learn.floors import above_floor, block_means, block_quantiles, cell_edges, cell_quantiles

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
    told = [block_means(own[None], blocks, least) for own in clients]
    for own, (_, weights) in zip(clients, told, strict=True):
        assert ((weights == 0) | (weights >= least)).all()
        assert weights.sum() == (len(own) if len(own) >= least else 0)
    means, weights = (np.concatenate(parts) for parts in zip(*told, strict=True))
    pooled = np.sort(np.concatenate([own for own in clients if len(own) >= least] or [np.empty(0)]))
    n, off = len(pooled), int(weights.max(axis=1).sum())
    found = block_quantiles(means, weights, SHARES)
    for share, value in zip(SHARES, found, strict=True) if n else ():
        assert (pooled <= value).sum() >= share * n - off
        assert (pooled < value).sum() <= share * n + off
    for t in pooled[:: max(1, n // 7)]:
        assert abs((pooled <= t).sum() - weights[means <= t].sum()) <= off


def test_one_block_a_value_is_the_order_itself():
    values = np.array([[3.0, 1.0, 2.0, 2.0, np.nan]])
    means, weights = block_means(values, 10, 1)
    assert means[0, :4].tolist() == [1, 2, 2, 3]
    assert weights[0].tolist() == [1, 1, 1, 1] + [0] * 6
    assert block_quantiles(means, weights, (0.0, 0.5, 1.0)).tolist() == [1, 2, 3]


def test_means_of_huge_and_of_equal_values_stay_among_them():
    means, _ = block_means(np.array([[1.7e308] * 6, [0.1] * 6]), 2, 3)
    assert means.tolist() == [[1.7e308] * 2, [0.1] * 2]


def test_cells():
    edges = cell_edges(np.array([2.0, 5.0, 1e308]), np.array([1.0, 0.0, np.inf]), 6)
    assert edges[0].tolist() == [-1, 0, 1, 2, 3, 4, 5]
    assert (edges[1] == 5).all()
    assert np.isfinite(edges).all()
    counts = np.array([0, 0, 0, 10, 10, 0, 0, 0])
    assert cell_quantiles(edges[0], counts, (0.0, 0.25, 0.5, 1.0)).tolist() == [1, 1.5, 2, 3]
    assert cell_quantiles(edges[0], 0 * counts, (0.5,)).tolist() == [0]
