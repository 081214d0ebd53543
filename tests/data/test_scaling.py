"""Standardisation by sums that clients could send."""

from __future__ import annotations

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import parley as pl
from parley.core.errors import InputError
from parley.data import IID, DataInfo, Dataset, Federation


def table(rng: np.random.Generator, sizes: list[int], columns: int, offset: float) -> dict[str, tuple]:
    scale = rng.uniform(0.1, 10, columns)
    return {
        str(i): (offset + scale * rng.normal(size=(n, columns)) + i, rng.integers(0, 2, n)) for i, n in enumerate(sizes)
    }


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=2, max_size=6),
    columns=st.integers(1, 4),
    offset=st.sampled_from([0.0, -3.0, 1e6, 1e9]),
    seed=st.integers(0, 99),
)
def test_it_is_the_pooled_mean_and_deviation(sizes, columns, offset, seed):
    made = table(np.random.default_rng(seed), sizes, columns, offset)
    info = DataInfo("t", (columns,), 2, "classification")
    federation = Federation.from_arrays(made, info=info).standardised()
    pooled = np.concatenate([x for x, _ in made.values()])
    scaling = federation.info.scaling
    np.testing.assert_allclose(scaling.mean, pooled.mean(0), rtol=1e-12)
    np.testing.assert_allclose(scaling.deviation, pooled.std(0), rtol=1e-5)
    assert (scaling.samples, scaling.numbers_sent) == (sum(sizes), 1 + 2 * columns)
    got = torch.cat([federation.client(id).x for id in federation.ids]).numpy()
    np.testing.assert_allclose(got, (pooled - pooled.mean(0)) / pooled.std(0), atol=1e-6)


def test_only_training_samples_count_and_all_sets_are_treated_alike():
    rng = np.random.default_rng(0)
    made = table(rng, [20, 30], 3, 5.0)
    test, public = (rng.normal(size=(4, 3)), np.zeros(4, int)), rng.normal(size=(5, 3))
    plain = Federation.from_arrays(made, test=test, public=public, test_fraction=0.3)
    scaled = plain.standardised()
    pooled = torch.cat([plain.client(id).x for id in plain.ids])
    mean, deviation = pooled.mean(0), pooled.std(0, correction=0)
    for before, after in (
        (plain.client("1").x, scaled.client("1").x),
        (plain.client_test("0").x, scaled.client_test("0").x),
        (plain.test.x, scaled.test.x),
        (plain.public, scaled.public),
    ):
        torch.testing.assert_close(after, (before - mean) / deviation)
    assert torch.equal(scaled.client("1").y, plain.client("1").y)
    assert cloudpickle.loads(cloudpickle.dumps(scaled)).info == scaled.info


def test_constant_columns_are_left_alone():
    x = np.array([[0.1, 1.0], [0.1, 3.0], [0.1, 8.0]])
    scaled = Federation.from_arrays({"a": (x, [0, 1, 0])}).standardised()
    assert scaled.client("a").x[:, 0].tolist() == [0.1, 0.1, 0.1]
    assert scaled.client("a").x[:, 1].mean().abs() < 1e-12


def test_a_split_shares_one_standardised_copy_and_images_go_by_channel():
    x = torch.randn(40, 2, 3, 3) * torch.tensor([2.0, 5.0])[:, None, None] + 1
    info = DataInfo("images", (2, 3, 3), 2, "classification")
    federation = Dataset(info, x, torch.arange(40) % 2).split(IID(), 4, test_fraction=0.25)
    scaled = federation.standardised()
    assert scaled.source.x is scaled.held_out.x
    got = torch.cat([scaled.client(id).x for id in scaled.ids])
    torch.testing.assert_close(got.mean((0, 2, 3)), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(got.var((0, 2, 3), correction=0), torch.ones(2))


def test_lazy_sources_are_standardised_when_they_are_loaded(tmp_path):
    (tmp_path / "a.csv").write_text("u,v\n1,0\n3,1\n")
    (tmp_path / "b.csv").write_text("u,v\n5,0\n7,1\n")
    scaled = Federation.from_folder(tmp_path).standardised()
    assert scaled.info.scaling.mean == (4.0,)
    np.testing.assert_allclose(scaled.client("b").x[:, 0], np.array([1.0, 3.0]) / 5**0.5, rtol=1e-6)
    assert scaled.source.source.source.counts.tolist() == [2, 2]  # read again from the files, not copied


def test_what_cannot_be_standardised_says_so():
    federation = Federation.from_arrays({"a": (np.array([[1.0], [2.0]]), [0, 1])})
    with pytest.raises(InputError, match="already"):
        federation.standardised().standardised()
    with pytest.raises(InputError, match="token ids"):
        Federation.from_arrays({"a": (np.array([[1], [2]]), [0, 1])}).standardised()
    with pytest.raises(InputError, match="too large"):
        Federation.from_arrays({"a": (np.array([[1e200], [-1e200]]), [0, 1])}).standardised()


def test_a_bad_column_scale_no_longer_spoils_training():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    y = (x[:, 1] > 0).astype(int)
    x[:, 0] = 1e4 + 1e3 * x[:, 0]
    federation = Federation.from_arrays({"a": (x[:100], y[:100]), "b": (x[100:], y[100:])}).standardised()
    run = pl.train(pl.FedAvg(lr=0.5, steps=10), federation, model=pl.models.linear(), rounds=10)
    assert (run.predict(federation.client("a").x).argmax(1) == federation.client("a").y).float().mean() > 0.9
