"""The figure of a partition: drawn for few and many clients, labels and sizes."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

from parley.data import ClientData, DataInfo, Dataset, Dirichlet, Federation, digits
from parley.report import partition_figure


def labels(*clients: list[int]) -> Federation:
    return Federation.from_arrays({str(i): (np.zeros((len(y), 1)), y) for i, y in enumerate(clients)})


def make(i: int) -> ClientData:
    return ClientData(torch.zeros(3, 1), torch.full((3,), i % 4))


FEDERATIONS = {
    "few": lambda: digits().split(Dirichlet(0.2), 5),
    "many": lambda: digits().split(Dirichlet(0.2), 300),
    "sizes": lambda: digits().split("quantity", 60),
    "one": lambda: digits().split("iid", 1),
    "each": lambda: digits().split("iid", 1438),
    "regression": lambda: Dataset(
        DataInfo("line", (1,), 1, "regression"), torch.zeros(90, 1), torch.linspace(0, 1, 90)
    ).split("sorted", 9),
    "one class": lambda: labels([0] * 5, [0] * 500),
    "classes": lambda: labels(list(range(90)), [5, 6]),
    "million": lambda: Federation.from_function(1_000_000, make, 3, info=DataInfo("many", (1,), 4, "classification")),
    "long names": lambda: Federation.from_arrays({f"a very long hospital name {i}": make(i) for i in range(8)}),
}


@pytest.mark.parametrize("name", FEDERATIONS)
def test_every_kind_of_federation_can_be_drawn(name):
    figure = partition_figure(FEDERATIONS[name]())
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=40)
    assert stream.getvalue().startswith(b"\x89PNG")
    assert name != "million" or "1,000,000 clients, 3,000,000 samples" in figure.get_suptitle()


def test_names_of_clients_are_drawn_as_they_are():
    federation = Federation.from_arrays({"$\\frac$": make(0), "\x1b[2J": make(1)})
    stream = io.BytesIO()
    figure = partition_figure(federation)
    figure.savefig(stream, format="png", dpi=40)
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["\\$\\frac\\$", "\\x1b[2J"]
