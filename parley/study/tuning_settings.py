"""The section [tune] of a study: what is searched, by what, and how much may be tried."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from parley.core.errors import InputError
from parley.study.tuning_spaces import Space, space_of

TUNING_SEED = 1000
"""Settings are chosen with this seed, which no result uses."""
Sampler = Literal["grid", "random", "tpe"]
Pruner = Literal["none", "median", "halving"]
Positive = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class Tuning:
    """Search of `parley tune`, with the same number of trials and rounds for each method."""

    params: dict[str, Any] = field(default_factory=dict)
    """[tune.params]: setting -> space: a list, or half-decades(-3, 1), decades(-3, 1), powers-of-two(0, 5),
    log(1e-4, 1), uniform(0, 1), integers(1, 20). [tune.params.fedprox]: for this method only."""
    methods: tuple[str, ...] = ()
    """Algorithms that are tuned side by side with equal budgets; by default the study's."""
    trials: Positive | None = None
    """Trials of each method; by default all points of a grid, or 20."""
    sampler: Sampler = "tpe"
    """grid (all points, in random order), random, or tpe (tree-structured Parzen estimator)."""
    sampler_seed: int = 0
    """Seed of the sampler."""
    pruner: Pruner = "none"
    """none, median (below the median of earlier trials at the same round) or halving (successive halving by 3);
    with one, methods may train different numbers of rounds."""
    seed: int = TUNING_SEED
    """Seed of the runs, which results should not use."""
    metric: str = "auto"
    """Full name of the trials' metric; auto is clients/accuracy if clients have held-out samples, else the study's
    metric; of regression clients/loss, and where one class has 80% of the samples clients/auc or
    clients/balanced-accuracy if the study measures it, else clients/loss."""
    score: Literal["last", "best"] = "last"
    """last: the mean over the last tenth of the evaluations; best: the best one."""
    workers: Positive = 1
    """Processes that train at the same time; with the runtime ray their trials share the cluster's workers."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "methods", tuple(self.methods))
        if len(set(self.methods)) != len(self.methods):
            raise InputError("tune.methods names a method twice.")
        self.spaces("")
        for method, settings in self.params.items():
            if isinstance(settings, dict) and method not in self.methods:
                raise InputError(f"[tune.params.{method}] is of a method that tune.methods does not name.")

    def spaces(self, method: str) -> dict[str, Space]:
        """Setting -> space, checked: of all methods, and of this one."""
        settings = self.params.get(method, {})
        common = {path: value for path, value in self.params.items() if not isinstance(value, dict)}
        return {path: space_of(value, path) for path, value in (common | settings).items()}
