"""The weights a warm start gives: read from their source, put into the task, kept with the run."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor

from parley.algorithms import Algorithm, algorithms
from parley.core.errors import InputError, WireError
from parley.core.files import file_errors, read_regular, write_atomically
from parley.core.key import Key
from parley.core.message import Payload
from parley.core.text import printable
from parley.core.tree import Tree, is_finite
from parley.core.wire import decode, encode
from parley.data import Federation
from parley.engine.run import Run
from parley.store.checkpoints import Checkpoints, read_newest
from parley.store.records import Metric
from parley.store.runs import RunStore
from parley.study.opaque import is_opaque, opaque
from parley.study.sections import choose
from parley.study.warm_start import server_weights
from parley.training.task import Task

FILE = "initial.safetensors"
"""Among a run's artefacts."""
_COSTS = ("up/bytes", "up/raw/bytes", "down/bytes", "seconds")


@dataclass(frozen=True)
class Initial:
    """Weights to begin from, and what it cost to get them."""

    weights: Tree
    source: str
    """Where they are from, for sentences."""
    costs: dict[str, Metric] = field(default_factory=dict)
    """Bytes and seconds of another method's rounds, for the record of round 0."""

    @property
    def digest(self) -> str:
        """The same for the same weights."""
        return str(opaque({name: self.weights[name] for name in sorted(self.weights)})["digest"])

    def keep(self, folder: Path) -> None:
        """Write it among the artefacts of a run, which then does without the source."""
        costs = {name: [metric.value, metric.clients] for name, metric in self.costs.items()}
        payload = Payload(self.weights, {"source": self.source, "costs": json.dumps(costs)})
        write_atomically(folder / FILE, encode(payload), private=True)

    @classmethod
    def kept(cls, folder: Path, run: str, digest: str | None) -> Initial | None:
        """What a run was started from; None if it never came to keep it."""
        path = folder / FILE
        if not path.exists():
            return None
        with file_errors(f"the initial weights {path} of run '{run}' cannot be read"):
            data = read_regular(path)
        try:
            payload = decode(data, Payload)
            costs = json.loads(str(payload.scalars["costs"]))
            initial = cls(
                payload.tensors, str(payload.scalars["source"]), {n: Metric(v, c) for n, (v, c) in costs.items()}
            )
        except (WireError, KeyError, TypeError, ValueError):
            initial = None
        if initial is None or (digest is not None and initial.digest != digest):
            raise InputError(f"the initial weights {path} of run '{run}' are damaged; it cannot go on.")
        return initial


def from_file(path: Path) -> Initial:
    """The weights in a safetensors file."""
    if path.is_dir():
        raise InputError(f"init_from names the folder {path}; name the .safetensors file in it.")
    if not path.is_file():
        raise InputError(f"init_from names the file {path}, which is not there.")
    with file_errors(f"the file {path}, which init_from names, cannot be read"):
        data = path.read_bytes()
    try:
        return Initial(safetensors.load(data), f"the file {path.name}")
    except (SafetensorError, ValueError, KeyError) as error:
        raise InputError(
            f"the file {path}, which init_from names, is not a file of weights (safetensors): {printable(error)}."
        ) from None


