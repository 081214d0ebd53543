"""A run: what training gives back, and what can be read from the store later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from parley.algorithms.base.protocol import Algorithm, Party
from parley.core.errors import InputError, nearest
from parley.core.message import Memory, Message, State
from parley.core.tree import Tree
from parley.data import Federation
from parley.learn.task import Predictor, Task
from parley.store.memories import Memories
from parley.store.records import RoundRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass
class Run:
    """Records of all rounds, the last state and the best one."""

    algorithm: Algorithm
    task: Task
    federation: Federation
    state: State
    records: list[RoundRecord] = field(default_factory=list)
    best_state: State | None = None
    best_round: int | None = None
    best_value: float | None = None
    id: str | None = None
    """Its name in the run store; None if it was not stored."""
    name: str = ""
    status: str = "running"
    note: str = ""
    """Which runtime executed it, and why."""
    memories: Memories = field(default_factory=Memories, repr=False, compare=False)
    """What clients keep to themselves; `memory` reads it."""

    def series(self, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """Rounds and values of a metric; `accuracy` means `central/accuracy`, else `clients/accuracy`."""
        name = full_name(metric, self.metrics())
        points = [(r.number, r.metrics[name].value) for r in self.records if name in r.metrics]
        return np.array([p[0] for p in points]), np.array([p[1] for p in points])

    def metrics(self) -> list[str]:
        return sorted({name for record in self.records for name in record.metrics})

    def last(self, metric: str = "accuracy") -> float:
        """The value after the last evaluated round."""
        return float(self.series(metric)[1][-1])

    def best(self, metric: str = "accuracy") -> float:
        """The best value of any evaluated round (the smallest of a loss)."""
        values = self.series(metric)[1]
        return float(values.min() if metric.endswith("loss") else values.max())

    def clients(self, metric: str = "clients/accuracy") -> dict[str, float]:
        """The last values of a metric by client."""
        for record in reversed(self.records):
            if metric in record.metrics:
                return record.metrics[metric].clients
        raise InputError(f"no metric '{metric}' was recorded: {nearest(metric, self.metrics())}")

    def total(self, metric: str) -> float:
        """The sum over all rounds: `run.total("up/bytes")`."""
        return float(self.series(metric)[1].sum())

    def summary(self) -> dict[str, Any]:
        """The run in a few numbers."""
        known = self.metrics()
        result: dict[str, Any] = {"rounds": self.records[-1].number if self.records else 0}
        for name in ("central/accuracy", "central/loss", "clients/accuracy", "clients/loss"):
            if name in known:
                result[name] = self.last(name)
                result[f"best {name}"] = self.best(name)
        for name in ("up/bytes", "down/bytes", "seconds"):
            if name in known:
                result[name] = self.total(name)
        result["failures"] = sum(len(record.failures) for record in self.records)
        return result

    def model(self, *, best: bool = False) -> Message:
        """What a client would receive to predict with the last model, or the best one."""
        return self.algorithm.model(self.task, self._state(best))

    def predictor(self, *, best: bool = False, memory: Memory | None = None) -> Predictor:
        """Inputs -> outputs of the last model, or of the best one; with a client's memory, of the client's own."""
        return self.algorithm.predictor(self.task, self.model(best=best), memory)

    @torch.no_grad()
    def predict(self, x: Tensor | np.ndarray, *, best: bool = False, client: str | None = None) -> Tensor:
        """Outputs for new inputs [n, ...]: logits of classes, or values. `client`: with its own model (`personal`)."""
        inputs = torch.as_tensor(x)
        if client is not None and best:
            raise InputError("clients keep their models of the last round only; leave out best, or the client.")
        predict = self.predictor(best=best, memory=None if client is None else self.memory(client))
        first = next(iter(self.task.module.parameters()), None) if self.task.module is not None else None
        floating = inputs.is_floating_point() and first is not None
        return predict(inputs.to(first.dtype) if floating and first is not None else inputs)

    def module(self, *, best: bool = False) -> nn.Module:
        """The trained network as an ordinary module."""
        weights = None if self.algorithm.personal else self.algorithm.weights(self.task, self.model(best=best))
        if weights is None:
            raise InputError(f"{self.algorithm.title} has no single model of the server's to take out; name a client.")
        return self._filled(weights)

    def personal(self, client: str) -> nn.Module:
        """The model as this client has it after the last round, in evaluation mode.

        Its own where the method leaves it one (local-only), or the server's with the parts and statistics the client
        keeps to itself (parts of FedALS that are never averaged, BatchNorm with `buffers = "local"`): the model that
        evaluation on clients judges.
        """
        weights = self.algorithm.weights(self.task, self.model(), self.memory(client))
        if weights is None:
            raise InputError(f"{self.algorithm.title} has no models of clients to take out.")
        return self._filled(weights)

    def memory(self, recipient: str | Party) -> Memory:
        """What a client, or a party, keeps to itself after the last round; empty if it has kept nothing yet."""
        if isinstance(recipient, Party):
            return self.memories[f"party:{recipient.name}"]
        self.federation.size(recipient)  # refuses a client that does not exist
        return self.memories[recipient]

    def clients_with_memory(self) -> Iterator[str]:
        """The clients that keep something, in the federation's order, one after the other.

        `for client in run.clients_with_memory(): run.memory(client)` holds one memory at a time.
        """
        return (client for client in self.federation.ids if client in self.memories)

    def plot(self, metric: str = "accuracy", path: str | Path | None = None) -> Figure:
        """A figure of the metric over rounds, saved to `path` if given."""
        return plot([self], metric, path)

    def _filled(self, weights: Tree) -> nn.Module:
        module = deepcopy(self.task.network)
        module.load_state_dict(weights, strict=False)
        return module.eval()

    def _state(self, best: bool) -> State:
        if not best:
            return self.state
        if self.best_state is None:
            raise InputError("this run evaluated nothing, so it has no best model; take the last one.")
        return self.best_state


def full_name(metric: str, known: Sequence[str]) -> str:
    """`accuracy` -> `central/accuracy`, else `clients/accuracy`; a full name stays."""
    for candidate in (metric, f"central/{metric}", f"clients/{metric}", f"train/{metric}"):
        if candidate in known:
            return candidate
    raise InputError(f"no metric '{metric}' was recorded: {nearest(metric, known)}")


def plot(runs: Sequence[Run], metric: str = "accuracy", path: str | Path | None = None) -> Figure:
    """One curve per run."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for run in runs:
        rounds, values = run.series(metric)
        axes.plot(rounds, values, label=run.name or type(run.algorithm).__name__)
    axes.set(xlabel="round", ylabel=metric)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure
