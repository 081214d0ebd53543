"""Fingerprints change with the data, with nothing else, and fast."""

from __future__ import annotations

import time

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.data import IID, ClientData, DataInfo, Federation, mnist

X, Y = np.arange(12, dtype=np.float32).reshape(6, 2), np.array([0, 1, 2, 0, 1, 2])


def make(x=X, y=Y, ids=("a", "b"), **options) -> Federation:
    return Federation.from_arrays({ids[0]: (x[:4], y[:4]), ids[1]: (x[4:], y[4:])}, **options)


def test_the_same_data_have_the_same_fingerprint_in_every_process_and_storage(tmp_path):
    whole = make()
    assert make().fingerprint() == whole.fingerprint() == cloudpickle.loads(cloudpickle.dumps(whole)).fingerprint()
    np.savez(tmp_path / "a.npz", x=X[:4], y=Y[:4])
    np.savez(tmp_path / "b.npz", x=X[4:], y=Y[4:])
    stored = Federation.from_folder(tmp_path)
    assert [stored.client_fingerprint(id) for id in stored.ids] == [whole.client_fingerprint(id) for id in whole.ids]


@settings(max_examples=40, deadline=None)
@given(row=st.integers(0, 5), column=st.integers(0, 1), bit=st.integers(0, 22))
def test_one_bit_of_one_sample_tells(row, column, bit):
    x = X.copy()
    x.view(np.uint32)[row, column] ^= 1 << bit
    other = make(x)
    assert other.fingerprint() != make().fingerprint()
    changed = "a" if row < 4 else "b"
    for id in "ab":
        assert (other.client_fingerprint(id) != make().client_fingerprint(id)) == (id == changed)


def test_everything_else_tells_too():
    y = Y.copy()
    y[5] = 0
    info = DataInfo("arrays", (2,), 4, "classification")
    others = [
        make(),
        make(y=y),
        make(ids=("a", "c")),
        make(x=X.astype(np.float64)),
        make(info=info),
        make(test=(X, Y)),
        make(test=(X[1:], Y[1:])),
        make(public=X),
        make(test_fraction=0.5),
        make(test_fraction=0.5, seed=1),
        make().standardised(),
        Federation.from_arrays({"a": (X[:3], Y[:3]), "b": (X[3:], Y[3:])}),
    ]
    assert len({federation.fingerprint() for federation in others}) == len(others)


def test_clients_made_on_demand_stand_for_their_recipe():
    asked = []

    def function(i: int) -> ClientData:
        asked.append(i)
        return ClientData(torch.full((2, 2), float(i)), torch.zeros(2).long())

    info = DataInfo("made", (2,), 2, "classification")

    def population(**options) -> Federation:
        return Federation.from_function(**({"count": 100_000, "make": function, "size": 2, "info": info} | options))

    start = time.process_time()
    others = [
        population(),
        population(recipe="v2"),
        population(count=99_999),
        population(size=lambda i: 2 + i // 99_999),
        population(test_fraction=0.5),
        population(test_fraction=0.5, seed=1),
    ]
    assert len({federation.fingerprint() for federation in others}) == len(others)
    assert population(recipe="v2").fingerprint() == others[1].fingerprint()
    assert not asked
    assert time.process_time() - start < 10
    assert population().client_fingerprint("7") != population().client_fingerprint("8")
    assert set(asked) == {0, 7, 8}  # the first tells the form


@pytest.mark.parametrize("real", ["mnist"], indirect=True)
def test_mnist_takes_less_than_a_second(real, monkeypatch):
    federation = mnist(verify=False).split(IID(), 300)
    start = time.process_time()
    first = federation.fingerprint()
    assert time.process_time() - start < 1.0
    start = time.process_time()
    assert federation.fingerprint() == first
    assert time.process_time() - start < 0.01
