"""Partitioners: exactness, determinism and the distributions they promise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.core.errors import InputError
from parley.core.fields import settings_of
from parley.core.key import Key
from parley.data import (
    IID,
    DataInfo,
    Dataset,
    Dirichlet,
    Fixed,
    Natural,
    Pachinko,
    Partition,
    QuantitySkew,
    Shards,
    SHomogeneity,
    Sorted,
    partitioners,
)
from parley.data.partition.base import owners_from_counts
from parley.data.partition.dirichlet import deal, refill
from parley.data.partition.quantity import apportion
from parley.study.toml import study_from_dict

EXACT = [
    IID(),
    Sorted(),
    Shards(1),
    Shards(3),
    SHomogeneity(0.0),
    SHomogeneity(0.3),
    SHomogeneity(1.0),
    Dirichlet(0.05),
    Dirichlet(5.0),
    Dirichlet(0.05, by="class"),
    Dirichlet(1.0, by="class", min_samples=2),
    QuantitySkew("dirichlet", alpha=0.1),
    QuantitySkew("lognormal", sigma=2.0),
    QuantitySkew("power", exponent=1.5, min_samples=2),
    Pachinko(0.1, 1.0),
]
quick = settings(deadline=None, max_examples=12)
some_labels = st.lists(st.integers(0, 9), min_size=1, max_size=200).map(np.array)


def label_counts(partition: Partition, labels: np.ndarray) -> np.ndarray:
    return np.array([np.bincount(labels[rows], minlength=labels.max() + 1) for rows in partition])


def distance(partition: Partition, labels: np.ndarray) -> float:
    """Mean total-variation distance between a client's label shares and the pooled ones."""
    counts = label_counts(partition, labels)
    pooled = np.bincount(labels) / len(labels)
    return float(np.abs(counts / counts.sum(1, keepdims=True) - pooled).sum(1).mean() / 2)


@pytest.mark.parametrize("scheme", EXACT, ids=repr)
@quick
@given(labels=some_labels, clients=st.integers(1, 60), seed=st.integers(0, 5))
def test_every_sample_exactly_once_and_nobody_empty(scheme, labels, clients, seed):
    least = getattr(scheme, "per_client", getattr(scheme, "min_samples", 1))
    coarse = labels // 3
    if clients * least > len(labels):
        with pytest.raises(InputError, match="fewer clients"):
            scheme(labels, clients, Key(seed), coarse=coarse)
        return
    partition = scheme(labels, clients, Key(seed), coarse=coarse)
    assert len(partition) == clients
    assert partition.rows.dtype == np.int64
    assert np.array_equal(np.sort(partition.rows), np.arange(len(labels)))
    assert min(len(rows) for rows in partition) >= least
    again = scheme(labels, clients, Key(seed), coarse=coarse)
    assert np.array_equal(partition.rows, again.rows)
    assert np.array_equal(partition.offsets, again.offsets)


