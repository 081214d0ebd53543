"""Which study a trial trains: the method's, with the settings proposed, judged by samples that no result uses."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import Any

from parley.algorithms import algorithms
from parley.core.errors import InputError, ParleyWarning, nearest
from parley.core.fields import settings_of
from parley.learn.metrics import smaller_is_better
from parley.study.description import Study
from parley.study.difference import essential
from parley.study.study import study_from_dict
from parley.study.tuning.settings import Tuning
from parley.study.tuning.spaces import Space

DEFAULT_TRIALS = 20
JUDGED = 100
"""Clients whose held-out samples trials are judged by, where the study does not say which."""


@dataclass(frozen=True)
class Candidate:
    """A method to tune: its table, as a study file has it, and where its settings are looked for."""

    method: str
    table: dict[str, Any]
    base: Path
    spaces: dict[str, Space]
    metric: str
    tuning: Tuning
    trials: int

    @property
    def smaller(self) -> bool:
        """Smaller scores are better."""
        return smaller_is_better(self.metric) is not False

    def study(self, settings: Mapping[str, Any] | None = None, *, final: bool = False) -> Study:
        """The study with these settings; `final`: as its user would train it, else as it is tuned."""
        table = deepcopy(self.table)
        if not final:
            table["seed"] = self.tuning.seed
            evaluate = table.setdefault("evaluate", {})
            if self.metric.startswith("clients/") and evaluate.get("clients", "auto") in ("auto", "none"):
                evaluate["clients"] = JUDGED
        for path, value in (settings or {}).items():
            put(table, path, value)
        study = study_from_dict(table, self.base)
        if settings and not final:
            return replace(study, name=f"{study.title}, {settings_text(settings)}")
        return study

    def name(self) -> str:
        """Of the search: the same for two exactly if they propose and judge alike, however many trials there are."""
        study = self.study()
        own = {"study": essential(study.resolved()), "rounds": study.rounds, "metric": self.metric,
               "spaces": {path: repr(space) for path, space in self.spaces.items()}, "sampler": self.tuning.sampler,
               "sampler_seed": self.tuning.sampler_seed, "pruner": self.tuning.pruner,
               "score": self.tuning.score}  # fmt: skip
        digest = blake2b(json.dumps(own, sort_keys=True, default=str).encode(), digest_size=4).hexdigest()
        return f"{study.title}-{digest}"


def candidates(table: Mapping[str, Any], base: Path, tuning: Tuning) -> list[Candidate]:
    """One per method, all with the same number of trials and rounds."""
    plain = {key: value for key, value in table.items() if key != "tune"}
    study = study_from_dict(plain, base)
    if not tuning.params:
        raise InputError("there is nothing to tune; name a setting: --param 'algorithm.lr=half-decades(-3, 1)'.")
    own = dict(plain["algorithm"])
    methods = tuning.methods or (own["name"],)
    metric = _metric(study, tuning)
    found = []
    for method in methods:
        if method not in algorithms:
            raise InputError(f"tune.methods: there is no algorithm '{method}': {nearest(method, algorithms)}")
        known = [setting.name for setting in settings_of(algorithms[method])]
        kept = own if method == own["name"] else {k: v for k, v in own.items() if k in known} | {"name": method}
        # Other methods have other names, or all runs of a study with a name would be called alike.
        named = {"name": f"{plain['name']}-{method}"} if plain.get("name") and len(methods) > 1 else {}
        spaces = tuning.spaces(method)
        for path in spaces:
            _check_path(path, method, known)
        found.append(Candidate(method, {**plain, **named, "algorithm": kept}, base, spaces, metric, tuning, 0))
    trials = _trials(found, tuning)
    for one in found:
        for end in (0, -1):  # refuses settings that do not exist, or values that they cannot have
            one.study({path: space.ends()[end] for path, space in one.spaces.items()})
    return [replace(one, trials=trials) for one in found]


def settings_text(settings: Mapping[str, Any]) -> str:
    """`lr = 0.1, steps = 4`."""
    return ", ".join(
        f"{path.removeprefix('algorithm.')} = {f'{value:.4g}' if isinstance(value, float) else value}"
        for path, value in settings.items()
    )


def put(table: dict[str, Any], path: str, value: Any) -> None:
    """Set `section.setting` of a table."""
    *sections, last = path.split(".")
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise InputError(f"{path} cannot be tuned: {section} is not a section.")
    table[last] = value


def _check_path(path: str, method: str, known: list[str]) -> None:
    section, _, rest = path.partition(".")
    if section == "algorithm" and rest.partition(".")[0] not in known:
        near = nearest(path, [f"algorithm.{name}" for name in known])
        raise InputError(f"{method} has no setting '{path}' to tune: {near} What only some methods have stands in "
                         "[tune.params.METHOD].")  # fmt: skip


def _trials(found: list[Candidate], tuning: Tuning) -> int:
    """The same for every method."""
    if tuning.sampler != "grid":
        return tuning.trials or DEFAULT_TRIALS
    for one in found:
        for path, space in one.spaces.items():
            if not space.points:
                raise InputError(f"a grid needs points, but {path} has a range; name points, or another sampler.")
    sizes = {one.method: prod(len(space.points) for space in one.spaces.values()) for one in found}
    smallest, largest = min(sizes.values()), max(sizes.values())
    if tuning.trials is None and smallest != largest:
        raise InputError(
            f"the grids have different sizes ({', '.join(f'{m} {n}' for m, n in sizes.items())}); say with trials how "
            "many each method gets, or use another sampler."
        )
    if tuning.trials is not None and tuning.trials > smallest:
        raise InputError(
            f"{tuning.trials} trials do not fit a grid of {smallest} points; name more points, or another sampler."
        )
    return tuning.trials or smallest


def _metric(study: Study, tuning: Tuning) -> str:
    if tuning.metric != "auto":
        return tuning.metric
    federation = study.federation()
    regression = federation.info.kind == "regression"
    if federation.held_out is not None:
        return "clients/loss" if regression else "clients/accuracy"
    if federation.test is None:
        return "train/loss"
    warnings.warn(
        "clients have no held-out samples (data.test_fraction), so settings are chosen on the central test set; do not "
        "judge them by it afterwards.",
        ParleyWarning,
        stacklevel=3,
    )
    return "central/loss" if regression else "central/accuracy"
