"""Samples that are not what the federation says are refused before anything is trained on them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import parley as pl
from parley.core.errors import InputError, ParleyError
from parley.data import ClientData, DataInfo, Dataset, Federation
from parley.data.sources import InMemory
from parley.data.tokens import IGNORE
from parley.engine.settings import Faults
from parley.models.dense import Linear

CLASSES = DataInfo("toy", (2,), 3, "classification")


def client(width: int = 2, dtype: torch.dtype = torch.float32, labels: tuple[int, ...] = (0, 1, 2)) -> ClientData:
    return ClientData(torch.ones(len(labels), width, dtype=dtype), torch.tensor(labels))


ODD = {
    "wide": (client(3), r"client 'odd' .*inputs of shape \(3,\) and float32, but .* shape \(2,\) and float32"),
    "flat": (ClientData(torch.ones(3), torch.zeros(3).long()), r"inputs of shape \(\) and float32"),
    "double": (client(dtype=torch.float64), r"shape \(2,\) and float64, but .* and float32"),
    "tokens": (client(dtype=torch.int64), "and int64, but .* and float32"),
    "regression": (ClientData(torch.ones(3, 2), torch.ones(3)), r"targets of shape \(\) and float32, but .* int64"),
    "sequence": (ClientData(torch.ones(3, 2), torch.ones(3, 2).long()), r"targets of shape \(2,\) and int64"),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("informed", [False, True])
def test_another_form_is_refused_wherever_clients_come_from(name, informed):
    odd, match = ODD[name]
    info = CLASSES if informed else None
    if informed and name == "regression":  # floats may be class numbers, if they are whole
        odd, match = ClientData(odd.x, odd.y / 2), "client 'odd': .* some are not whole"
    with pytest.raises(InputError, match=match):
        Federation.from_arrays({"ok": client(), "odd": odd}, info=info)
    sets = {"ok": TensorDataset(client().x, client().y), "odd": TensorDataset(odd.x, odd.y)}
    with pytest.raises(InputError, match=match):
        Federation.from_datasets(sets, info=info)


@pytest.mark.parametrize("name", ODD)
def test_clients_made_on_demand_are_checked_when_they_are_loaded(name):
    odd, match = ODD[name]
    federation = Federation.from_function(5, lambda i: odd if i == 3 else client(), 3, info=CLASSES, test_fraction=0.4)
    assert len(federation.client("2")) == 2
    with pytest.raises(InputError, match=match.replace("'odd'", "'3'")):
        federation.client("3")
    with pytest.raises(InputError, match=match.replace("'odd'", "'3'")):
        federation.client_test("3")
    direct = Federation(CLASSES, ("ok", "odd"), InMemory((client(), odd)))
    with pytest.raises(InputError, match=match):
        direct.client("odd")


def test_training_never_sees_samples_of_another_width():
    made = Federation.from_function(3, lambda i: client(1 if i == 1 else 2), 3, info=CLASSES)
    with pytest.raises(ParleyError, match=r"client .1. of .toy. has inputs of shape \(1,\)"):
        pl.train(pl.FedAvg(), made, model=Linear(), rounds=1, runtime="stacked", faults=Faults(quorum=1.0))


@pytest.mark.parametrize(
    ("x", "y", "match"),
    [
        ([[1.0, np.nan]], [0], r"the input nan at x\[0, 1\]"),
        ([[1.0, 0.0], [-np.inf, 0.0]], [0, 1], r"the input -inf at x\[1, 0\]"),
        ([[1.0, 0.0]], [3], r"the label 3 at y\[0\], outside 0 to 2"),
        ([[1.0, 0.0]], [-1], r"the label -1 at y\[0\], outside 0 to 2"),
        ([[1.0, 0.0]], [IGNORE], r"the label -100 at y\[0\]"),
    ],
)
def test_bad_values_are_named_with_client_and_place(x, y, match):
    odd = ClientData(torch.tensor(x), torch.tensor(y))
    with pytest.raises(InputError, match=f"client 'odd' has {match}"):
        Federation.from_arrays({"ok": client(), "odd": odd}, info=CLASSES)
    with pytest.raises(InputError, match=f"client '1' of 'toy' has {match}"):
        Federation.from_function(
            2, lambda i: odd if i else client(), lambda i: len(odd) if i else 3, info=CLASSES
        ).client("1")
    with pytest.raises(InputError, match=f"the test set.* has {match}"):
        Federation.from_arrays({"ok": client()}, test=odd, info=CLASSES)
    with pytest.raises(InputError, match=f"'toy' has {match}"):
        Dataset(CLASSES, odd.x, odd.y)


def test_targets_that_are_not_finite_are_named():
    with pytest.raises(InputError, match=r"client 'a' has the target nan at y\[1, 0\]"):
        Federation.from_arrays({"a": (np.ones((2, 1)), np.array([[1.0], [np.nan]]))})


def test_sequences_may_leave_positions_out_and_tokens_stay_in_the_vocabulary():
    info = DataInfo("texts", (2,), 4, "text", vocabulary=4)
    x, y = torch.tensor([[1, 3]]), torch.tensor([[3, IGNORE]])
    assert len(Federation.from_arrays({"a": (x, y)}, info=info).client("a")) == 1
    for bad_x, bad_y, match in ((x + 1, y, "the token 4"), (x - 2, y, "the token -1"), (x, y - 1, "the label -101")):
        with pytest.raises(InputError, match=match):
            Federation.from_arrays({"a": (bad_x, bad_y)}, info=info)
    two = Federation.from_arrays({"a": (np.array([[1]]), [0]), "b": (np.array([[9]]), [0])})
    assert two.info.vocabulary == 10  # of all clients, not of the first


def test_test_and_public_sets_have_the_clients_form():
    with pytest.raises(InputError, match="the test set has inputs of shape"):
        Federation.from_arrays({"a": client()}, test=client(3))
    with pytest.raises(InputError, match="public inputs have shape"):
        Federation.from_arrays({"a": client()}, public=torch.ones(2, 3))
    with pytest.raises(InputError, match=r"the public set has the input nan at x\[0, 0\]"):
        Federation.from_arrays({"a": client()}, public=torch.tensor([[np.nan, 1.0]]))


def test_info_must_be_about_these_data():
    with pytest.raises(InputError, match=r"says that its samples have shape \(5,\), but they have \(2,\)"):
        Federation.from_arrays({"a": client()}, info=DataInfo("five", (5,), 3, "classification"))
    with pytest.raises(InputError, match="2 outputs, but targets of shape"):
        Federation.from_arrays({"a": (np.ones((1, 1)), np.ones((1, 3)))}, info=DataInfo("n", (1,), 2, "regression"))
    with pytest.raises(InputError, match="inputs of uint8"):
        Dataset(CLASSES, torch.ones(1, 2, dtype=torch.uint8), torch.zeros(1).long())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_floats_keep_their_precision_and_the_model_follows(dtype):
    x, y = np.array([[1 / 3, 1.0], [1.0, 1 / 7]], dtype), np.array([1 / 3, 1.0], dtype)
    federation = Federation.from_arrays({"a": (x, y)})
    assert federation.client("a").x.numpy().tobytes() == x.tobytes()
    assert federation.client("a").y.dtype == federation.client("a").x.dtype
    for runtime in ("inline", "stacked"):
        run = pl.train(pl.FedAvg(lr=0.1), federation, model=Linear(), rounds=1, runtime=runtime)
        assert {p.dtype for p in run.module().parameters()} == {getattr(torch, dtype)}
    assert Federation.from_arrays({"a": (x, y)}, dtype="float32").client("a").x.dtype == torch.float32


def test_a_module_of_ones_own_must_have_the_precision_of_the_data():
    federation = Federation.from_arrays({"a": (np.ones((3, 2)), np.ones((3, 1)))})
    with pytest.raises(InputError, match=r"float64.*dtype=\.\.\. where the federation is made"):
        pl.train(pl.FedAvg(), federation, model=torch.nn.Linear(2, 1), rounds=1)
    pl.train(pl.FedAvg(), federation, model=torch.nn.Linear(2, 1).double(), rounds=1)


def test_other_numbers_are_converted_exactly_or_refused():
    half = Federation.from_arrays({"a": (np.ones((1, 2), np.float16), [0]), "b": (torch.ones(1, 2).bfloat16(), [1])})
    assert half.client("b").x.dtype == torch.float32
    swapped = Federation.from_arrays({"a": (np.ones((1, 2), ">f4"), np.array([1], ">i8"))})
    assert swapped.client("a").y.tolist() == [1]
    for x, y, match in (
        (np.ones((1, 2), np.longdouble), [0], "must be numbers"),
        (np.ones((1, 2), complex), [0], "must be numbers"),
        ([[1.0], [1.0, 2.0]], [0, 1], "form an array"),
        (torch.ones(1, 2).to_sparse(), [0], "plain numbers"),
        (np.ones((1, 2)), np.array([2**63], np.uint64), "too large for a class"),
        (np.ones((1, 2)), np.array([10**9]), "the label 1000000000, which would make as many classes"),
        (np.ones((1, 2)), 7, "one row per sample"),
    ):
        with pytest.raises(InputError, match=match):
            Federation.from_arrays({"a": (x, y)})
    with pytest.raises(InputError, match="client 'a' must be a pair"):
        Federation.from_arrays({"a": np.ones(3)})
    with pytest.raises(InputError, match="some are not whole"):
        Federation.from_arrays({"a": (np.ones((1, 2)), [0.5])}, info=CLASSES)
