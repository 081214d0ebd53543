"""What may be advised: methods, local work, servers and channels, as the forecast and as the engine take them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from parley.algorithms.averaging.feddyn import FedDyn
from parley.algorithms.averaging.local_sgd import LocalSGD
from parley.algorithms.averaging.local_update import Averaging, FedAdam, FedAvg, FedAvgM, FedProx
from parley.algorithms.averaging.scaffold import Scaffold
from parley.algorithms.averaging.server import Adam, Descent, HeavyBall, Nesterov
from parley.channels.base import Channel
from parley.channels.quantise import qsgd
from parley.core.key import Key
from parley.core.message import Message
from parley.core.wire import wire_size
from parley.theory.forecast import LocalQuadratics, LocalWork, ServerStep
from parley.training.task import Task

STEPS = (1, 2, 3, 5, 8, 12, 20, 30, 50)
"""Local steps that are looked at."""
SHARES = (0.03, 0.1, 0.25, 0.5, 0.8, 1.1, 1.5, 1.85)
"""gamma in units of 1/L; from 2 on a client's own steps diverge."""
CAUTIOUS = (0.1, 0.25, 0.5, 1.0)
"""The same with steps that no client's curvature makes too long."""
_MOMENTA = (0.3, 0.5, 0.65, 0.8, 0.9, 0.95)
EIGHT_BITS = qsgd(8)


@dataclass(frozen=True)
class Candidate:
    """One complete setting."""

    work: LocalWork
    server: ServerStep = field(default_factory=ServerStep)
    channels: tuple[Channel, ...] = ()

    @property
    def method(self) -> str:
        """By the registry's name."""
        if self.work.method == "fedavg":
            return {"heavy-ball": "fedavgm", "adam": "fedadam"}.get(self.server.name, "fedavg")
        return self.work.method

    def __str__(self) -> str:
        work, server = self.work, self.server
        text = f"{self.method}, lr {work.gamma:.3g}, {work.K} step{'s' * (work.K != 1)}"
        text += f", alpha {work.alpha:.3g}" if work.alpha else ""
        if work.method != "feddyn" and (server.name != "sgd" or server.eta != 1):
            text += f", server {server.name} {server.eta:.3g}" + (f" x {server.momentum:g}" if server.momentum else "")
        return text + (", 8 bits" if self.channels else "")

    @property
    def complexity(self) -> tuple[int, int]:
        """To prefer the simpler of two that are as good: by method and server, then by local steps."""
        methods = ("fedavg", "fedprox", "scaffold", "feddyn")
        servers = ("sgd", "heavy-ball", "nesterov", "adam")
        return methods.index(self.work.method) + servers.index(self.server.name), self.work.K

    def algorithm(self, like: LocalSGD | None = None, batch: int | None = 0) -> Averaging:
        """The method with these settings; batches and their order are those of `like`, else `batch`."""
        common: dict[str, Any] = {"lr": _rounded(self.work.gamma), "steps": self.work.K, "batch": batch}
        if like is not None:
            common |= {"batch": like.batch or 0, "order": like.order}
        if self.work.method == "feddyn":
            return FedDyn(**common, alpha=_rounded(self.work.alpha))
        eta, beta = _rounded(self.server.eta), _rounded(self.server.momentum)
        if self.work.method == "scaffold":
            return Scaffold(**common, server=Descent(eta))
        if self.work.method == "fedprox":
            return FedProx(**common, alpha=_rounded(self.work.alpha), server=Descent(eta))
        if self.server.name == "heavy-ball":
            return FedAvgM(**common, server=HeavyBall(eta, beta))
        if self.server.name == "adam":
            return FedAdam(**common, server=Adam(eta, beta, self.server.decay, self.server.epsilon))
        if self.server.name == "nesterov":
            return FedAvg(**common, server=Nesterov(eta, beta))
        return FedAvg(**common, server=Descent(eta))


Grid = Iterable[tuple[LocalWork, list[ServerStep]]]
"""Local work and the servers to try with it."""


def families(clients: LocalQuadratics, largest: float) -> Grid:
    """Local work and the servers that suit it; `largest` is the largest curvature of any client."""
    for K in STEPS:
        for share in SHARES if K > 1 else (1.0,):
            work = LocalWork("fedavg", share / largest, K)
            yield work, _servers(clients, work)
    for K in STEPS[2:]:
        for share in (0.25, 0.6, 1.0, 1.5):
            yield LocalWork("scaffold", share / largest, K), [ServerStep(), ServerStep(eta=1.5)]
        for pull in (0.01, 0.03, 0.1, 0.3, 1.0):
            alpha = pull * largest
            for share in (0.3, 0.9):
                yield LocalWork("feddyn", share / (largest + alpha), K, alpha), [ServerStep()]
        for pull in (0.05, 0.3):
            alpha = pull * largest
            yield LocalWork("fedprox", 0.8 / (largest + alpha), K, alpha), [ServerStep(), ServerStep(eta=1.5)]


def averaging(largest: float, shares: Sequence[float]) -> Grid:
    """FedAvg's step size and number of local steps, with a server that averages."""
    return [(LocalWork("fedavg", share / largest, K), [ServerStep()]) for K in STEPS for share in shares]


def _servers(clients: LocalQuadratics, work: LocalWork) -> list[ServerStep]:
    """Plain steps, heavy ball and Nesterov around the steps that the mean of the clients' maps can bear, and Adam."""
    P, _ = clients.movers(work)
    mean = np.einsum("i,ijk->jk", clients.p, P @ clients.A)
    top = float(np.abs(np.linalg.eigvals(mean)).max()) if np.isfinite(mean).all() else np.inf
    if not 0 < top < np.inf:
        return [ServerStep()]
    servers = [ServerStep()] + [ServerStep(eta=factor / top) for factor in (0.5, 1.0, 1.4, 1.8, 1.95)]
    for beta in _MOMENTA:
        servers += [ServerStep("heavy-ball", f * (1 + np.sqrt(beta)) ** 2 / top, beta) for f in (0.25, 0.5, 0.9)]
        servers += [ServerStep("nesterov", f / top, beta) for f in (0.5, 1.0)]
    if work.K in (1, 3, 12):
        servers += [ServerStep("adam", eta, 0.9) for eta in (0.01, 0.03, 0.1, 0.3)]
    return servers


def traffic(algorithm: Averaging, task: Task, channels: Sequence[Channel] = ()) -> int:
    """Bytes that one client receives and sends in a round, exactly as the wire would carry them."""
    message = algorithm.broadcast(task, algorithm.init(task, Key(0)), 1)
    (client,) = algorithm.exchanges()
    form = client.form(task, message)
    assert form is not None
    for channel in channels:
        form = channel.transmitted(form, client.compress)
    specs: dict[str, Any] = dict(form)
    zeros = {name: torch.zeros(shape, dtype=dtype) for name, (dtype, shape) in specs.items()}
    return wire_size(message) + wire_size(Message(zeros))


def _rounded(value: float) -> float:
    """Four digits: more would say more than is known."""
    return float(f"{value:.4g}")
