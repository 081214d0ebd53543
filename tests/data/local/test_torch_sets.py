"""Torch data sets whose items change are refused, or drawn once from the seed."""

from __future__ import annotations

import random

import cloudpickle
import numpy as np
import pytest
import torch
from torch.utils.data import Dataset as TorchDataset

from parley.core.errors import InputError
from parley.data import DataInfo, Federation


class Noisy(TorchDataset):
    """Items with a random part from one of the global generators."""

    def __init__(self, draw, length: int = 6) -> None:
        self.draw, self.length = draw, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int):
        return torch.full((2,), float(i)) + float(self.draw()), i % 2


DRAWS = {
    "torch": lambda: torch.rand(()),
    "numpy": lambda: np.random.rand(),  # noqa: NPY002
    "python": random.random,
    "flip": lambda: torch.rand(()) < 0.5,
}
INFO = DataInfo("noisy", (2,), 2, "classification")


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("info", [None, INFO])
def test_random_augmentation_is_not_frozen_silently(name, info):
    with pytest.raises(InputError, match=r"client 'b' differ from one reading to the next.*draw_once=True"):
        Federation.from_datasets({"b": Noisy(DRAWS[name])}, info=info)


@pytest.mark.parametrize("name", DRAWS)
def test_drawn_once_items_come_from_the_seed_alone(name):
    def first(seed: int) -> torch.Tensor:
        federation = Federation.from_datasets([Noisy(DRAWS[name]), Noisy(DRAWS[name])], seed=seed, draw_once=True)
        return torch.stack([federation.client("0").x, federation.client("1").x])

    torch.manual_seed(1)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    one = first(0)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]  # noqa: NPY002
    torch.rand(5)
    assert torch.equal(first(0), one)
    assert not torch.equal(first(1), one)
    assert not torch.equal(one[0], one[1])


def test_a_client_read_again_is_the_same():
    federation = Federation.from_datasets([Noisy(DRAWS["torch"])] * 3, draw_once=True)
    before = federation.client("1").x
    federation.source.kept.clear()
    assert torch.equal(federation.client("1").x, before)
    elsewhere = cloudpickle.loads(cloudpickle.dumps(federation))
    assert torch.equal(elsewhere.client("1").x, before)


def test_with_info_only_first_items_are_read_until_a_client_is_used():
    asked = []

    class Counting(Noisy):
        def __getitem__(self, i: int):
            asked.append(i)
            return super().__getitem__(i)

    federation = Federation.from_datasets([Counting(lambda: 0.0)] * 2, info=INFO)
    assert set(asked) == {0}
    assert len(federation.client("1")) == 6


def test_bad_items_are_named():
    with pytest.raises(InputError, match=r"client '0' has the input nan at x\[0, 0\]"):
        Federation.from_datasets([Noisy(lambda: 0.0), Noisy(lambda: float("nan"))][::-1])
    with pytest.raises(InputError, match="no clients"):
        Federation.from_datasets([])
