"""The section [tune] of a study: what is searched, by what, and how much may be tried."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from parley.core.errors import InputError
from parley.study.tuning.spaces import Space, space_of

TUNING_SEED = 1000
"""Settings are chosen with this seed, which no result uses."""
Sampler = Literal["grid", "random", "tpe"]
Pruner = Literal["none", "median", "halving"]
Positive = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class Tuning:
    """What `parley tune` tries: spaces of settings, the same number of trials and rounds for each method."""

    params: dict[str, Any] = field(default_factory=dict)
    """[tune.params]: setting -> where it is looked for: a list, or half-decades(-3, 1), decades(-3, 1),
    powers-of-two(0, 5), log(1e-4, 1), uniform(0, 1), integers(1, 20). [tune.params.fedprox]: those of this method
    alone."""
    methods: tuple[str, ...] = ()
    """Algorithms that are tuned side by side with equal budgets; by default the study's."""
    trials: Positive | None = None
    """Trials of each method; by default all points of a grid, or 20."""
    sampler: Sampler = "tpe"
    """grid (all points, in random order), random, or tpe (tree-structured Parzen estimator)."""
    sampler_seed: int = 0
    """Seed of the sampler; a trial is proposed by it, its number and what was found before."""
    pruner: Pruner = "none"
    """none, median (below the median of the trials before at the same round) or halving (successive halving by 3); with
    one, methods may train different numbers of rounds, which is said."""
    seed: int = TUNING_SEED
    """Seed of the runs, which results should not use."""
    metric: str = "auto"
    """Full name of what trials are judged by; auto takes clients/accuracy (of a regression, clients/loss) where clients
    have held-out samples, else what the study is judged by."""
    score: Literal["last", "best"] = "last"
    """last: the mean over the last tenth of the evaluations; best: the best one."""
    workers: Positive = 1
    """Processes that train at the same time; with the runtime ray their trials share the cluster's workers."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "methods", tuple(self.methods))
        if len(set(self.methods)) != len(self.methods):
            raise InputError("tune.methods names a method twice.")
        self.spaces("")
        for method, own in self.params.items():
            if isinstance(own, dict) and method not in self.methods:
                raise InputError(f"[tune.params.{method}] is of a method that tune.methods does not name.")

    def spaces(self, method: str) -> dict[str, Space]:
        """Setting -> space, checked: those of all methods and this one's own."""
        own = self.params.get(method, {})
        common = {path: value for path, value in self.params.items() if not isinstance(value, dict)}
        return {path: space_of(value, path) for path, value in (common | own).items()}
