"""Warm starts: what a run begins from in place of random weights, as a study says it.

    init_from = "fedavg-digits-k2fw"                      a stored run
    init_from = "model.safetensors"                       a file of weights
    [init_from] with rounds = 1 and [init_from.algorithm] rounds of another method, on the same clients

Only the model is taken over: whatever else a method keeps (SCAFFOLD's variates, an optimizer's moments) starts afresh.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from parley.algorithms import Algorithm, algorithms
from parley.core.checks import check_fields, shown
from parley.core.errors import InputError
from parley.core.tree import Tree
from parley.engine.run import Run
from parley.store.runs import RunStore
from parley.study.opaque import opaque
from parley.study.sections import plain


@dataclass(frozen=True)
class WarmStart:
    """Initial weights; short form: `init_from = "..."` above the first section, with a run or a file."""

    run: str | None = None
    """A stored run of the same model, by its id, the beginning of one, or `last`."""
    best: bool = False
    """With run: its best model in place of its last."""
    store: str | None = None
    """With run: the store that has it, relative to the study file; by default the one this run is kept in."""
    file: str | None = None
    """In place of run: a .safetensors file of weights by the model's own names, as `parley export` writes it; relative
    to the study file."""
    algorithm: Algorithm | None = None
    """[init_from.algorithm]: in place of run and file, another method that first trains the same model on the same
    clients; its traffic is counted in round 0."""
    rounds: Annotated[int, Field(ge=1)] = 1
    """With algorithm: the rounds it trains."""
    digest: str | None = None
    """A digest of the weights, written by stored runs."""

    def __post_init__(self) -> None:
        check_fields(self, "init_from")
        named = [name for name in ("run", "file", "algorithm") if getattr(self, name) is not None]
        if len(named) != 1:
            raise InputError(f"init_from needs one of run, file and algorithm, not {' and '.join(named) or 'none'}.")
        for name, of, default in (("best", "run", False), ("store", "run", None), ("rounds", "algorithm", 1)):
            if getattr(self, of) is None and getattr(self, name) != default:
                raise InputError(f"init_from.{name} belongs to init_from.{of}; leave it out.")
        if self.rounds < 1:
            raise InputError(f"init_from.rounds must be at least 1, not {self.rounds}.")

    def beside(self, base: Path) -> WarmStart:
        """With relative paths looked for under `base`."""
        file, store = (None if path is None else str((base / path).resolve()) for path in (self.file, self.store))
        return replace(self, file=file, store=store)

    def described(self) -> dict[str, Any]:
        """As plain JSON, without what is not set."""
        values = plain(self)
        unset: tuple[str, ...] = ("best", "store") if self.run is None else ()
        unset += ("rounds",) if self.algorithm is None else ()
        settings = {name: value for name, value in values.items() if value is not None and name not in unset}
        if self.algorithm is not None and not algorithms.knows(type(self.algorithm)):
            settings["algorithm"] = opaque(self.algorithm)
        return settings


@dataclass(frozen=True)
class GivenWeights:
    """Weights that were given in Python: by name, or those of a run."""

    weights: Tree
    run: str | None = None

    def described(self) -> dict[str, Any]:
        return {"run": self.run, "best": False} if self.run else opaque(dict(self.weights))


Source = WarmStart | GivenWeights


def server_weights(run: Run) -> dict[str, Tensor]:
    """All weights of the run's last model, by the network's own names."""
    try:
        return dict(run.network().state_dict())
    except InputError:
        raise InputError(
            f"init_from: {run.algorithm.title} has no network of the server's own to start from; give weights, such as "
            "run.network(client=...).state_dict()."
        ) from None


def as_source(value: Any) -> Source | None:
    """What may be given as `init_from`: a WarmStart, a run's id, a file, a Run, or weights by name."""
    if value is None or isinstance(value, Source):
        return value
    if isinstance(value, str | Path):
        text = str(value)
        return WarmStart(file=text) if isinstance(value, Path) or is_file(text) else WarmStart(run=text)
    if isinstance(value, Run):
        return GivenWeights(server_weights(value), value.id)
    if isinstance(value, Mapping) and value and all(isinstance(tensor, Tensor) for tensor in value.values()):
        return GivenWeights({str(name): tensor.detach() for name, tensor in value.items()})
    raise InputError(
        "init_from must be a run's id, a .safetensors file, a WarmStart, a Run or weights by name, "
        f"not {shown(value) if isinstance(value, int | float) else 'a ' + type(value).__name__}."
    )


def is_file(text: str) -> bool:
    """Whether `init_from = text` names a file, which no run's id looks like."""
    return text.endswith(".safetensors") or "/" in text or "\\" in text


@contextmanager
def source_store(source: WarmStart, store: RunStore | None) -> Iterator[RunStore]:
    """The store that has the run it names."""
    if source.store is not None:
        with RunStore(source.store, create=False) as opened:
            yield opened
    elif store is not None:
        yield store
    else:
        raise InputError(f"init_from names the run '{source.run}', but no store that has it; give init_from.store.")


def pinned(source: Source | None, store: RunStore | None, resuming: bool) -> Source | None:
    """With the whole id of the run it names, so that it means the same from now on."""
    if not isinstance(source, WarmStart) or source.run is None:
        return source
    if resuming and source.run == "last":
        raise InputError(
            "init_from = 'last' may be another run by now; to go on, name the run that this one was started from."
        )
    try:
        with source_store(source, store) as resolved:
            return replace(source, run=resolved.info(source.run).id)
    except InputError:
        if resuming:  # a run that goes on has its first weights and does without the source
            return source
        raise
