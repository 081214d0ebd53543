"""Studies: what to train on what and how, from a TOML file, from the command line or from a stored run.

study = load_study("digits.toml", overrides=["algorithm.lr=0.05"])
study.federation(), study.model, study.algorithm, ...
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from parley.algorithms import Algorithm, algorithms
from parley.core.errors import InputError, nearest
from parley.core.fields import settings_of
from parley.data import Federation
from parley.engine.settings import Evaluation, Faults, Sampling
from parley.learn.losses import losses
from parley.models import BufferPolicy, ModelSpec, models
from parley.runtimes import runtimes
from parley.study.data_section import DataSection, data_from_table
from parley.study.sections import as_table, build, checked, choose, plain

Positive = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class General:
    """The settings above the first section."""

    name: str | None = None
    """What runs of this study are called; by default the algorithm and the data set."""
    seed: int = 0
    """All random numbers of a run follow from it."""
    rounds: Positive = 100
    """Rounds to train."""
    loss: str | None = None
    """Loss to minimise: cross-entropy, half-squares or mse; by default cross-entropy for classes, mse for numbers."""
    buffers: BufferPolicy = "average"
    """BatchNorm statistics: averaged like weights, kept local by each client, or refused."""


@dataclass(frozen=True)
class RuntimeSection:
    """Who executes the clients. The numbers do not depend on it (stacked: up to rounding)."""

    name: str = "auto"
    """inline, stacked, pool, or auto, which picks one for the model."""
    workers: Positive | None = None
    """Worker processes; by default one per core."""


@dataclass(frozen=True)
class StoreSection:
    """How a run is kept."""

    checkpoint: Annotated[float, Field(ge=0)] = 5.0
    """Seconds between checkpoints; 0 makes one after every round."""


SECTIONS: dict[str, type] = {
    "cohort": Sampling,
    "faults": Faults,
    "evaluate": Evaluation,
    "runtime": RuntimeSection,
    "store": StoreSection,
}
"""The sections with fixed settings; those of data, model and algorithm depend on their names."""


@dataclass(frozen=True)
class Study:
    """A checked configuration, ready to train."""

    general: General
    data: DataSection
    model: ModelSpec
    algorithm: Algorithm
    sampling: Sampling = field(default_factory=Sampling)
    faults: Faults = field(default_factory=Faults)
    evaluation: Evaluation = field(default_factory=Evaluation)
    run_on: RuntimeSection = field(default_factory=RuntimeSection)
    store: StoreSection = field(default_factory=StoreSection)

    @property
    def name(self) -> str:
        return self.general.name or f"{algorithms.name_of(type(self.algorithm))}-{self.data.title}"

    @property
    def seed(self) -> int:
        return self.general.seed

    @property
    def rounds(self) -> int:
        return self.general.rounds

    @property
    def loss(self) -> str:
        """The loss's registered name; the default depends on the data, which are loaded to tell."""
        if self.general.loss is not None:
            return self.general.loss
        return "mse" if self.federation().info.kind == "regression" else "cross-entropy"

    @property
    def buffers(self) -> BufferPolicy:
        return self.general.buffers

    @property
    def runtime(self) -> str:
        return self.run_on.name

    @property
    def workers(self) -> int | None:
        return self.run_on.workers

    @property
    def checkpoint(self) -> float:
        """Seconds between checkpoints."""
        return self.store.checkpoint

    def federation(self) -> Federation:
        """The clients; loaded at the first call, then kept."""
        return self._federation

    @cached_property
    def _federation(self) -> Federation:
        federation = self.data.load(self.seed)
        size, clients = self.sampling.size, len(federation)
        if size is not None and size > clients:
            raise InputError(f"cohort.size is {size}, but the federation has only {clients} clients; lower it.")
        return federation

    def resolved(self) -> dict[str, Any]:
        """The whole configuration with all defaults as plain JSON; `study_from_dict` takes it back."""
        general = {"name": self.name, "seed": self.seed, "rounds": self.rounds, "loss": self.loss}
        return general | {
            "buffers": self.buffers,
            "data": self.data.plain(self.seed),
            "model": {"name": models.name_of(type(self.model)), **plain(self.model)},
            "algorithm": {"name": algorithms.name_of(type(self.algorithm)), **plain(self.algorithm)},
            "cohort": plain(self.sampling),
            "faults": plain(self.faults),
            "evaluate": plain(self.evaluation),
            "runtime": plain(self.run_on),
            "store": plain(self.store),
        }

    def fingerprint(self) -> str:
        """The same for two studies exactly if they must give the same numbers, round by round."""
        apart = ("name", "rounds", "runtime", "store")
        numbers = {key: value for key, value in self.resolved().items() if key not in apart}
        return blake2b(json.dumps(numbers, sort_keys=True).encode(), digest_size=12).hexdigest()


def load_study(path: Path | str, overrides: Sequence[str] = ()) -> Study:
    """The study in a TOML file; `overrides` are settings such as `algorithm.lr=0.05`, values as in TOML."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"there is no study file {path}.") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"the study file {path} cannot be read: {reason}.") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not valid TOML: {str(error).rstrip('.')}.") from None
    for override in overrides:
        _override(table, override)
    return study_from_dict(table, path.parent)


def study_from_dict(table: Mapping[str, Any], base: Path | str | None = None) -> Study:
    """The study that a table describes; a relative data folder is looked for under `base` (default: here)."""
    own = settings_of(General)
    known = [*[setting.name for setting in own], "data", "model", "algorithm", *SECTIONS]
    for key in table:
        if key not in known:
            raise InputError(f"a study has no section or setting '{key}': {nearest(key, known)}")
    for section, hint in (("data", "a data set's name or a folder"), ("model", "a name"), ("algorithm", "a name")):
        if section not in table:
            raise InputError(f"the study has no section [{section}]; add one with {hint}.")
    general = General(**checked(own, {s.name: table[s.name] for s in own if s.name in table}, "", "a study"))
    if general.loss is not None:
        losses[general.loss]  # refuses unknown ones
    made: dict[str, Any] = {name: build(cls, table.get(name, {}), name, f"[{name}]") for name, cls in SECTIONS.items()}
    if (runtime := made["runtime"].name) not in (known := ["auto", *runtimes]):
        raise InputError(f"unknown runtime '{runtime}': {nearest(runtime, known)}")
    return Study(
        general,
        data_from_table(as_table(table["data"], "data"), Path(base or Path.cwd())),
        choose(models, table["model"], "model"),
        choose(algorithms, table["algorithm"], "algorithm"),
        *made.values(),
    )


def _override(table: dict[str, Any], text: str) -> None:
    """Put `section.setting=value` into the table."""
    path, equals, value = text.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys):
        raise InputError(f"'{text}' is not of the form section.setting=value, such as algorithm.lr=0.05.")
    for depth, key in enumerate(keys[:-1], 1):
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise InputError(f"'{text}' cannot be set: {'.'.join(keys[:depth])} is not a section.")
    try:
        table[keys[-1]] = tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        table[keys[-1]] = value.strip()
