"""How a run is carried out, apart from the algorithm: who takes part, what may go wrong, what is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from parley.core.checks import checked_at_birth
from parley.core.errors import InputError

Scheme = Literal["auto", "without-replacement", "with-replacement", "unbiased", "poisson"]
Weights = Literal["size", "uniform"]


@dataclass(frozen=True)
class Sampling:
    """Which clients take part in a round, and with which weight their replies count.

    The target is the weighted mean over the population with p_k = n_k/N (`size`) or 1/K (`uniform`).
    """

    size: int | None = None
    """Clients per round; without it, all of them. Of Poisson cohorts: on average."""
    scheme: Scheme = "auto"
    """`auto`: what the method's fixed point needs (`unbiased` for SCAFFOLD and FedDyn, else `without-replacement`).
    `without-replacement`: uniform draws, weights p_k scaled to sum to one over the cohort (biased where p_k vary).
    `with-replacement`: draws by p_k, each draw counting equally (paper 004, Case I; unbiased).
    `unbiased`: uniform draws without replacement, weights p_k K / cohort, which need not sum to one (Case II).
    `poisson`: each client with chance size / K, whoever else comes, with the same weights; what `[privacy]` needs. A
    cohort may be empty."""
    weights: Weights = "size"
    """p_k: by number of training samples, or the same for all."""

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise InputError(f"cohort.size must be at least 1, not {self.size}.")


@dataclass(frozen=True)
class Faults:
    """What goes wrong: simulated absences, and limits for clients that really fail."""

    availability: float = 1.0
    """Chance that a client can be asked at all in a round; sampling happens among those that can."""
    dropout: float = 0.0
    """Chance that a sampled client never answers (it works in vain; nothing comes back)."""
    straggling: float = 0.0
    """Spread (sigma) of clients' log-normal slowness; 0 makes all equally fast."""
    patience: float | None = None
    """Replies slower than this many times the median client's time are left out; needs straggling > 0."""
    deadline: float | None = None
    """Seconds of real time a client may take before it is given up (runtimes pool and wire)."""
    quorum: float = 0.5
    """Share of the clients asked that must answer; below it the run stops and can be resumed."""
    at_least: int | None = None
    """Clients that must answer in every round, besides the quorum; with fewer the run stops and can be resumed."""
    require: tuple[str, ...] = ()
    """Clients without which there is no round: the run stops when one of them is asked and does not answer."""
    strict: bool = False
    """Stop at the first client that raises, with its traceback, instead of leaving it out: for debugging a method."""

    def __post_init__(self) -> None:
        for name in ("availability", "dropout", "quorum"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise InputError(f"faults.{name} must lie in [0, 1], not {value}.")
        if self.availability == 0:
            raise InputError("faults.availability must be above 0, or no client could ever be asked.")
        if self.at_least is not None and self.at_least < 1:
            raise InputError(f"faults.at_least must be at least 1, not {self.at_least}.")
        object.__setattr__(self, "require", tuple(self.require))
        if not self.straggling >= 0:
            raise InputError(f"faults.straggling must be at least 0, not {self.straggling}.")
        for name in ("patience", "deadline"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"faults.{name} must be positive, not {value}.")


@dataclass(frozen=True)
class Evaluation:
    """What is measured, on which model and which clients.

    `central/...` is the server's model after the round on the central test set (for methods with a model per client:
    the mean over those models). `clients/...` is, for each evaluated client, its model on its own held-out samples.
    """

    every: int = 1
    """Evaluate after every so many rounds, and always after the last."""
    central: bool = True
    """Evaluate on the central test set, where there is one."""
    clients: int | Literal["auto", "none", "all"] = "auto"
    """Clients evaluated on their own held-out samples: none, all, or a fixed random set of so many; `auto` takes 100 at
    most where there are such samples and no central test set, or where each client has a model of its own."""
    metric: str = "auto"
    """What `best`, `target` and `patience` refer to: accuracy, loss or one of metrics, on the central test set if there
    is one (of methods with a model per client: on their own samples); `auto` takes accuracy, or the loss of a
    regression."""
    metrics: tuple[str | Callable[..., Any], ...] = ()
    """Further metrics to measure, centrally and per client, by name or as file.py:function; in Python also functions of
    outputs and targets."""
    headline: str | None = None
    """In place of metric: the full name of what `best`, `target` and `patience` refer to, such as clients/accuracy or
    train/loss; -server/name where it is a number of the method's own and smaller is better."""
    target: float | None = None
    """Stop as soon as the metric reaches this value."""
    patience: int | None = None
    """Stop when so many evaluations in a row brought no new best."""
    min_delta: float = 0.0
    """How much better than the best so far an evaluation must be to count as a new best for patience."""
    batch: int = 1000
    """Samples per evaluation call."""

    def __post_init__(self) -> None:
        if self.every < 1 or self.batch < 1:
            raise InputError("evaluate.every and evaluate.batch must be at least 1.")
        object.__setattr__(self, "metrics", tuple(self.metrics))
        if self.patience is not None and self.patience < 1:
            raise InputError(f"evaluate.patience must be at least 1, not {self.patience}.")
        if not self.min_delta >= 0:
            raise InputError(f"evaluate.min_delta must be at least 0, not {self.min_delta}.")
        if isinstance(self.clients, int) and self.clients < 1:
            raise InputError(f"evaluate.clients must be 'none', 'all' or at least 1, not {self.clients}.")
        if isinstance(self.clients, str) and self.clients not in ("auto", "none", "all"):
            raise InputError(f"evaluate.clients must be 'auto', 'none', 'all' or a number, not '{self.clients}'.")


for _cls, _where in ((Sampling, "cohort"), (Faults, "faults"), (Evaluation, "evaluate")):
    checked_at_birth(_cls, _where)
