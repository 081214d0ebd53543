"""One description of a run: what is trained on which data and how, built in Python or read from a file.

    study = Study(FedAvg(lr=0.1), federation, model=mlp(100), rounds=100, cohort=20)
    run = train(study, store="runs.db")

What came from a registry is described completely and can be rebuilt from the stored run; objects that only Python can
make are kept by name and digest (see `opaque`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from parley.algorithms import Algorithm, algorithms
from parley.algorithms.protocol import as_algorithm
from parley.channels import Chain, Channel
from parley.core.checks import check_fields, check_value
from parley.core.errors import InputError, nearest
from parley.core.key import Key
from parley.core.plugins import digest_of, is_file_name
from parley.data import Federation
from parley.data.preprocessing import Preprocessing
from parley.engine.observers import listeners
from parley.engine.run import Run
from parley.engine.settings import Evaluation, Faults, Sampling
from parley.models import BufferPolicy, ModelSpec, build_module, models
from parley.privacy import Privacy
from parley.robust.settings import Robust
from parley.runtimes import runtimes
from parley.study.channel_names import described, stages
from parley.study.data_section import DataSection
from parley.study.difference import essential
from parley.study.opaque import MARK, called, fingerprint_of, opaque
from parley.study.sections import Made, located, plain
from parley.study.warm_start import Source, WarmStart, as_source
from parley.training.batches import ORDER
from parley.training.losses import Loss, losses
from parley.training.task import Precision

InitFrom = WarmStart | Run | str | Path | Mapping[str, Tensor]
"""What a run may begin from: see `warm_start`."""
Model = nn.Module | ModelSpec | Callable[[], nn.Module]
Positive = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class General:
    """The settings above the first section."""

    name: str | None = None
    """Name of the study's runs; by default the algorithm and the data set."""
    seed: int = 0
    """All random numbers of a run follow from it."""
    rounds: Positive = 100
    """Rounds to train."""
    loss: str | None = None
    """Loss to minimise: cross-entropy, half-squares or mse; by default cross-entropy for classes, mse for numbers."""
    buffers: BufferPolicy = "average"
    """BatchNorm statistics: averaged like weights, kept local by each client, or refused."""
    precision: Precision = "full"
    """Arithmetic of a network with convolutions: full, or bf16 (autocast): weights stay float32."""
    plugins: tuple[str, ...] = ()
    """Python files with methods, models, losses or listeners of your own, relative to the study file; their code is
    run."""
    listeners: tuple[str, ...] = ()
    """Listeners that add metrics to every round, by name or as file.py:Class."""
    revision: str = ""
    """Anything else that must be equal to resume a run, such as the revision of your code."""
    data_fingerprint: str | None = None
    """Required fingerprint of the data, written by stored runs; other data are refused."""
    plugin_digests: tuple[str, ...] = ()
    """Digests of the plugins' code, written by stored runs; a run does not resume with changed code."""


@dataclass(frozen=True)
class RuntimeSection:
    """How clients are executed. Results do not depend on it (stacked: up to rounding)."""

    name: str = "auto"
    """inline, stacked, pool, wire, ray, or auto, which picks one for the model."""
    workers: Positive | None = None
    """Worker processes; by default one per core."""
    address: str | None = None
    """The Ray cluster: host:port, or auto for the one this machine belongs to; without it Ray runs on this machine."""
    device: str = "auto"
    """Where clients train and models are evaluated: cpu, cuda, cuda:1, mps, or auto, which takes a GPU of CUDA if there
    is one; it changes rounding only."""


@dataclass(frozen=True)
class StoreSection:
    """Storage of a run."""

    checkpoint: Annotated[float, Field(ge=0)] = 5.0
    """Seconds between checkpoints; 0 makes one after every round."""


@dataclass(frozen=True)
class Logging:
    """Other programs that receive every metric, each an optional package."""

    tensorboard: str | None = None
    """Folder for TensorBoard; every run writes to a subfolder."""
    wandb: str | None = None
    """Project at Weights & Biases."""
    mlflow: str | None = None
    """Experiment in MLflow, at $MLFLOW_TRACKING_URI."""


@dataclass(frozen=True)
class ChannelsSection:
    """What happens to messages on the way."""

    up: tuple[str, ...] = ()
    """Channels on the way to the server, in this order, such as "top-k(0.01)" or "clip(1.0)"."""