@pytest.mark.parametrize("scheme", EXACT, ids=repr)
def test_another_key_gives_another_partition(scheme):
    labels = np.arange(400) % 10
    first, second = (scheme(labels, 7, Key(seed), coarse=labels // 2) for seed in (0, 1))
    assert not np.array_equal(first.rows, second.rows)


@pytest.mark.parametrize("name", sorted(set(partitioners) - {"fixed"}))
def test_registered_partitioners_work_with_their_defaults_and_refuse_zero_clients(name):
    labels = np.arange(300) % 10
    scheme = partitioners[name]()
    groups = np.arange(300) % 7
    assert len(scheme(labels, 5, Key(0), groups=groups, coarse=labels // 2)) == 5
    with pytest.raises(InputError):
        scheme(labels, 0, Key(0), groups=groups, coarse=labels // 2)


@pytest.mark.parametrize(
    "scheme", [IID(), Sorted(), SHomogeneity(0.37), Dirichlet(0.1), Shards(1), Pachinko()], ids=repr
)
@quick
@given(labels=some_labels, clients=st.integers(1, 40))
def test_sizes_differ_by_at_most_one(scheme, labels, clients):
    clients = min(clients, len(labels))
    sizes = np.diff(scheme(labels, clients, Key(3), coarse=labels // 3).offsets)
    assert sizes.max() - sizes.min() <= 1


def test_a_number_of_clients_is_asked_for():
    with pytest.raises(InputError, match="number of clients"):
        IID()(np.zeros(5, int), None, Key(0))


@quick
@given(labels=some_labels, clients=st.integers(1, 20))
def test_sorted_clients_hold_consecutive_labels(labels, clients):
    clients = min(clients, len(labels))
    parts = [np.sort(labels[rows]) for rows in Sorted()(labels, clients, Key(0))]
    assert np.array_equal(np.concatenate(parts), np.sort(labels))


@quick
@given(classes=st.integers(2, 10), shards=st.integers(1, 4), multiple=st.integers(1, 5), size=st.integers(1, 6))
def test_shards_give_at_most_per_client_classes(classes, shards, multiple, size):
    # clients * shards = multiple * shards * classes shards, so `multiple * shards` whole shards per class.
    labels = np.repeat(np.arange(classes), multiple * shards * size)
    partition = Shards(shards)(labels, multiple * classes, Key(1))
    counts = label_counts(partition, labels)
    assert ((counts > 0).sum(1) <= shards).all()
    assert (counts % size == 0).all()


def test_s_homogeneity_spreads_s_and_sorts_the_rest():
    labels = np.repeat(np.arange(10), 1000)
    for s in (0.0, 0.25, 0.75, 1.0):
        counts = label_counts(SHomogeneity(s)(labels, 10, Key(0)), labels)
        # A client's own class: s/10 of its samples by chance, and all of the sorted rest.
        own = counts.max(1) / counts.sum(1)
        assert np.allclose(own, s / 10 + 1 - s, atol=0.04)
        assert np.allclose(np.sort(counts, 1)[:, 1:-1].mean(1), 100 * s, atol=8)


@pytest.mark.parametrize("by", ["client", "class"])
def test_dirichlet_skew_grows_as_alpha_falls(by):
    labels = np.arange(6000) % 10
    skew = [distance(Dirichlet(alpha, by=by)(labels, 30, Key(0)), labels) for alpha in (100.0, 5.0, 0.5, 0.05)]
    assert skew == sorted(skew)
    assert skew[0] < 0.1
    assert skew[-1] > 0.6


def test_dirichlet_by_client_has_the_right_mean_and_variance_of_class_shares():
    # With few clients and ample stock no wish is cut, so shares are Multinomial(q)/n with q ~ Dir(alpha).
    labels, alpha, size = np.arange(100_000) % 4, 0.7, 500
    shares = np.concatenate(
        [label_counts(Dirichlet(alpha, samples=size)(labels, 20, Key(k)), labels) / size for k in range(60)]
    )
    variance = (1 / 4 * 3 / 4) / (4 * alpha + 1)
    expected = variance + (3 / 16 - variance) / size
    assert np.allclose(shares.mean(0), 1 / 4, atol=4 * np.sqrt(expected / len(shares)))
    assert np.allclose(shares.var(0), expected, rtol=0.15)


def test_dirichlet_by_class_divides_each_class_by_a_dirichlet_draw():
    labels, alpha, clients = np.arange(20_000) % 2, 2.0, 5
    shares = np.concatenate(
        [label_counts(Dirichlet(alpha, by="class")(labels, clients, Key(k)), labels) / 10_000 for k in range(150)]
    )
    variance = (1 / 5 * 4 / 5) / (clients * alpha + 1)
    assert np.isclose(shares.mean(), 1 / 5)
    assert np.isclose(shares.var(), variance, rtol=0.15)


@quick
@given(labels=st.lists(st.integers(0, 4), min_size=20, max_size=80).map(np.array), samples=st.integers(1, 20))
def test_dirichlet_with_overlap_never_repeats_a_sample_within_a_client(labels, samples):
    partition = Dirichlet(0.5, samples=samples, overlap=True)(labels, 30, Key(0))
    stock = np.bincount(labels)
    for rows in partition:
        assert len(np.unique(rows)) == len(rows)
        full = np.bincount(labels[rows], minlength=len(stock)) == stock
        assert len(rows) == samples or full[stock > 0].any()


def test_dirichlet_overlap_gives_samples_to_several_clients():
    labels = np.arange(1000) % 10
    partition = Dirichlet(1.0, samples=50, overlap=True)(labels, 100, Key(0))
    assert np.diff(partition.offsets).sum() > len(labels)


def test_dirichlet_samples_without_overlap_uses_each_sample_at_most_once():
    labels = np.arange(1000) % 10
    partition = Dirichlet(0.1, samples=30)(labels, 20, Key(0))
    assert set(np.diff(partition.offsets)) == {30}
    assert len(np.unique(partition.rows)) == 600


@pytest.mark.parametrize(
    "make",
    [
        lambda: Dirichlet(0.0),
        lambda: Dirichlet(float("nan")),
        lambda: Dirichlet(by="user"),
        lambda: Dirichlet(by="class", samples=5),
        lambda: Dirichlet(overlap=True),
        lambda: Dirichlet(samples=0),
        lambda: Shards(0),
        lambda: SHomogeneity(1.1),
        lambda: QuantitySkew("normal"),
        lambda: QuantitySkew(alpha=-1),
        lambda: Pachinko(0.0),
        lambda: Pachinko(samples=0),
        lambda: Natural(min_samples=0),
    ],
)
def test_bad_parameters_are_refused(make):
    with pytest.raises(InputError):
        make()


@quick
@given(total=st.integers(0, 1000), weights=st.lists(st.floats(0.001, 10), min_size=1, max_size=30))
def test_apportion_keeps_the_total_and_misses_no_share_by_one(total, weights):
    w = np.array(weights)
    counts = apportion(total, w)
    assert counts.sum() == total
    assert (np.abs(counts - total * w / w.sum()) < 1 + 1e-9).all()


def test_apportion_gives_the_rest_to_the_largest_remainders():
    assert apportion(3, np.array([0.5, 0.3, 0.2])).tolist() == [1, 1, 1]
    assert apportion(10, np.array([0.55, 0.26, 0.19])).tolist() == [5, 3, 2]


def test_deal_meets_sizes_and_stock_and_falls_back_to_what_is_left():
    # One client wants only class 0, of which there are 2: the other 500 follow the stock, 9 to 1.
    counts = deal(np.array([[1.0, 0.0, 0.0]]), np.array([502]), np.array([2, 9000, 1000]), np.random.default_rng(0))
    assert counts.sum() == 502
    assert counts[0, 0] == 2
    assert abs(counts[0, 1] - 450) < 5 * np.sqrt(500 * 0.9 * 0.1)


def test_deal_cuts_wishes_fairly():
    # Ten clients want the same scarce class: on average each gets a tenth of it.
    shares, sizes, stock = np.tile([0.9, 0.1], (10, 1)), np.full(10, 20), np.array([50, 150])
    total = sum(deal(shares, sizes, stock, np.random.default_rng(k)) for k in range(200))
    assert np.allclose(total[:, 0] / 200, 5, atol=0.6)


def test_refill_takes_from_the_largest_only_what_is_missing():
    owner = refill(np.repeat([0, 1], [20, 5]), 3, 4, np.random.default_rng(0))
    assert np.bincount(owner).tolist() == [16, 5, 4]


def test_samples_of_a_class_are_dealt_at_random():
    owners = [owners_from_counts(np.zeros(6, int), np.array([[3], [2]]), np.random.default_rng(k)) for k in range(40)]
    assert {tuple(np.bincount(owner + 1)) for owner in owners} == {(1, 3, 2)}
    assert {owner[0] for owner in owners} == {-1, 0, 1}


def test_quantity_skew_follows_its_law():
    labels = np.zeros(100_000, int)
    power = np.sort(np.diff(QuantitySkew("power", exponent=1.0)(labels, 50, Key(0)).offsets))[::-1]
    ranks = np.arange(1, 51)
    assert np.allclose(power, 1 + 99_950 / ranks / (1 / ranks).sum(), atol=1)
    normal = np.diff(QuantitySkew("lognormal", sigma=0.5)(labels, 500, Key(0)).offsets)
    assert np.isclose(np.log(normal).std(), 0.5, rtol=0.12)
    assert set(np.diff(QuantitySkew("lognormal", sigma=0.0)(labels, 100, Key(0)).offsets)) == {1000}


def test_pachinko_is_skewed_over_coarse_labels_and_mild_within():
    labels = np.arange(20_000) % 100
    coarse = labels // 5
    partition = Pachinko(0.1, 10.0, samples=100)(labels, 50, Key(0), coarse=coarse)
    assert len(np.unique(partition.rows)) == 5000
    counts = label_counts(partition, labels).reshape(50, 20, 5)
    coarse_counts = counts.sum(2)
    assert (coarse_counts > 5).sum(1).mean() < 5
    large = counts[coarse_counts > 50]
    # Dir(10) over five labels has next to no empty ones.
    assert (large > 0).sum(1).mean() > 4.5


def test_pachinko_needs_a_clean_hierarchy():
    labels = np.arange(100) % 10
    with pytest.raises(InputError, match="coarse labels"):
        Pachinko()(labels, 5, Key(0))
    with pytest.raises(InputError, match="exactly one coarse"):
        Pachinko()(labels, 5, Key(0), coarse=np.arange(100) % 3)


def test_natural_follows_the_groups():
    groups = np.repeat([0, 1, 2, 5], [10, 3, 7, 1])
    labels = np.zeros(len(groups), int)
    partition = Natural()(labels, None, Key(0), groups=groups)
    assert partition.groups is not None
    assert partition.groups.tolist() == [0, 1, 2, 5]
    for group, rows in zip(partition.groups, partition, strict=True):
        assert np.array_equal(rows, np.flatnonzero(groups == group))
    assert Natural(min_samples=4)(labels, None, Key(0), groups=groups).groups.tolist() == [0, 2]
    assert len(Natural()(labels, 2, Key(0), groups=groups)) == 2
    with pytest.raises(InputError, match="4 natural clients"):
        Natural()(labels, 9, Key(0), groups=groups)
    with pytest.raises(InputError, match="lower min_samples"):
        Natural(min_samples=99)(labels, None, Key(0), groups=groups)
    with pytest.raises(InputError, match="natural clients"):
        Natural()(labels, None, Key(0))


def test_natural_shards_cut_each_group():
    groups = np.repeat([0, 1], [10, 7])
    partition = Natural(shards=3)(np.zeros(17, int), None, Key(0), groups=groups)
    assert partition.groups.tolist() == [0, 0, 0, 1, 1, 1]
    assert np.array_equal(np.sort(partition.rows), np.arange(17))
    assert [set(groups[rows]) for rows in partition] == [{0}] * 3 + [{1}] * 3


def test_partition_reads_like_a_list():
    partition = Partition.of([np.array([3, 1]), np.array([0, 2])])
    assert [rows.tolist() for rows in partition] == [[1, 3], [0, 2]]
    assert partition[-1].tolist() == [0, 2]
    assert [rows.tolist() for rows in partition[:1]] == [[1, 3]]
    with pytest.raises(IndexError):
        partition[2]


FLOATS = [
    (name, setting.name)
    for name in sorted(partitioners)
    for setting in settings_of(partitioners[name])
    if setting.hint is float
]


def test_there_are_float_settings_to_check():
    assert {"alpha", "beta", "sigma", "exponent", "s"} == {setting for _, setting in FLOATS}


@pytest.mark.parametrize(("name", "setting"), FLOATS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_no_setting_takes_nan_or_infinity(name, setting, value):
    with pytest.raises(InputError, match=f"{setting} must be a finite number"):
        partitioners[name](**{setting: float(value)})


@settings(max_examples=60, deadline=None)
@given(
    which=st.sampled_from(FLOATS),
    value=st.floats(0, allow_nan=False, allow_infinity=False),
    law=st.sampled_from(["dirichlet", "lognormal", "power"]),
    seed=st.integers(0, 9),
)
def test_whatever_number_is_accepted_deals_every_sample_once(which, value, law, seed):
    name, setting = which
    options = {setting: value} | ({"law": law} if name == "quantity" else {})
    try:
        made = partitioners[name](**options)
    except InputError:
        return
    labels = np.arange(40) % 4
    partition = made(labels, 6, Key(seed), groups=labels, coarse=labels // 2)
    assert sorted(partition.rows.tolist()) == list(range(40))
    assert (np.diff(partition.offsets) > 0).all()


@quick
@given(data=st.data(), samples=st.integers(1, 50), clients=st.integers(1, 9))
def test_fixed_index_sets_are_those_of_the_file(tmp_path_factory, data, samples, clients):
    sets = [np.array(data.draw(st.lists(st.integers(0, samples - 1), min_size=1, unique=True))) for _ in range(clients)]
    file = tmp_path_factory.mktemp("sets") / "sets.npz"
    np.savez(file, a_idx=np.concatenate(sets).astype(np.uint16), a_sizes=np.array([len(one) for one in sets]))
    for number in (None, clients):
        partition = Fixed(str(file), "a")(np.zeros(samples, int), number, Key(0))
        assert all(np.array_equal(mine, np.sort(own)) for mine, own in zip(partition, sets, strict=True))
    with pytest.raises(InputError, match=f"{clients} clients, not {clients + 1}"):
        Fixed(str(file), "a")(np.zeros(samples, int), clients + 1, Key(0))
    with pytest.raises(InputError, match="names sample"):
        Fixed(str(file), "a")(np.zeros(max(map(max, sets)), int), None, Key(0))


def test_fixed_index_sets_that_do_not_fit_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PARLEY_DATA", str(tmp_path))
    good = {"a_idx": np.arange(6), "a_sizes": np.array([2, 4])}
    for changed, words in (
        ({"a_sizes": np.array([2, 3])}, "sizes that sum to 5"),
        ({"a_sizes": np.array([0, 6])}, "lie below 1"),
        ({"a_idx": np.arange(6.0)}, "whole numbers"),
        ({"a_idx": np.array([0, 1, 2, 3, 4, -1])}, "names sample -1"),
        ({"a_idx": np.array([{}] * 6)}, r"no \.npz file"),
    ):
        np.savez(tmp_path / "sets.npz", **(good | changed))
        with pytest.raises(InputError, match=words):
            Fixed("sets.npz", "a")(np.zeros(6, int), None, Key(0))
    np.savez(tmp_path / "sets.npz", **good)
    with pytest.raises(InputError, match="no partition 'b'"):
        Fixed("sets.npz", "b")(np.zeros(6, int), None, Key(0))
    with pytest.raises(InputError, match="there is no file"):
        Fixed("other.npz", "a")(np.zeros(6, int), None, Key(0))
    with pytest.raises(InputError, match="needs `file`"):
        Fixed()(np.zeros(6, int), None, Key(0))
    (tmp_path / "text.npz").write_text("text")
    with pytest.raises(InputError, match=r"no \.npz file"):
        Fixed("text.npz", "a")(np.zeros(6, int), None, Key(0))
    data = Dataset(DataInfo("toy", (1,), 2, "classification"), torch.zeros(6, 1), torch.zeros(6, dtype=torch.int64))
    assert data.split(Fixed("sets.npz", "a")).sizes().tolist() == [2, 4]
    with pytest.raises(InputError, match="no public_fraction"):
        data.split(Fixed("sets.npz", "a"), public_fraction=0.5)


def test_fixed_index_sets_in_a_study_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PARLEY_DATA", str(tmp_path))
    np.savez(tmp_path / "sets.npz", a_idx=np.arange(60), a_sizes=np.array([20, 40]))
    table = {
        "rounds": 1,
        "model": {"name": "linear"},
        "algorithm": {"name": "fedavg"},
        "data": {"name": "iris", "partition": {"name": "fixed", "file": "sets.npz", "which": "a"}},
    }
    study = study_from_dict(table)
    assert study.federation().sizes().tolist() == [20, 40]
    again = study_from_dict(study.resolved())
    assert again.federation().sizes().tolist() == [20, 40]