def from_run(store: RunStore, run: str, best: bool, task: Task) -> Initial:
    """The weights of a stored run's model; of its study only the method is rebuilt, data and model need not be here."""
    info = store.info(run)
    checkpoint = store.checkpoint(info.id)
    if checkpoint is None:
        raise InputError(f"run '{info.id}' has no checkpoint yet, so nothing can start from it.")
    described = info.config.get("algorithm")
    if not described or is_opaque(described):
        raise InputError(
            f"run '{info.id}' was trained by a method that only Python can make; in Python, give "
            "init_from=load_run(store, run, study)."
        )
    method = choose(algorithms, described, "algorithm")
    states = read_newest(store, info.id, lambda _, manifest: Checkpoints(store.folder(info.id)).load(manifest))
    if best and "best" not in states:
        raise InputError(f"run '{info.id}' evaluated nothing, so it has no best model; leave out init_from.best.")
    source = f"run '{info.id}'"
    # What the state does not have is taken from the task, and would be of this run, not of that one.
    blank = with_weights(task, {name: torch.full_like(value, torch.nan) for name, value in task.initial().items()})
    learned = method.learned(blank)
    message = learned.message(states["best" if best else "last"])
    weights = None if learned.personal else learned.weights(message)
    if weights is None:
        raise InputError(
            f"{source} ({method.title}) has no network of the server's own to start from; export a model and name its "
            "file."
        )
    if any(value.is_floating_point() and bool(value.isnan().all()) for value in weights.values() if value.numel()):
        raise InputError(
            f"{source} ({method.title}) does not have all weights of its model; export it and name its file."
        )
    return Initial(dict(weights), source)


def from_rounds(run: Run, rounds: int) -> Initial:
    """What another method has come to, and what it cost."""
    costs: dict[str, Metric] = {}
    for name in _COSTS:
        metrics = [record.metrics[name] for record in run.records if name in record.metrics]
        clients: dict[str, float] = {}
        for metric in metrics:
            for client, value in metric.clients.items():
                clients[client] = clients.get(client, 0) + value
        if metrics:
            costs[name] = Metric(sum(metric.value for metric in metrics), clients)
    source = f"{rounds} round{'s' if rounds > 1 else ''} of {run.algorithm.title}"
    return Initial(server_weights(run), source, costs)


def started(task: Task, initial: Initial, algorithm: Algorithm, federation: Federation, key: Key) -> Task:
    """The task whose first weights are these; refused if they do not fit its model, or if the method ignores them."""
    expected = dict(task.network.state_dict())
    source = f"init_from: {initial.source}"
    for name in initial.weights:
        if name not in expected:
            raise InputError(f"{source} has weights of another model: '{name}', which this one does not have.")
    for name in task.form:
        if name not in initial.weights:
            raise InputError(f"{source} has weights of another model: it lacks '{name}'.")
    for name, value in initial.weights.items():
        if value.shape != expected[name].shape:
            raise InputError(
                f"{source} has weights of another model: '{name}' is {list(value.shape)} there and "
                f"{list(expected[name].shape)} here."
            )
        if value.is_floating_point() != expected[name].is_floating_point():
            raise InputError(f"{source} has weights of another model: '{name}' is {value.dtype} there.")
    if not is_finite({n: value for n, value in initial.weights.items() if value.is_floating_point()}):
        raise InputError(f"{source} has weights that are not finite; start from others.")
    warm = with_weights(task, initial.weights)
    _check_used(task, warm, source, algorithm, federation, key)
    return warm


@torch.no_grad()
def _check_used(cold: Task, warm: Task, source: str, algorithm: Algorithm, federation: Federation, key: Key) -> None:
    """Refuse a method that begins with the same function whatever the weights are."""
    if algorithm.learned(cold).personal:  # its clients' models begin with the task's
        return
    x = federation.client(federation.ids[0]).x[:2]
    first = [_first_outputs(algorithm, task, key, x) for task in (cold, warm)]
    networks = [task.predictor(task.initial(), task.initial_buffers())(x) for task in (cold, warm)]
    if torch.equal(*first) and not torch.equal(*networks):
        raise InputError(f"{source} gives weights of a network, but {algorithm.title} does not start from any.")


def _first_outputs(algorithm: Algorithm, task: Task, key: Key, x: Tensor) -> Tensor:
    learned = algorithm.learned(task)
    return learned.outputs(learned.message(algorithm.init(task, key)), None, x)


def with_weights(task: Task, weights: Tree) -> Task:
    """The task whose module has these weights, as far as they go."""
    module = deepcopy(task.network)
    module.load_state_dict(weights, strict=False)
    return replace(task, module=module)
