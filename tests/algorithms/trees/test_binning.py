"""Bins from counts: those that sorting the pooled values would give, however narrow, huge or tiny a column is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.algorithms.trees import binning

HUGE = 1.7e308


@st.composite
def columns(draw) -> np.ndarray:
    """A mixture of clusters, each of some scale at some offset, continuous or of few values, with gaps."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        offset = draw(st.sampled_from([0.0, 1.0, -5e5, 1.7e9, 1.7e18, 1e14, -1e300]))
        scale = draw(st.sampled_from([0.0, 1e-310, 1e-15, 0.1, 10.0, 3600.0, 1e12, 1e306]))
        n = int(rng.integers(1, 400))
        values = rng.uniform(-1, 1, n) if rng.random() < 0.6 else rng.integers(0, 7, n) / rng.choice([1, 7])
        parts.append(offset + scale * values)
    return np.concatenate([*parts, np.full(int(rng.integers(0, 5)), np.nan)])


def exchanged(column: np.ndarray, rule, coarse: bool, clients: int = 3) -> tuple[binning.Refinement, int]:
    """Counted by clients until there is nothing to cut; and how often."""
    found = binning.Refinement(binning.number_line(), 1, rule, coarse)
    owner, exchanges = np.random.default_rng(0).integers(0, clients, len(column)), 0
    while len(found.open):
        cells = found.cells()
        found.take(sum(binning.counts(column[owner == i, None], cells) for i in range(clients)))
        exchanges += 1
    return found, exchanges


@settings(max_examples=150, deadline=None)
@given(column=columns(), bins=st.sampled_from([2, 16, 64, 255]))
def test_bins_have_their_share_or_a_single_value(column, bins):
    found, exchanges = exchanged(column, binning.filling(bins), coarse=True)
    edges = found.edges(bins)
    values = column[~np.isnan(column)]
    codes = binning.codes(column[:, None], edges)[:, 0]
    assert (codes[np.isnan(column)] == bins).all()
    assert (edges[0, codes[~np.isnan(column)]] >= values).all()
    distinct = np.unique(values)
    if len(distinct) <= bins:
        assert len(np.unique(binning.codes(distinct[:, None], edges))) == len(distinct)
    for code in np.unique(codes[~np.isnan(column)]):
        many = np.unique(values[codes[~np.isnan(column)] == code], return_counts=True)[1]
        # Up to a quantile, and what the cell of the quantile has beyond it; that may be a value which cannot be cut.
        assert many.sum() <= 2 * len(values) / bins + 2 or many.sum() - many.max() <= len(values) / bins
    assert exchanges < 20


@settings(max_examples=60, deadline=None)
@given(column=columns())
def test_targets_are_bounded_closely(column):
    found, exchanges = exchanged(column, binning.bounding, coarse=False)
    values = column[~np.isnan(column)]
    low, high = (end[0] for end in found.bounds())
    assert low <= values.min() <= values.max() <= high
    spread, size = values.max() / 2 - values.min() / 2, np.abs(values).max() / 2
    assert high / 2 - low / 2 <= max(2 * spread, 1.01 * size * 2.0**-16) + 1e-323
    assert exchanges < 8
    if np.abs(values).max() < 1e100:
        middle, unit = binning.unit_of(*found.bounds())
        assert np.abs(values - middle[0]).max() <= unit
        assert np.log2(unit) == np.round(np.log2(unit))


@pytest.mark.parametrize("value", [0.0, 1.0, -7.0, 0.1, 1.7e9, HUGE, -HUGE, 5e-324, -5e-324, np.float32(0.3)])
def test_equal_values_are_one_bin(value):
    found, _ = exchanged(np.full(30, value), binning.filling(8), coarse=True)
    assert (found.edges(8) == binning.LARGEST).all()
    near = np.repeat([value, np.nextafter(value, 0) if value else 5e-324], 15)
    found, _ = exchanged(near, binning.filling(8), coarse=True)
    assert len(np.unique(binning.codes(near[:, None], found.edges(8)))) == 2


def test_whole_numbers_need_no_search():
    column = np.random.default_rng(0).integers(-40, 40, 3000).astype(float)
    assert exchanged(column, binning.filling(255), coarse=True)[1] == 2


def test_columns_that_are_done_are_not_counted_again():
    rng = np.random.default_rng(0)
    table = np.stack([rng.normal(size=500), 1.7e18 + 3.6e12 * rng.random(500)], axis=1)
    found = binning.Refinement(binning.number_line(), 2, binning.filling(16), coarse=True)
    asked = []
    while len(found.open):
        asked.append(found.open.tolist())
        found.take(binning.counts(table[:, found.open], found.cells()))
    assert asked[:2] == [[0, 1], [0, 1]]
    assert len(asked) > 2
    assert all(own == [1] for own in asked[2:])


@given(codes=st.lists(st.integers(0, 9), min_size=1, max_size=60), least=st.integers(2, 12))
def test_merged_codes_have_enough_rows_and_keep_their_order(codes: list[int], least: int):
    before = np.array(codes, np.uint8)[:, None]
    after = binning.merged(before, 9, least)
    counts = np.bincount(after[:, 0], minlength=10)
    assert counts.sum() == len(codes)
    assert not ((counts > 0) & (counts < least)).any() or np.count_nonzero(counts) == 1
    order = np.argsort(before[:, 0], kind="stable")
    assert (np.diff(after[order, 0].astype(int)) >= 0).all()
    assert set(after[:, 0]) <= set(before[:, 0])
    enough = [code for code, count in enumerate(np.bincount(before[:, 0], minlength=10)) if count >= least]
    if len(enough) == len(set(codes)):
        assert np.array_equal(before, after)
