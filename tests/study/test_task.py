"""A model that does not fit the data or the machine is refused before anything starts."""

import numpy as np
import pytest
import torch
from torch import nn

import parley as pl
from parley.core.errors import InputError
from parley.models.dense import Mlp
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
