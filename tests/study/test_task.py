"""A model that does not fit the data or the machine is refused before anything starts."""

import re

import numpy as np
import pytest
import torch
from torch import nn

import parley as pl
from parley.core.errors import InputError
from parley.models.dense import Linear, Mlp
from parley.models.text import Lstm
from parley.study.task import make_task


def regression() -> pl.Federation:
    random = np.random.default_rng(0)
    return pl.Federation.from_arrays({"a": (random.normal(size=(9, 3)), random.normal(size=9))}, dtype="float32")


class Flat(nn.Module):
    """One number per sample, without a column."""

    def __init__(self, how: str = "squeeze") -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(3, 1), how

    def forward(self, x: torch.Tensor):
        outputs = self.layer(x)
        return {"squeeze": outputs.squeeze(1), "sum": outputs.sum(), "tuple": (outputs,)}[self.how]


def test_outputs_without_a_column_are_explained():
    with pytest.raises(InputError, match=r"shape \[2\] for 2 samples, but must give \[2, 1\]: end its forward"):
        make_task(regression(), Flat(), 0)
    with pytest.raises(InputError, match=r"outputs of shape \[\] for 2 samples, but must give \[2, 1\]\."):
        make_task(regression(), Flat("sum"), 0)
    with pytest.raises(InputError, match="must give a tensor, not a tuple"):
        make_task(regression(), Flat("tuple"), 0)


HUGE = [Mlp((10**12,)), Mlp((10**9, 3)), Mlp((10**7, 10**7)), Lstm(hidden=10**6), Lstm(vocabulary=10**12)]


@pytest.mark.parametrize("model", HUGE, ids=str)
def test_a_model_larger_than_the_machine_is_refused(model):
    random = np.random.default_rng(0)
    tokens = pl.Federation.from_arrays({"a": (random.integers(5, size=(9, 4)), random.integers(3, size=9))})
    with pytest.raises(InputError, match=r"^\[model\] the model (Mlp|Lstm) (would have|cannot be built)"):
        make_task(tokens if isinstance(model, Lstm) else regression(), model, 0)


def test_no_endless_stack_of_layers():
    with pytest.raises(InputError, match="layers of model 'lstm' must be at most 100"):
        Lstm(layers=10**6)


def test_a_model_with_fewer_outputs_than_classes_is_refused_before_it_starts():
    """Even if the first client has none of the classes that are too many."""
    x = np.ones((4, 3), np.float32)
    federation = pl.Federation.from_arrays({"a": (x, np.zeros(4, int)), "b": (x, np.full(4, 2))})
    make_task(federation, nn.Linear(3, 3), 0)
    with pytest.raises(InputError, match="the model Linear gives 2 outputs for a sample, but the data have 3 classes"):
        make_task(federation, nn.Linear(3, 2), 0)


def integers(**options) -> pl.Federation:
    random = np.random.default_rng(0)
    clients = {name: (random.integers(9, size=(12, 4)), random.integers(3, size=12)) for name in "ab"}
    return pl.Federation.from_arrays(clients, **options)


@pytest.mark.parametrize("model", [Linear(), Mlp((5,)), nn.Linear(4, 3), nn.Linear(4, 3).double()], ids=str)
def test_integers_for_a_model_of_floats_are_explained(model):
    match = r"^the inputs are integers, which are taken for token ids, but the model \w+ takes floats; .*dtype = "
    with pytest.raises(InputError, match=match):
        make_task(integers(), model, 0)


def test_measurements_that_are_integers_train_as_floats():
    federation = integers(dtype="float32")
    assert federation.info.kind == "classification"
    assert federation.info.vocabulary == 0
    assert torch.equal(federation.client("a").x, integers().client("a").x.float())
    run = pl.train(pl.FedAvg(lr=0.01), federation, model=Mlp((5,)), rounds=1, runtime="inline")
    assert run.status == "finished"


def test_models_of_tokens_still_take_integers():
    make_task(integers(), Lstm(vocabulary=9, embedding=2, hidden=3), 0)
    make_task(integers(), nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(8, 3)), 0)
    with pytest.raises(InputError, match="the data have 9 token ids, more than the model Sequential knows"):
        make_task(integers(), nn.Sequential(nn.Embedding(4, 2), nn.Flatten(), nn.Linear(8, 3)), 0)
    with pytest.raises(InputError, match="the model Sequential does not fit samples of shape"):
        make_task(integers(), nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(7, 3)), 0)


@pytest.mark.parametrize("method", [pl.FFGB(), pl.HistogramBoosting()], ids=lambda method: method.title)
@pytest.mark.parametrize("targets", [int, float])
def test_methods_without_a_model_refuse_integers_too(method, targets):
    random = np.random.default_rng(0)
    clients = {name: (random.integers(9, size=(12, 4)), random.integers(3, size=12).astype(targets)) for name in "ab"}
    with pytest.raises(InputError, match="token ids; give measurements as floats"):
        pl.train(method, pl.Federation.from_arrays(clients), rounds=1, runtime="inline")
    pl.train(method, pl.Federation.from_arrays(clients, dtype="float32"), rounds=1, runtime="inline")


def test_a_loss_written_for_targets_first_is_refused():
    def old(targets, outputs):
        return (targets.view_as(outputs) - outputs).square().sum(1)  # as good as a loss, with the two swapped

    with pytest.raises(
        InputError, match=r"the loss old takes \(targets, outputs\), targets first; metrics and losses take"
    ):
        make_task(regression(), Linear(), 0, loss=old)


def houses(mean: float, deviation: float) -> pl.Federation:
    random = np.random.default_rng(0)
    clients = {}
    for name in "abc":
        x = random.normal(size=(200, 3)).astype(np.float32)
        clients[name] = (x, (mean + deviation * (x @ [0.6, 0.0, 0.8])).astype(np.float32))
    return pl.Federation.from_arrays(clients)


@pytest.mark.parametrize(("mean", "deviation"), [(2e5, 8e4), (0.0, 50.0), (100.0, 1.0), (0.0, 1e-3), (1e5 + 3, 1.0)])
def test_targets_far_from_unit_scale_are_hinted_at(mean: float, deviation: float):
    with pytest.warns(pl.ParleyWarning, match=r"train on \(target - (\S+)\) / (\S+) ") as said:
        pl.train(pl.FedAvg(lr=1e-9), houses(mean, deviation), model=Mlp(), rounds=1)
    (message,) = [str(one.message) for one in said]
    assert message.count("\n") == 0
    shift, scale = (float(part) for part in re.search(r"\(target - (\S+)\) / (\S+) ", message).groups())
    assert abs(shift - mean) < 0.2 * deviation
    assert scale == pytest.approx(deviation, rel=0.2)


@pytest.mark.parametrize(
    ("method", "federation", "options"),
    [
        (pl.FedAvg(lr=0.1), houses(0.5, 2.0), {"model": Mlp()}),
        (pl.FedAvg(lr=0.1), houses(0.0, 0.0), {"model": Mlp()}),
        (pl.Ridge(), houses(2e5, 8e4), {"model": Mlp()}),  # exact, whatever the scale
        (pl.HistogramBoosting(), houses(2e5, 8e4), {}),
        (pl.FedAvg(lr=0.1), pl.data.iris().split("iid", clients=2), {"model": Mlp()}),
    ],
    ids=["unit", "zero", "ridge", "trees", "classes"],
)
def test_others_are_not_bothered(method, federation, options, recwarn):
    pl.train(method, federation, rounds=1, **options)
    assert not [one for one in recwarn if issubclass(one.category, pl.ParleyWarning)]
