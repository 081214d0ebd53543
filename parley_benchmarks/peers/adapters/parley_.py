"""Parley itself, by the same protocol."""

from __future__ import annotations

from typing import Any

import parley as pl
from parley import ClientData, DataInfo, Federation, Sampling
from parley.data.sources import InMemory

from .protocol import Asked, answer, private_output, weights_of


def train(given: Asked, rounds: int) -> list[float]:
    clients = []
    for number in range(len(given.sizes)):
        x, y = given.client(number)
        # Half the sum of squares over k rows, where others have their mean.
        scale = (2 / x.shape[1]) ** 0.5
        clients.append(ClientData(scale * x, scale * y[..., 0]))
    info = DataInfo("quadratics", tuple(clients[0].x.shape[1:]), clients[0].y.shape[1], "regression")
    federation = Federation(info, tuple(map(str, range(len(clients)))), InMemory(tuple(clients)))
    local: dict[str, Any] = {"lr": given.lr, "steps": None, "epochs": given.epochs, "batch": given.batch}
    method = {
        "fedavg": lambda: pl.FedAvg(**local),
        "fedprox": lambda: pl.FedProx(**local, alpha=given.alpha),
        "scaffold": lambda: pl.Scaffold(**local),
        "fednova": lambda: pl.FedNova(**local),
        "feddyn": lambda: pl.FedDyn(**local, alpha=given.alpha),
    }[given.method]()
    cohort = Sampling(weights="size" if given.weights == "samples" else "uniform")
    run = pl.train(
        method, federation, model=given.model(), rounds=rounds, loss="half-squares", cohort=cohort, runtime="inline"
    )
    return weights_of(run.module())


if __name__ == "__main__":
    answer(private_output(), ("parley-fl",), train)
