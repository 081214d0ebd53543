"""A run: what training gives back, and what can be read from the store later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from parley.core.show import as_html
from parley.core.tree import Tree
from parley.data import Federation
from parley.engine.roll_call import coverages, is_result, named, over_clients, silent, unevaluated
from parley.engine.stopping import Headline
from parley.learn.last_layer import representation
from parley.learn.metrics import ALWAYS, Scorer, smaller_is_better
from parley.learn.task import Predictor, Task
from parley.runtimes.protocol import version_held
from parley.store.memories import Memories
from parley.store.records import RoundRecord
from parley.store.tables import METRICS, Absence, absences

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


_HEADLINES = ("central/accuracy", "central/loss", "clients/accuracy", "clients/loss")


@dataclass(repr=False)
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
    ending: str = ""
    """Why it ended before its last round: too few answered, its privacy budget is spent, or something was raised."""
    headline: Headline | None = None
    """What the best round is judged by."""
    trial: str = ""
    """The search whose trial it is, where `parley tune` trained it."""
    scorers: Mapping[str, Scorer] = field(default_factory=dict, repr=False, compare=False)
    """What is measured besides loss and accuracy."""
    memories: Memories = field(default_factory=Memories, repr=False, compare=False)
    """What clients keep to themselves; `memory` reads it."""

    def __repr__(self) -> str:
        rounds = self.records[-1].number if self.records else 0
        judged = (self.headline.name,) if self.headline is not None else ()
        headline = next((name for name in (*judged, *_HEADLINES) if name in self.metrics()), None)
        shown = "" if headline is None else f", {headline} {self.last(headline):.4g}"
        shown += over_clients(coverages(self.records).get(headline or "", ""))
        return f"<Run {self.id or self.name or type(self.algorithm).__name__}: {self.status}, {rounds} rounds{shown}>"

    def _repr_html_(self) -> str:
        return as_html(repr(self).strip("<>"), self.summary().items())

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
        """The best value of any evaluated round: the largest, or the smallest where that is better, as of a loss.

        Rounds in which clients could not be evaluated do not count; NaN where there is no other.
        """
        name = full_name(metric, self.metrics())
        counted = [r for r in self.records if name in r.metrics and not unevaluated(r, name)]
        values = np.array([record.metrics[name].value for record in counted])
        if np.isnan(values).all():
            return float("nan")
        return float(np.nanmin(values) if self._smaller(metric) else np.nanmax(values))

    def _smaller(self, metric: str) -> bool:
        if self.headline is not None and full_name(metric, self.metrics()) == self.headline.name:
            return self.headline.smaller
        return bool(smaller_is_better(metric, self.scorers))

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
        """The run in a few numbers, what it is judged by first, and who never contributed to it and why.

        `clients/auc/clients` is `3 of 5` where two clients have no such value. Incomplete evaluations are those of the
        headline in which clients could not be evaluated; they count neither for best, target nor patience.
        """
        known = self.metrics()
        result: dict[str, Any] = {"rounds": self.records[-1].number if self.records else 0}
        judged = self.headline.name if self.headline is not None else ""
        result |= ({"headline": judged} if judged else {}) | ({"trial of": self.trial} if self.trial else {})
        covered = coverages(self.records)
        for name in sorted(filter(is_result, known), key=lambda n: (n != judged, n.rpartition("/")[2] not in ALWAYS)):
            result[name] = self.last(name)
            if any(name in record.metrics and not unevaluated(record, name) for record in self.records):
                result[f"best {name}"] = self.best(name)
            if name in covered:
                result[f"{name}/clients"] = covered[name]
        if missed := sum(bool(unevaluated(record, judged)) for record in self.records):
            result["incomplete evaluations"] = f"{missed} of {len(self.series(judged)[0])}"
        for name in ("up/bytes", "down/bytes", "seconds"):
            if name in known:
                result[name] = self.total(name)
        if "privacy/epsilon" in known:
            result["privacy/epsilon"] = self.last("privacy/epsilon")
        if self.ending:
            result["ended"] = self.ending
        result["failures"] = sum(len(record.failures) for record in self.records)
        if missing := silent(self.records):
            result["never contributed"] = named(missing)
        return result

    def frame(self) -> DataFrame:
        """All numbers as a pandas DataFrame: round, metric, client (empty for the round's own value), value.

        `run.frame().query("client == ''").pivot(index="round", columns="metric", values="value")` has a row per round.
        """
        return METRICS.frame(self.records)

    def failures(self) -> list[Absence]:
        """Who did not contribute, in which round and why."""
        return list(absences(self.records))

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
        return predict(inputs.to(self.dtype) if inputs.is_floating_point() else inputs)

    def representation(self, x: Tensor | np.ndarray, *, best: bool = False, client: str | None = None) -> Tensor:
        """What enters the model's last layer for inputs [n, ...], [n, features]; the model is that of `predict`."""
        return representation(self.task, lambda x: self.predict(x, best=best, client=client), torch.as_tensor(x))

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the model's weights, and so of its inputs."""
        if self.task.module is None:
            try:
                return self.federation.form.dtype
            except InputError:  # the data are not here
                return torch.float32
        first = next(iter(self.task.module.parameters()), None)
        return torch.float32 if first is None else first.dtype

    def module(self, *, best: bool = False) -> nn.Module:
        """The trained network as an ordinary module."""
        if self.task.module is None and (own := self.algorithm.module(self.task, self.model(best=best))) is not None:
            return own.eval()
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
        name = f"party:{recipient.name}" if isinstance(recipient, Party) else recipient
        if not isinstance(recipient, Party):
            self.federation.size(recipient)  # refuses a client that does not exist
        memory = self.memories[name]
        if version_held(memory) is not None:
            raise InputError(f"the memory of '{name}' is on the disk of its node and stays there.")
        return memory

    def clients_with_memory(self) -> Iterator[str]:
        """The clients that keep something, in the federation's order, one after the other.

        `for client in run.clients_with_memory(): run.memory(client)` holds one memory at a time.
        """
        return (client for client in self.federation.ids if client in self.memories)

    def plot(self, metric: str = "accuracy", path: str | Path | None = None) -> Figure:
        """A figure of the metric over rounds, which a notebook shows; saved to `path` if given."""
        return plot([self], metric, path)

    def _filled(self, weights: Tree) -> nn.Module:
        module = deepcopy(self.task.network)
        module.load_state_dict(weights, strict=False)
        return module.eval()

    @property
    def _judged(self) -> bool:
        return self.headline is not None and any(self.headline.name in record.metrics for record in self.records)

    def _state(self, best: bool) -> State:
        if not best:
            return self.state
        if self.best_state is None:
            why = "no evaluation of this run reached all its clients" if self._judged else "this run evaluated nothing"
            raise InputError(f"{why}, so it has no best model; take the last one.")
        return self.best_state


def full_name(metric: str, known: Sequence[str]) -> str:
    """`accuracy` -> `central/accuracy`, else `clients/accuracy`; a full name stays."""
    for candidate in (metric, f"central/{metric}", f"clients/{metric}", f"train/{metric}"):
        if candidate in known:
            return candidate
    raise InputError(f"no metric '{metric}' was recorded: {nearest(metric, known)}")


def plot(runs: Sequence[Run], metric: str = "accuracy", path: str | Path | None = None) -> Figure:
    """One curve per run."""
    from parley.core.figure import Picture

    figure = Picture(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for run in runs:
        rounds, values = run.series(metric)
        axes.plot(rounds, values, label=run.name or type(run.algorithm).__name__)
    axes.set(xlabel="round", ylabel=metric)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    if path is not None:
        try:
            figure.savefig(path, dpi=150)
        except (OSError, ValueError) as error:  # Matplotlib refuses formats it does not know with a ValueError
            raise InputError(f"{path} cannot be written: {error}.") from None
    return figure
