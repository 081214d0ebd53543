"""Federations from splits and from the user's own data."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from itertools import pairwise

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset

from parley.core.errors import InputError
from parley.data import IID, ClientData, DataInfo, Dataset, Dirichlet, Federation, Natural
from parley.data.federation import NumberedIds


def toy(n: int = 60, **extra) -> Dataset:
    info = DataInfo("toy", (2,), 3, "classification")
    x = torch.stack([torch.arange(n), torch.arange(n)], 1).float()
    return Dataset(info, x, torch.arange(n) % 3, **extra)


def test_client_data_checks_lengths():
    assert len(ClientData(torch.zeros(3, 2), torch.zeros(3))) == 3
    with pytest.raises(InputError, match="one row per sample"):
        ClientData(torch.zeros(3, 2), torch.zeros(2))
    copy = cloudpickle.loads(cloudpickle.dumps(ClientData(torch.ones(3, 2), torch.zeros(3))))
    assert torch.equal(copy.x, torch.ones(3, 2))


def test_data_info_is_consistent():
    with pytest.raises(InputError, match="names 1 classes"):
        DataInfo("a", (1,), 2, "classification", ("x",))
    with pytest.raises(InputError, match="at least one"):
        DataInfo("a", (1,), 0, "regression")


@settings(deadline=None, max_examples=20)
@given(
    n=st.integers(5, 80),
    clients=st.integers(1, 5),
    fraction=st.floats(0, 0.95),
    public=st.floats(0, 0.4),
    seed=st.integers(0, 3),
)
def test_a_split_uses_every_sample_once_in_train_test_or_public(n, clients, fraction, public, seed):
    data = toy(n)
    if round(public * n) + clients > n:
        return
    federation = data.split(IID(), clients, seed, test_fraction=fraction, public_fraction=public)
    seen = [] if federation.public is None else federation.public[:, 0].tolist()
    for id in federation.ids:
        train, test = federation.client(id), federation.client_test(id)
        total = len(train) + (len(test) if test else 0)
        assert len(train) == federation.size(id) >= 1
        assert len(train) == total - max(0, min(round(fraction * total), total - 1))
        for part in (train, test):
            if part:
                assert torch.equal(part.y, part.x[:, 0].long() % 3)
                seen += part.x[:, 0].tolist()
    assert sorted(seen) == list(range(n))
    again = data.split(IID(), clients, seed, test_fraction=fraction, public_fraction=public)
    assert torch.equal(again.client("0").x, federation.client("0").x)


def test_a_split_keeps_the_pooled_tensors_once_and_pickles():
    data = toy()
    federation = data.split(Dirichlet(0.5), 4, test_fraction=0.25)
    assert federation.source.x is data.x
    assert federation.held_out.x is data.x
    copy = cloudpickle.loads(cloudpickle.dumps(federation))
    for id in federation.ids:
        assert torch.equal(copy.client(id).x, federation.client(id).x)
        assert torch.equal(copy.client_test(id).x, federation.client_test(id).x)
    assert np.array_equal(copy.sizes(), federation.sizes())
    assert federation.sizes(["2", "0"]).tolist() == [federation.size("2"), federation.size("0")]


def test_natural_clients_keep_their_names_and_test_samples():
    test = ClientData(torch.tensor([[7.0, 7.0], [8.0, 8.0], [9.0, 9.0]]), torch.tensor([0, 1, 2]))
    data = toy(
        6,
        test=test,
        groups=np.array([0, 1, 0, 1, 2, 2]),
        group_names=("ann", "bob", "cyd"),
        test_groups=np.array([1, 0, 1]),
    )
    federation = data.split("natural")
    assert tuple(federation.ids) == ("ann", "bob", "cyd")
    assert federation.client("bob").x[:, 0].tolist() == [1, 3]
    assert federation.client_test("bob").x[:, 0].tolist() == [7, 9]
    assert federation.client_test("cyd") is None
    sharded = data.split(Natural(shards=2))
    assert tuple(sharded.ids) == ("ann/0", "ann/1", "bob/0", "bob/1", "cyd/0", "cyd/1")
    assert sharded.client_test("bob/1").x[:, 0].tolist() == [7, 9]


def test_regression_targets_are_split_by_decile():
    info = DataInfo("line", (1,), 1, "regression")
    y = torch.linspace(0, 1, 100)
    federation = Dataset(info, y[:, None], y).split("sorted", 10)
    ranges = [(federation.client(id).y.min(), federation.client(id).y.max()) for id in federation.ids]
    assert all(high < low for (_, high), (low, _) in pairwise(ranges))


def test_labels_stay_with_their_samples_when_public_ones_are_taken_out():
    federation = toy(90).split("sorted", 3, public_fraction=1 / 3)
    shares = [torch.bincount(federation.client(id).y, minlength=3).max() / federation.size(id) for id in federation.ids]
    assert min(shares) > 0.7
    assert len(federation.public) == 30


def test_bad_splits_are_refused():
    for options in ({"test_fraction": 1.0}, {"public_fraction": -0.1}):
        with pytest.raises(InputError, match="at least 0 and below 1"):
            toy().split(IID(), 3, **options)
    with pytest.raises(InputError, match="did you mean 'dirichlet'"):
        toy().split("dirichlett", 3)
    with pytest.raises(InputError, match="60 samples but 3 groups"):
        toy(groups=np.zeros(3, int))


def test_unknown_clients_get_a_hint():
    with pytest.raises(InputError, match="'0' to '3'"):
        toy().split(IID(), 4).client("4")
    federation = Federation.from_arrays({"north": (np.zeros((2, 1)), [0, 1]), "south": (np.zeros((2, 1)), [0, 1])})
    with pytest.raises(InputError, match="did you mean 'north'"):
        federation.size("nort")


def test_numbered_ids_behave_like_a_tuple():
    ids, plain = NumberedIds(12), tuple(str(i) for i in range(12))
    assert tuple(ids) == plain
    assert ids[-1] == "11"
    assert ids[2:5] == plain[2:5]
    assert ids.index("7") == 7
    for bad in ("12", "-1", "07", "x", 3, "²"):
        assert bad not in ids


def test_a_million_clients_cost_nothing():
    info = DataInfo("many", (3,), 2, "classification")

    def make(i: int) -> ClientData:
        return ClientData(torch.full((4, 3), float(i)), torch.zeros(4, dtype=torch.int64))

    tracemalloc.start()
    federation = Federation.from_function(1_000_000, make, 4, info=info, test_fraction=0.25)
    assert len(federation) == 1_000_000
    assert federation.client("999999").x[0, 0] == 999_999
    assert federation.size("123456") == 3
    assert len(federation.client_test("5")) == 1
    assert federation.sizes(["1", "2"]).tolist() == [3, 3]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000
    assert len(cloudpickle.dumps(federation)) < 20_000


def test_from_function_checks_what_it_is_given():
    with pytest.raises(InputError, match="info=DataInfo"):
        Federation.from_function(3, lambda i: ClientData(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64)), 1)
    wrong = Federation.from_function(3, lambda i: ClientData(torch.zeros(1 + i, 1), torch.zeros(1 + i)), 1)
    with pytest.raises(InputError, match="client 2 has 3 samples"):
        wrong.client("2")
    with pytest.raises(InputError, match="at least one client"):
        Federation.from_function(0, lambda i: None, 1)
    assert Federation.from_function(5, wrong.source.make, lambda i: 1 + i).sizes().tolist() == [1, 2, 3, 4, 5]


def test_from_arrays_infers_kind_and_classes():
    x = np.ones((4, 2))
    labels = Federation.from_arrays(
        {"a": (x, np.array([0, 1, 2, 1])), "b": (torch.ones(2, 2).double(), torch.tensor([4, 0]))}
    )
    assert labels.info == DataInfo("arrays", (2,), 5, "classification")
    assert labels.client("a").x.dtype == torch.float64
    assert labels.client("a").y.dtype == torch.int64
    targets = Federation.from_arrays({"a": (x, np.ones((4, 3)))}, test=(x, np.ones((4, 3))))
    assert targets.info == DataInfo("arrays", (2,), 3, "regression")
    assert targets.test is not None
    tokens = Federation.from_arrays({"a": (np.array([[1, 9]]), np.array([0]))})
    assert tokens.info.kind == "text"
    assert tokens.info.vocabulary == 10


def test_from_arrays_holds_out_per_client_and_keeps_a_training_sample():
    clients = {"one": (np.zeros((1, 1)), [0]), "ten": (np.arange(10.0)[:, None], np.arange(10) % 2)}
    federation = Federation.from_arrays(clients, test_fraction=0.3, seed=1)
    assert federation.size("one") == 1
    assert federation.client_test("one") is None
    train, test = federation.client("ten"), federation.client_test("ten")
    assert (len(train), len(test)) == (7, 3)
    assert sorted(train.x[:, 0].tolist() + test.x[:, 0].tolist()) == list(range(10))


@pytest.mark.parametrize(
    ("clients", "match"),
    [
        ({}, "no clients"),
        ({"a": (np.zeros((0, 1)), np.zeros(0, int))}, "'a' has no samples"),
        (
            {"a": (np.zeros((1, 1)), [0]), "b": (np.zeros((1, 2)), [0])},
            r"client 'b' has inputs of shape \(2,\) and float64, but .* shape \(1,\)",
        ),
        ({"a": (np.zeros((1, 1)), [-1])}, r"client 'a' has the label -1 at y\[0\], outside 0"),
        ({"a": (np.array([["x"]]), [0])}, "must be numbers"),
    ],
)
def test_from_arrays_refuses_nonsense(clients, match):
    with pytest.raises(InputError, match=match):
        Federation.from_arrays(clients)


class Squares(TorchDataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return np.full((1, 2), float(i)), i % 3


def test_from_datasets_stacks_on_demand():
    tensors = TensorDataset(torch.zeros(2, 1, 2).double(), torch.tensor([5, 0]))
    federation = Federation.from_datasets([Squares(4), tensors])
    assert federation.info.outputs == 6
    assert federation.client("0").x.shape == (4, 1, 2)
    assert federation.client("0").y.tolist() == [0, 1, 2, 0]
    assert federation.client("0") is federation.client("0")
    assert federation.sizes().tolist() == [4, 2]
    copy = cloudpickle.loads(cloudpickle.dumps(federation))
    assert not copy.source.kept
    assert torch.equal(copy.client("0").x, federation.client("0").x)


def test_from_datasets_refuses_what_it_cannot_stack():
    class Stream(IterableDataset):
        def __iter__(self):
            yield torch.zeros(1), 0

    class Ragged(Squares):
        def __getitem__(self, i):
            return np.zeros(i + 1), 0

    with pytest.raises(InputError, match="no length"):
        Federation.from_datasets([Stream()])
    with pytest.raises(InputError, match="empty"):
        Federation.from_datasets([Squares(0)])
    with pytest.raises(InputError, match="cannot be stacked"):
        Federation.from_datasets([Ragged(3)])


def test_from_folder_reads_all_three_formats(tmp_path):
    x, y = np.arange(6.0).reshape(3, 2), np.array([0, 1, 3])
    np.savez(tmp_path / "a.npz", x=x, y=y)
    save_file({"x": torch.from_numpy(x), "y": torch.from_numpy(y)}, tmp_path / "b.safetensors")
    lines = [f"{r[0]},{label},{r[1]}" for r, label in zip(x, y, strict=True)]
    (tmp_path / "c.csv").write_text("u,kind,v\n" + "\n".join(lines) + "\n")
    federation = Federation.from_folder(tmp_path, target="kind", dtype="float32")
    assert tuple(federation.ids) == ("a", "b", "c")
    assert (federation.info.outputs, federation.info.kind) == (4, "classification")
    for id in federation.ids:
        assert federation.client(id).x.tolist() == x.tolist()
        assert federation.client(id).y.tolist() == y.tolist()
    assert federation.sizes().tolist() == [3, 3, 3]


def test_from_folder_numbers_text_labels_over_all_files(tmp_path):
    (tmp_path / "a.csv").write_text("u,v,animal\n1,2,dog\n3,4,cat\n")
    (tmp_path / "b.csv").write_text("u,v,animal\n1,2,eel\n")
    federation = Federation.from_folder(tmp_path)
    assert federation.info.classes == ("cat", "dog", "eel")
    assert federation.client("a").y.tolist() == [1, 0]
    assert federation.client("b").y.tolist() == [2]


def test_from_folder_regression(tmp_path):
    (tmp_path / "a.csv").write_text("u,v\n1,2.5\n3,4\n")
    assert Federation.from_folder(tmp_path).info == DataInfo(tmp_path.name, (1,), 1, "regression", columns=("u",))


def test_bad_folders_are_refused(tmp_path):
    with pytest.raises(InputError, match="not a folder"):
        Federation.from_folder(tmp_path / "none")
    with pytest.raises(InputError, match="one file per client"):
        Federation.from_folder(tmp_path)
    cases = {
        "a.npz": (b"PK\x03\x04 broken", "not a usable .npz"),
        "a.safetensors": (b"broken", "not a usable .safetensors"),
        "a.csv": (b"u,v\n1,2\n1\n", "line 3"),
        "b.csv": (b"u,v\nx,2\n", "line 2, column 'u' of .* holds 'x'; inputs must be numbers"),
        "c.csv": (b"u,v\n", "no samples"),
        "d.csv": (b"", "header"),
    }
    for name, (content, match) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=match):
            Federation.from_folder(tmp_path)
        (tmp_path / name).unlink()
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 1)))
    with pytest.raises(InputError, match="lacks the array"):
        Federation.from_folder(tmp_path)
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 1)), y=np.array([object(), 1], dtype=object))
    with pytest.raises(InputError, match=r"not a usable \.npz"):
        Federation.from_folder(tmp_path)
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 1)), y=np.zeros(2, int))
    save_file({"x": torch.zeros(1, 1), "y": torch.zeros(1)}, tmp_path / "a.safetensors")
    with pytest.raises(InputError, match="two files for client 'a'"):
        Federation.from_folder(tmp_path)
    (tmp_path / "a.npz").unlink()
    save_file({"x": torch.zeros(1, 1)}, tmp_path / "a.safetensors")
    with pytest.raises(InputError, match="must hold 'x' and 'y'"):
        Federation.from_folder(tmp_path)
    (tmp_path / "a.safetensors").unlink()
    (tmp_path / "a.csv").write_text("u,v\n1,2\n")
    with pytest.raises(InputError, match="no column 'w'; its columns are u, v"):
        Federation.from_folder(tmp_path, target="w")


def test_importing_the_data_room_stays_light():
    heavy = "[m for m in ('sklearn', 'matplotlib', 'scipy', 'ray', 'flwr') if m in sys.modules]"
    script = f"import sys, parley.data; print({heavy})"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5])
def test_each_class_gives_its_share_to_the_held_out_samples(fraction):
    rng = np.random.default_rng(1)
    labels = [(rng.random(n) < share).astype(int) for n, share in ((420, 0.05), (61, 0.2), (9, 0.5), (1, 0.5))]
    clients = {str(i): (rng.normal(size=(len(y), 2)), y) for i, y in enumerate(labels)}
    federation = Federation.from_arrays(clients, test_fraction=fraction, seed=3)
    pooled = Dataset(
        federation.info,
        torch.cat([torch.from_numpy(x) for x, _ in clients.values()]),
        torch.from_numpy(np.concatenate(labels)),
    ).split("iid", clients=4, test_fraction=fraction)
    for each in (federation, pooled):
        for name in each.ids:
            train, held = each.client(name).y, each.client_test(name)
            test = train[:0] if held is None else held.y
            n = len(train) + len(test)
            assert len(test) == max(0, min(round(fraction * n), n - 1))
            for label in (0, 1):
                own = int((train == label).sum() + (test == label).sum())
                assert abs(int((test == label).sum()) - own * len(test) / n) < 1


def test_which_samples_of_a_class_are_held_out_is_random():
    data = {"a": (np.arange(100.0)[:, None], np.arange(100) % 2)}
    held = [Federation.from_arrays(data, test_fraction=0.2, seed=seed).client_test("a").x for seed in range(300)]
    times = np.bincount(torch.cat(held).numpy().astype(int).ravel(), minlength=100)
    assert times.sum() == 300 * 20
    assert times.min() > 30  # binomial: 60, deviation 7
    assert times.max() < 95
