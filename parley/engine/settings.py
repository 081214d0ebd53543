"""How a run is carried out, apart from the algorithm: who takes part, what may go wrong, what is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from parley.core.checks import checked_at_birth
from parley.core.errors import InputError

Scheme = Literal["auto", "without-replacement", "with-replacement", "unbiased", "poisson"]
Weights = Literal["size", "uniform"]
Attack = Literal["sign-flip", "noise", "scaled", "a-little", "label-flip"]


@dataclass(frozen=True)
class Sampling:
    """Which clients take part in a round, and with which weight their replies count.

    The target is the weighted mean over the population with p_k = n_k/N (`size`) or 1/K (`uniform`).
    """

    size: int | None = None
    """Clients per round (for Poisson cohorts: on average); without it, all of them."""
    scheme: Scheme = "auto"
    """`auto`: what the method's fixed point needs (`unbiased` for SCAFFOLD and FedDyn, else `without-replacement`).
    `without-replacement`: uniform draws, weights p_k scaled to sum to one over the cohort (biased where p_k vary).
    `with-replacement`: draws by p_k, each draw counting equally (Gholami and Seferoglu, Case I; unbiased).
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
    """Simulated absences, and limits for clients that fail."""

    availability: float = 1.0
    """Chance that a client can be asked at all in a round; sampling happens among those that can."""
    dropout: float = 0.0
    """Chance that a sampled client never answers."""
    straggling: float = 0.0
    """Spread (sigma) of clients' log-normal slowness; 0 makes all equally fast."""
    patience: float | None = None
    """Replies slower than this many times the median client's time are left out; needs straggling > 0."""
    deadline: float | None = None
    """Seconds of real time before a client is left out (runtimes pool and wire)."""
    quorum: float = 0.5
    """Share of the clients asked that must answer; below it the run stops and can be resumed."""
    at_least: int | None = None
    """Fewest clients that must answer in every round, besides the quorum."""
    require: tuple[str, ...] = ()
    """Clients that must answer when asked; otherwise the run stops."""
    strict: bool = False
    """Stop at the first client that raises, with its traceback, instead of leaving it out: for debugging a method."""
    attackers: float | tuple[str, ...] = 0.0
    """Share of all clients that attack, drawn by the seed, or their names; in simulations only."""
    attack: Attack = "sign-flip"
    """What attackers do: sign-flip (their reply times -strength), scaled (times strength), noise (of strength times its
    size), a-little (the honest mean minus strength deviations), label-flip (they train on the class C - 1 - y)."""
    attack_strength: float | None = None
    """By default 1 for sign-flip, 10 for scaled and noise, 1.5 for a-little; label-flip has none."""

    def __post_init__(self) -> None:
        if not isinstance(self.attackers, float | int):
            object.__setattr__(self, "attackers", tuple(self.attackers))
        elif not 0 <= self.attackers < 1:
            raise InputError(f"faults.attackers must lie in [0, 1), not {self.attackers}.")
        if self.attack_strength is not None and (self.attack == "label-flip" or not self.attack_strength > 0):
            raise InputError("faults.attack_strength must be positive, and label-flip has none.")
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
    """What is measured, and on which clients.

    `central/...` is the server's model after the round on the central test set (for methods with a model per client:
    the mean over those models). `clients/...` is, for each evaluated client, its model on its own held-out samples,
    `pooled/...` over the held-out samples of all of them together.
    """

    every: int = 1
    """Rounds between evaluations; the last round is always evaluated."""
    central: bool = True
    """Evaluate on the central test set, where there is one."""
    clients: int | Literal["auto", "none", "all"] = "auto"
    """Clients evaluated on their held-out samples: none, all, or the size of a fixed random set; `auto` takes at
    most 100 if there is no central test set, or if each client has its own model."""
    metric: str = "auto"
    """The metric of `best`, `target` and `patience`: accuracy, loss or one of metrics, on the central test set if
    there is one (with a model per client: on clients' samples); `auto` is accuracy, or the loss of a regression."""
    metrics: tuple[str | Callable[..., Any], ...] = ()
    """Further metrics to measure, centrally and per client, by name or as file.py:function; in Python also functions of
    outputs and targets."""
    pooled: bool = False
    """Judge classes over all evaluated samples together, too: loss, accuracy, and from counts of scores in bins the AUC
    and calibration, recorded as pooled/auc and so on. Clients tell the counts, and their confusion matrix."""
    headline: str | None = None
    """In place of metric: a full name, such as clients/accuracy or train/loss; -server/name for a method's own
    metric of which smaller is better."""
    target: float | None = None
    """Stop as soon as the metric reaches this value."""
    patience: int | None = None
    """Stop after this many evaluations without a new best."""
    min_delta: float = 0.0
    """Improvement that patience counts as a new best."""
    batch: int = 1000
    """Samples per evaluation call."""
    digits: int | None = None
    """Decimals to which clients round the metrics they report; by default unrounded. Crafted models reveal samples all
    the same."""

    def __post_init__(self) -> None:
        if self.every < 1 or self.batch < 1:
            raise InputError("evaluate.every and evaluate.batch must be at least 1.")
        if self.digits is not None and not 0 <= self.digits <= 15:
            raise InputError(f"evaluate.digits must lie between 0 and 15, not {self.digits}.")
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