SECTIONS: dict[str, type] = {
    "preprocessing": Preprocessing,
    "channels": ChannelsSection,
    "privacy": Privacy,
    "robust": Robust,
    "cohort": Sampling,
    "faults": Faults,
    "evaluate": Evaluation,
    "runtime": RuntimeSection,
    "store": StoreSection,
    "logging": Logging,
    "init_from": WarmStart,
}
"""The sections with fixed settings; those of data, model and algorithm depend on their names. All have defaults, but
only a study that has `[privacy]` is private, only one that has `[robust]` folds robustly, only one that has
`[preprocessing]` does it, and only one that has `init_from` begins from other weights than its seed's."""


@dataclass(frozen=True)
class Study:
    """A checked description of a run, ready to train."""

    algorithm: Algorithm
    data: Federation | DataSection
    model: Model | None = None
    """None for methods that train no network."""
    rounds: int = 100
    cohort: Sampling | int | None = None
    """Clients per round, or how they are sampled; None asks all."""
    seed: int = 0
    loss: str | Loss | None = None
    """By name or as a function of outputs and targets that gives one number per sample."""
    buffers: BufferPolicy = "average"
    precision: Precision = "full"
    """`bf16`: passes through a network with convolutions in bfloat16 where torch deems it safe."""
    faults: Faults | None = None
    evaluation: Evaluation | None = None
    runtime: str = "auto"
    workers: int | None = None
    address: str | None = None
    """Of the Ray cluster whose workers execute clients (runtime "ray")."""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps, or auto."""
    checkpoint: float = 5.0
    """Seconds between checkpoints."""
    channels: Channel | Chain | Sequence[Channel] = ()
    """What happens to replies on the way to the server."""
    privacy: Privacy | None = None
    """Differential privacy of clients; it decides how cohorts are drawn and what replies count."""
    robust: Robust | None = None
    """A rule in place of the mean of the replies, which some attackers cannot move as they like."""
    name: str = ""
    logging: Logging = field(default_factory=Logging)
    plugins: tuple[str, ...] = ()
    observers: tuple[str, ...] = ()
    """Names of listeners."""
    revision: str = ""
    """Anything else that must be equal to resume a run, such as the revision of your code."""
    data_fingerprint: str | None = None
    preprocessing: Preprocessing | None = None
    """What every client does to its samples, on whichever machine they are."""
    init_from: InitFrom | Source | None = None
    """What the weights begin from in place of random ones: a stored run's id, a Run, a .safetensors file, weights by
    name, or a WarmStart, such as one round of another method: WarmStart(algorithm=FedAvg(), rounds=1)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "init_from", as_source(self.init_from))
        for name, default in (("cohort", Sampling), ("faults", Faults), ("evaluation", Evaluation)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, default())
        if isinstance(self.cohort, int):
            object.__setattr__(self, "cohort", Sampling(size=self.cohort))
        for name, hint in (
            ("rounds", int),
            ("seed", int),
            ("workers", int | None),
            ("address", str | None),
            ("checkpoint", float),
            ("device", str),
        ):
            check_value(hint, getattr(self, name), name)
        for name, cls in (("cohort", Sampling), ("faults", Faults), ("evaluation", Evaluation)):
            if not isinstance(getattr(self, name), cls):
                raise InputError(f"{name} must be a {cls.__name__}, not a {type(getattr(self, name)).__name__}.")
        if self.privacy is not None:
            object.__setattr__(self, "cohort", _private_cohort(self.privacy, self.sampling))
            if isinstance(self.start, WarmStart) and self.start.algorithm is not None:
                raise InputError(
                    "[privacy] does not cover rounds of another method; start from a stored run or a file of weights."
                )
        if not isinstance(self.robust, Robust | None):
            raise InputError(f"robust must be a Robust, not a {type(self.robust).__name__}.")
        if not isinstance(self.preprocessing, Preprocessing | None):
            raise InputError(f"preprocessing must be a Preprocessing, not a {type(self.preprocessing).__name__}.")
        if not isinstance(self.data, Federation | DataSection):
            raise InputError(f"a study needs a Federation, not a {type(self.data).__name__}.")
        if self.rounds < 1:
            raise InputError(f"rounds must be at least 1, not {self.rounds}.")
        if self.workers is not None and self.workers < 1:
            raise InputError(f"workers must be at least 1, not {self.workers}.")
        if self.checkpoint < 0:
            raise InputError(f"checkpoint must be at least 0, not {self.checkpoint}.")
        if isinstance(self.loss, str):
            losses[self.loss]  # refuses unknown ones
        for name in self.observers:
            listeners[name]
        if self.runtime not in (known := ["auto", *runtimes]):
            raise InputError(f"unknown runtime '{self.runtime}': {nearest(str(self.runtime), known)}")
        check_fields(self.algorithm, "algorithm")
        check_model(self.algorithm, self.model)
        if self.model is not None:
            check_fields(self.model, "model")

    @property
    def title(self) -> str:
        """Its name, or the algorithm and the data set."""
        where = self.data.info.name if isinstance(self.data, Federation) else self.data.title
        method = self._described_algorithm().get("name", called(type(self.algorithm)))
        return self.name or f"{method.rpartition(':')[2] if is_file_name(method) else method}-{where}"

    @property
    def sampling(self) -> Sampling:
        assert isinstance(self.cohort, Sampling)
        return self.cohort

    @property
    def network(self) -> Model:
        """The model, for what can only be said of networks."""
        if self.model is None:
            raise InputError(f"{as_algorithm(self.algorithm).title} trains no network; this needs a method that does.")
        return self.model

    def federation(self) -> Federation:
        """The clients; loaded at the first call, then kept."""
        return self._federation

    @cached_property
    def _federation(self) -> Federation:
        if isinstance(self.data, Federation):
            federation = self.data
        else:
            try:
                federation = self.data.load(self.seed)
            except OSError as error:
                raise located(InputError(f"the data cannot be read: {error}."), "data") from None
        if self.preprocessing is not None:
            federation = self.preprocessing.apply(federation)
        size, clients = self.sampling.size, len(federation)
        if size is not None and size > clients:
            raise InputError(f"cohort.size is {size}, but the federation has only {clients} clients; lower it.")
        if self.data_fingerprint is not None and (digest := fingerprint_of(federation)) != self.data_fingerprint:
            raise InputError(
                f"[data] these are other data than the study names: their fingerprint is {digest}, "
                f"not {self.data_fingerprint}."
            )
        return federation

    def resolved(self) -> dict[str, Any]:
        """The whole configuration with all defaults as plain JSON; `study_from_dict` takes it back.

        Parts that only Python can make are described by name and digest, and cannot be taken back.
        """
        return (
            {
                "name": self.title,
                "seed": int(self.seed),
                "rounds": int(self.rounds),
                "loss": self._described_loss(),
                "buffers": self.buffers,
                "plugins": list(self.plugins),
                "listeners": list(self.observers),
                "revision": self.revision,
                "data": self._described_data(),
                "model": None if self.model is None else self._described_model(self.model),
                "algorithm": self._described_algorithm(),
                "channels": {"up": [described(channel) for channel in stages(self.channels)]},
                "cohort": plain(self.sampling),
                "faults": plain(self.faults),
                "evaluate": plain(self.evaluation),
                "runtime": {
                    "name": self.runtime,
                    "workers": self.workers,
                    "address": self.address,
                    "device": self.device,
                },
                "store": {"checkpoint": float(self.checkpoint)},
                "logging": plain(self.logging),
                **({} if self.precision == "full" else {"precision": self.precision}),
                **({} if self.robust is None else {"robust": plain(self.robust)}),
            }
            | self._described_preprocessing()
            | self._described_privacy()
            | self._described_start()
        )

    def stored(self) -> dict[str, Any]:
        """What a stored run keeps: the resolved study and the fingerprints of its data (read for it) and its code."""
        code = {"plugin_digests": [digest_of(file) for file in self.plugins]} if self.plugins else {}
        return self.resolved() | code | {"data_fingerprint": fingerprint_of(self.federation())}

    def fingerprint(self) -> str:
        """The same for two studies exactly if they must give the same numbers, round by round, on the same data."""
        code = [digest_of(file) for file in self.plugins]
        numbers = essential(self.resolved()) | {"plugins": code, "order of batches": ORDER}
        return blake2b(json.dumps(numbers, sort_keys=True).encode(), digest_size=12).hexdigest()

    def _described_loss(self) -> Any:
        if isinstance(self.loss, str):
            return self.loss
        if self.loss is not None:
            return losses.name_of(self.loss) if losses.knows(self.loss) else opaque(self.loss)
        return "mse" if self.federation().info.kind == "regression" else "cross-entropy"

    def _described_preprocessing(self) -> dict[str, Any]:
        return {} if self.preprocessing is None else {"preprocessing": described_preprocessing(self.preprocessing)}

    def _described_privacy(self) -> dict[str, Any]:
        """With the noise that was solved for: other rounds would need another."""
        if self.privacy is None:
            return {}
        return {"privacy": plain(replace(self.privacy, noise_multiplier=self._noise_multiplier))}

    @property
    def start(self) -> Source | None:
        """What its weights begin from, if it says so."""
        assert self.init_from is None or isinstance(self.init_from, Source)
        return self.init_from

    def _described_start(self) -> dict[str, Any]:
        return {} if self.start is None else {"init_from": self.start.described()}

    @cached_property
    def _noise_multiplier(self) -> float:
        from parley.privacy import privacy_plan

        assert self.privacy is not None
        return privacy_plan(self.privacy, self.sampling, len(self.federation()), self.rounds).multiplier

    def _described_data(self) -> dict[str, Any]:
        if isinstance(self.data, DataSection):
            return self.data.plain(self.seed)
        info, ids = self.data.info, self.data.ids
        named = {} if type(ids) is not tuple or len(ids) > _NAMED else {"ids": list(ids)}
        precise = {"dtype": "float64"} if self.data.dtype == torch.float64 else {}
        facts = {name: value for name, value in plain(info).items() if value or name not in _OPTIONAL}
        about = {"info": facts | {"scaling": plain(info.scaling)}, "clients": len(ids)}
        return {MARK: "Federation", **about, **named, **precise}

    def _described_algorithm(self) -> dict[str, Any]:
        kind = type(self.algorithm)
        if algorithms.knows(kind):
            return {"name": algorithms.name_of(kind), **plain(self.algorithm)}
        return opaque(self.algorithm)

    def _described_model(self, model: Any) -> dict[str, Any]:
        model = model() if isinstance(model, type) and models.knows(model) else model
        if isinstance(model, Made):
            return {"name": model.name, **plain(model.options)}
        if models.knows(type(model)):
            kind: Any = type(model)
            return {"name": models.name_of(kind), **plain(model)}
        if isinstance(model, nn.Module) or (isinstance(model, ModelSpec) and not isinstance(model, type)):
            return opaque(model)
        info, public = self.federation().info, self.federation().public
        module = build_module(model, info.shape, info.outputs, Key(self.seed).fold("model"), public)
        return opaque(module) | {MARK: called(model)}


