"""A run: what training gives back, and what can be read from the store later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from parley.algorithms.exchange import Party
from parley.algorithms.protocol import Algorithm, Learned
from parley.core.errors import InputError, ParleyError, nearest
from parley.core.message import Memory, Message, State
from parley.core.show import as_html
from parley.core.text import portable, shown
from parley.data import Federation
from parley.data.checks import as_samples
from parley.data.convert import as_inputs, precision_of
from parley.data.encoding import Encoding
from parley.data.sources import Elsewhere
from parley.engine.roll_call import coverages, is_result, left_out, named, over_clients, silent, unevaluated
from parley.engine.stopping import Headline
from parley.models.prepared import Prepared, Recalibrated, Rescaled
from parley.runtimes.protocol import version_held
from parley.store.memories import Memories
from parley.store.records import RoundRecord
from parley.store.tables import METRICS, Absence, absences
from parley.training.last_layer import representation
from parley.training.metrics import ALWAYS, Scorer, smaller_is_better
from parley.training.pooled import Counts, Method
from parley.training.task import Predictor, Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from parley.models.export import Format


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
    counts: Counts | None = field(default=None, repr=False, compare=False)
    """Of the last evaluation with evaluate.pooled: how often which class was taken for which, and scores in bins."""
    memories: Memories = field(default_factory=Memories, repr=False, compare=False)
    """What clients keep to themselves; `memory` reads it."""
    config: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The study that a stored run is of, resolved."""

    def __getstate__(self) -> dict[str, Any]:
        """Copies of a run, pickled ones too, go without the samples of its federation.

        What is public travels, and what the method has the server keep (DataShare's global set, a kernel's points).
        """
        public = None if self.task.public is None else self.task.public.clone()  # a view would take all it is of along
        kept = self.__dict__ | {"task": replace(self.task, public=public)}
        return kept | {"federation": _without_samples(self.federation, public)}

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

    @property
    def learned(self) -> Learned:
        """What messages of the method say: `run.learned.weights(run.model())` are the model's weights by name."""
        return self.algorithm.learned(self.task)

    def model(self, *, best: bool = False) -> Message:
        """What a client would receive to predict with the last model, or the best one."""
        return self.learned.message(self._state(best))

    def predictor(
        self, *, best: bool = False, client: str | None = None, recalibrate: Method | None = None
    ) -> Predictor:
        """Scaled inputs -> outputs of the last model, of the best one, or of a client's own; of scaled targets, too."""
        memory, model, learned = self._memory_for(best, client), self.model(best=best), self.learned
        step = self._recalibrated(nn.Identity(), recalibrate, best, client)
        return lambda x: step(learned.outputs(model, memory, x))

    def _recalibrated(self, network: nn.Module, method: Method | None, best: bool, client: str | None) -> nn.Module:
        """The network with its logits as held-out samples of all clients want them."""
        if method is None:
            return network
        if method not in get_args(Method):
            raise InputError(f"recalibrate is '{method}': {nearest(method, get_args(Method))}")
        if best or client is not None:
            raise InputError("recalibration is fitted to the last model of the server; leave out best, or the client.")
        if self.counts is None:
            raise InputError(
                "recalibration needs counts of held-out samples' scores: train with pooled = true in [evaluate]."
            )
        return Recalibrated(network, method, *self.counts.recalibrated(method), self.dtype).eval()

    @torch.no_grad()
    def predict(
        self,
        x: Tensor | ArrayLike,
        *,
        best: bool = False,
        client: str | None = None,
        scaled: bool = False,
        recalibrate: Method | None = None,
    ) -> Tensor:
        """Outputs for new raw inputs [n, ...]: logits of classes, or values. `client`: with its own model (`personal`).

        They are filled and scaled like the training samples; with `scaled`, they have been, like those in `federation`.
        A data frame's columns are found by name, and its texts encoded. `recalibrate`: logits of two classes fitted to
        the held-out samples of all clients together (see `evaluate.pooled`), by one number or, as Platt, by two.
        """
        predictor, info = self.predictor(best=best, client=client, recalibrate=recalibrate), self.task.info
        raw = info if scaled else info.raw
        if hasattr(x, "columns"):
            if not raw.columns or scaled:
                raise InputError("x is a data frame; give its columns as an array, frame[[...]].to_numpy().")
            from parley.data.local.tables import Cells, raw_rows, read_frame, to_predict

            layout, precision = to_predict(raw.columns, len(raw.columns)), precision_of(self.dtype)
            x = raw_rows(read_frame(x, "x", layout, precision, Cells.of(raw)), info)
        inputs = as_samples(as_inputs(x), raw, self.dtype, "x")
        if info.scaling is not None and not scaled:
            test = self.federation.test
            if test is not None and inputs.untyped_storage().data_ptr() == test.x.untyped_storage().data_ptr():
                raise InputError("the federation's own test inputs are scaled already; say scaled=True.")
            inputs = info.scaling.apply(inputs)
        return info.in_units(predictor(inputs))

    def representation(
        self, x: Tensor | ArrayLike, *, best: bool = False, client: str | None = None, scaled: bool = False
    ) -> Tensor:
        """What enters the model's last layer for inputs [n, ...], [n, features]; model and inputs as of `predict`."""
        return representation(
            self.task, lambda x: self.predict(x, best=best, client=client, scaled=scaled), as_inputs(x)
        )

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the model's weights, and so of its inputs."""
        if self.task.module is None:
            return self.federation.dtype or torch.float32
        first = next(iter(self.task.module.parameters()), None)
        return torch.float32 if first is None else first.dtype

    def module(self, *, best: bool = False, client: str | None = None, recalibrate: Method | None = None) -> nn.Module:
        """The trained network, or a client's own, as an ordinary module in evaluation mode that takes raw inputs.

        Where samples were filled or scaled for training, it does that first; its `network` is what follows. Of scaled
        targets, outputs are in the target's own unit.
        """
        network, info = self.network(best=best, client=client), self.task.info
        network = self._recalibrated(network, recalibrate, best, client)
        network = Rescaled(network, info.target_center, info.target_scale) if info.target_scale else network
        return network.eval() if info.scaling is None else Prepared(network, info.scaling, info.raw.shape).eval()

    def network(self, *, best: bool = False, client: str | None = None) -> nn.Module:
        """The trained network itself: it takes inputs as the run trained on them, filled and scaled."""
        memory = self._memory_for(best, client)
        module = self.learned.module(self.model(best=best), memory)
        if module is None:
            raise InputError(f"{self.algorithm.title} has no models of clients or of the server's to take out.")
        return module.eval()

    def personal(self, client: str) -> nn.Module:
        """The model as this client has it after the last round: `module(client=client)`.

        Its own where the method leaves it one (local-only), or the server's with the parts and statistics the client
        keeps to itself (parts of FedALS that are never averaged, BatchNorm with `buffers = "local"`): the model that
        evaluation on clients judges.
        """
        return self.module(client=client)

    def export(
        self,
        folder: Path | str,
        *,
        best: bool = False,
        client: str | None = None,
        formats: Sequence[Format] | None = None,
        recalibrate: Method | None = None,
    ) -> list[Path]:
        """Write the model (the last, the best, or a client's own) to a new folder, with a card; return the files.

        The card says what goes in, what comes out and where the model is from. See `export_module` for `formats`,
        by default all.
        """
        from parley.models.export import FORMATS, export_module

        info = self.task.info
        rounds = self.records[-1].number if self.records else 0
        card = {
            "run": self.id,
            "name": self.name,
            "status": self.status,
            "rounds": self.best_round if best else rounds,
            "model": "best" if best else "last" if client is None else f"that of client {client}",
            "algorithm": self.algorithm.title,
            "data": info.name,
            "results": self.summary(),
            "left_out": left_out(self.records),
            "study": portable(self.config),
        }
        module = self.module(best=best, client=client, recalibrate=recalibrate)
        return export_module(module, self._example(), folder, FORMATS if formats is None else formats, card, info)

    def _example(self) -> Tensor:
        """Some raw inputs to try an exported model on."""
        info = self.task.info
        if self.federation.here:
            x = (self.federation.test or self.federation.client(self.federation.ids[0])).x[:8]
        else:
            x = torch.zeros((8, *info.shape), dtype=torch.int64 if info.tokens else self.dtype)
        if info.scaling is None:
            return x
        if isinstance(info.scaling, Encoding):
            return info.scaling.example().to(x.dtype)
        mean, deviation, fill = info.scaling.tensors(len(info.shape))
        raw = (x * deviation + mean).to(x.dtype)
        if fill is not None:
            raw[0] = torch.nan
        return raw

    def _memory_for(self, best: bool, client: str | None) -> Memory | None:
        """What the model that is asked for needs of a client; refuses a model that nobody trained.

        Whatever leaves a run (predictions, modules, exports) comes by here.
        """
        task = self.task
        local = task.module is not None and task.buffers == "local" and bool(task.buffer_form)
        split = self.learned.personal or local
        if client is None:
            if split:
                first = next(self.clients_with_memory(), self.federation.ids[0])
                how = ' with buffers = "local"' if local else ""
                raise InputError(
                    f"{self.algorithm.title}{how} keeps a model per client; the server has no complete model; "
                    f'name a client: client="{shown(first)}" in Python, --client "{shown(first)}" on the command line.'
                )
            return None
        if best:
            raise InputError("clients keep their models of the last round only; leave out best, or the client.")
        memory = self.memory(client)
        if split and not memory.tensors and not memory.scalars and not self._trained_without(memory):
            raise InputError(f"client '{shown(client)}' has no model of its own: it has not completed a round yet.")
        return memory

    def _trained_without(self, memory: Memory) -> bool:
        """Whether a client that keeps nothing has a model all the same (Ditto's global one), no part of it initial."""
        if self.task.module is None:
            return False
        try:
            weights = self.learned.weights(self.model(), memory) or {}
        except ParleyError:
            return False
        whole = {*self.task.form, *self.task.buffer_form} <= weights.keys()
        return whole and not any(torch.equal(weights[name], value) for name, value in self.task.initial().items())

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


def _without_samples(federation: Federation, public: Tensor | None) -> Federation:
    """Its clients by name and size; without a form, the first of them is not there to tell it."""
    counts = tuple(federation.sizes().tolist()) if federation.here else ()
    reason = "this run is a copy, which goes without the samples of its federation."
    source = Elsewhere(counts, federation.form, reason=reason) if federation.here else federation.source
    return Federation(federation.info, federation.ids, source, public=public)


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
