"""Small federations and models for the runtimes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from parley.data import Federation
from parley.engine.run import Run
from parley.store.records import RoundRecord


@pytest.fixture(scope="session")
def table() -> Federation:
    """Six clients of different sizes with 13 features each, cut out of one array: no client's rows are aligned."""
    random = np.random.default_rng(0)
    x = random.normal(size=(200, 13)).astype(np.float32)
    y = (x[:, :3] @ random.normal(size=(3, 4))).argmax(1)
    edges = np.cumsum([3, 17, 9, 31, 12, 25, 6])
    clients = {f"c{a}": (x[a:b], y[a:b]) for a, b in pairwise(edges)}
    return Federation.from_arrays(clients, test=(x[150:], y[150:]))


@pytest.fixture(scope="session")
def images() -> Federation:
    """Four clients with 8x8 digits, with held-out samples of their own and a central test set."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    clients = {name: (x[a:b], y[a:b]) for name, a, b in (("a", 0, 30), ("b", 30, 75), ("c", 75, 100), ("d", 100, 161))}
    return Federation.from_arrays(clients, test=(x[300:400], y[300:400]), test_fraction=0.2)


def dropout_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(4 * 36, 16),
        nn.Dropout(0.5),
        nn.Linear(16, 10),
    )


class Residual(nn.Module):
    """A small residual network with batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4))
        self.block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4))
        self.head = nn.Linear(4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        return self.head(torch.relu(x + self.block(x)).mean((2, 3)))


def conv_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10))


@pytest.fixture
def nets() -> dict[str, Callable[[], nn.Module]]:
    return {"dropout": dropout_net, "residual": Residual, "conv": conv_net}


def numbers(record: RoundRecord) -> dict[str, tuple[float, dict[str, float]]]:
    """A record without the times, ready to be compared."""
    return {name: (m.value, m.clients) for name, m in sorted(record.metrics.items()) if "seconds" not in name}


@pytest.fixture
def same() -> Callable[[Run, Run], None]:
    """Two runs agree bit for bit, apart from the times they took."""

    def check(a: Run, b: Run) -> None:
        assert [numbers(record) for record in a.records] == [numbers(record) for record in b.records]
        assert [record.failures for record in a.records] == [record.failures for record in b.records]
        assert a.state.tensors.keys() == b.state.tensors.keys()
        for name, value in a.state.tensors.items():
            assert torch.equal(value, b.state.tensors[name]), name
        assert (a.best_round, a.best_value) == (b.best_round, b.best_value)

    return check