def described_preprocessing(preprocessing: Preprocessing) -> dict[str, Any]:
    """As plain JSON; scaled targets and class weights only where there are any."""
    return {name: value for name, value in plain(preprocessing).items() if value or name not in _OPTIONAL}


def check_model(algorithm: Any, model: Any) -> None:
    """Refuse a network where none is trained, and the lack of one where one is."""
    if as_algorithm(algorithm).needs.network:
        if model is None:
            raise InputError("this needs an algorithm, a federation and a model, or a study.")
    elif model is not None:
        raise InputError(f"{as_algorithm(algorithm).title} trains no network; leave out the model.")


def _private_cohort(privacy: Any, sampling: Sampling) -> Sampling:
    """How cohorts are drawn where privacy is accounted for."""
    if not isinstance(privacy, Privacy):
        raise InputError(f"privacy must be a Privacy, not a {type(privacy).__name__}.")
    if sampling.scheme not in ("auto", "poisson"):
        raise InputError(
            f'[privacy] needs cohort.scheme = "poisson", which its accounting is for, not "{sampling.scheme}"; '
            "leave cohort.scheme out."
        )
    return replace(sampling, scheme="poisson", weights="uniform")


def as_study(what: Study | Algorithm, federation: Federation | None, settings: Mapping[str, Any]) -> Study:
    """The study that was given, with these settings changed, or the one made of an algorithm, clients and settings."""
    known = [field.name for field in fields(Study) if field.init]
    for name in settings:
        if name not in known:
            raise InputError(f"there is no setting '{name}': {nearest(name, known)}")
    if isinstance(what, Study):
        if federation is not None:
            raise InputError("a study has its own data; leave the federation out, or change the study's.")
        return replace(what, **settings) if settings else what
    if federation is None:
        raise InputError("this needs an algorithm, a federation and a model, or a study.")
    return Study(what, federation, **settings)


_NAMED = 10_000
_OPTIONAL = ("target_center", "target_scale", "class_weights")
"""Federations of at most so many clients keep their names in the stored run."""
