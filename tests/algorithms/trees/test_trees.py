"""Flat trees give what the trees they were made from give, fast, and hold nothing of the data but splits and values."""

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeRegressor

from parley.algorithms.trees.ensemble import Trees, complete, stacked
from parley.core.errors import InputError


def flat(fitted: DecisionTreeRegressor, depth: int, columns: int, dtype=torch.float32) -> Trees:
    tree = fitted.tree_
    values = tree.value[:, :, 0]
    return complete(
        tree.children_left, tree.children_right, tree.feature, tree.threshold, values, depth, columns, dtype
    )


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(0, 6), st.integers(1, 3), st.integers(1, 4))
def test_the_same_as_scikit_learns(seed: int, depth: int, outputs: int, count: int):
    """Also on rows that lie exactly on thresholds, and however few rows are asked for at once."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(60, 5)).round(1).astype(np.float32)
    fits = [
        DecisionTreeRegressor(max_depth=depth or 1, random_state=0).fit(x, random.normal(size=(60, outputs)))
        for _ in range(count)
    ]
    trees = stacked([flat(fit, depth or 1, 5, torch.float64) for fit in fits])
    new = torch.from_numpy(np.concatenate([x, random.normal(size=(7, 5)).round(1).astype(np.float32)]))
    coefficients = random.normal(size=count)
    total = trees.sum(new, coefficients)
    expected = sum(c * fit.predict(new.numpy()).reshape(67, -1) for c, fit in zip(coefficients, fits, strict=True))
    np.testing.assert_allclose(total, expected, rtol=1e-12, atol=1e-12)
    alone = torch.cat([trees.sum(new[i : i + 1], coefficients) for i in range(67)])
    assert torch.equal(total, alone)
    assert (trees.leaves(new) < 2**trees.depth).all()


@pytest.mark.parametrize("low", [1000.0, np.nextafter(np.float32(1000), np.float32(2000))])
def test_thresholds_in_float32_split_float32_rows_as_before(low: float):
    """A threshold half-way between two neighbouring numbers must not be rounded up to the higher one."""
    x = np.array([[low], [np.nextafter(np.float32(low), np.float32(2000))]], dtype=np.float32)
    fit = DecisionTreeRegressor(max_depth=1).fit(x, [0.0, 1.0])
    assert flat(fit, 1, 1).sum(torch.from_numpy(x)).flatten().tolist() == [0.0, 1.0]


def test_missing_values_go_where_the_node_says():
    nan = float("nan")
    x = torch.tensor([[nan], [-1.0], [1.0]])
    node = (np.array([1, -1, -1]), np.array([2, -1, -1]), np.array([0, -2, -2]), np.array([0.0, -2, -2]))
    values = np.array([[0.0], [10.0], [20.0]])
    right = complete(*node, values, 1, 1, missing=np.array([True, False, False]))
    left = complete(*node, values, 1, 1)
    assert right.sum(x).flatten().tolist() == [20.0, 10.0, 20.0]
    assert left.sum(x).flatten().tolist() == [10.0, 10.0, 20.0]
    both = stacked([left, right])
    assert both.sum(x).flatten().tolist() == [30.0, 20.0, 40.0]
    assert torch.equal(Trees.of(both.tensors()).sum(x), both.sum(x))


def test_nothing_but_splits_and_values_is_kept():
    random = np.random.default_rng(0)
    x = random.normal(size=(40, 3)).astype(np.float32)
    trees = flat(DecisionTreeRegressor(max_depth=4).fit(x, random.normal(size=40)), 4, 3)
    assert trees.tensors().keys() == {"features", "thresholds", "values"}
    assert Trees.form(1, 4, 1, 3, torch.float32).check(trees.tensors()) is None
    assert sum(value.nbytes for value in trees.tensors().values()) == 15 * (2 + 4) + 16 * 4


def test_bad_trees_are_refused():
    random = np.random.default_rng(0)
    x = random.normal(size=(40, 3)).astype(np.float32)
    fit = DecisionTreeRegressor(max_depth=4).fit(x, random.normal(size=40))
    with pytest.raises(InputError, match="deeper than its declared depth, 2"):
        flat(fit, 2, 3)
    with pytest.raises(InputError, match="depth from 0 to 12"):
        flat(fit, 40, 3)
    with pytest.raises(InputError, match="column that there is not; the inputs have 1"):
        flat(fit, 4, 3).sum(torch.from_numpy(x[:, :1]))
    with pytest.raises(InputError, match="trees of one depth"):
        stacked([flat(fit, 4, 3), flat(fit, 5, 3)])


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "seconds"), [(4, 2.0), (6, 4.0)])
def test_four_thousand_trees_on_ten_thousand_rows(depth: int, seconds: float):
    random = np.random.default_rng(0)
    nodes = (4000, 2**depth - 1)
    trees = Trees(
        torch.from_numpy(random.integers(0, 30, size=nodes)).short(),
        torch.from_numpy(random.normal(size=nodes)).float(),
        torch.from_numpy(random.normal(size=(4000, 2**depth, 1))).float(),
    )
    x = torch.from_numpy(random.normal(size=(10_000, 30))).float()
    begin = time.process_time()
    trees.sum(x)
    assert time.process_time() - begin < seconds
