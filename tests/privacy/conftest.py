"""A method whose replies are known exactly: client i sends a long vector along coordinate i."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import parley as pl
from parley.algorithms.exchange import Reply, exchange
from parley.algorithms.protocol import OneExchange, Replies
from parley.core.form import Form
from parley.core.message import Message, State

QUIET = pl.Evaluation(central=False, clients="none")


@dataclass(frozen=True)
class Canaries(OneExchange):
    """The server's model is the sum of all averages; client i pushes coordinate i by `size`."""

    entries: int = 50
    size: float = 10.0

    def init(self, task: Any, key: Any) -> State:
        return State.of(model={"w": torch.zeros(self.entries)})

    @exchange(
        form=lambda self, task, message: Form.of(update={"w": (torch.float32, (self.entries,))}),
        reads="mean",
        compress=("update",),
    )
    def client(self, task: Any, message: Message, memory: Any, data: Any, context: Any) -> Reply:
        push = torch.zeros(self.entries)
        push[int(data.x[0, 0])] = self.size
        return Reply(Message.of(update={"w": push}), None, {"loss": torch.tensor(1.0)})

    def aggregate(self, task: Any, state: State, replies: Replies, number: int, key: Any) -> State:
        return State.of(model={"w": state["model"]["w"] + replies.mean_change("update")["w"]})


def canary_federation(indices: range | list[int]) -> pl.Federation:
    return pl.Federation.from_arrays({f"c{i:05d}": (np.array([[i]], dtype=np.float32), np.zeros(1)) for i in indices})


def train_canaries(
    clients: int | list[int] = 20,
    entries: int = 50,
    rounds: int = 1,
    cohort: int | None = None,
    secret: bytes = b"s" * 16,
    size: float = 10.0,
    **settings: Any,
) -> pl.Run:
    """A run of canaries with these privacy settings."""
    indices = range(clients) if isinstance(clients, int) else clients
    other = ("faults", "seed", "store", "resume", "listeners", "channels", "checkpoint")
    given = {name: settings.pop(name) for name in other if name in settings}
    return pl.train(
        Canaries(entries, size),
        canary_federation(indices),
        model=pl.models.linear(),
        rounds=rounds,
        cohort=cohort,
        privacy=pl.Privacy(**settings),
        secret=secret,
        runtime="inline",
        evaluation=QUIET,
        **given,
    )


@pytest.fixture(autouse=True)
def accounting() -> None:
    """The package that accounts for privacy."""
    if importlib.util.find_spec("dp_accounting") is None:
        if "privacy" in os.environ.get("PARLEY_REQUIRE", ""):
            pytest.fail("dp-accounting is not installed")
        pytest.skip("dp-accounting is not installed")


@pytest.fixture
def canaries() -> Callable[..., pl.Run]:
    return train_canaries
