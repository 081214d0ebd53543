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

import numpy as np

from parley.algorithms import algorithms
from parley.core.errors import InputError, ParleyWarning, nearest
from parley.core.fields import settings_of
from parley.core.plugins import beside, is_file_name
from parley.data import Federation
from parley.engine.settings import Evaluation
from parley.study.difference import ending, essential
from parley.study.study import Study
from parley.study.toml import study_from_dict
from parley.study.tuning_settings import Tuning
from parley.study.tuning_spaces import Space
from parley.training.metrics import check_measured, scorers, smaller_is_better

DEFAULT_TRIALS = 20
_FIXED = {
    "seed": "trials have a seed of their own (tune.seed), and results are judged over several.",
    "rounds": "every trial gets the study's.", "name": "it decides nothing.",
    "data": "trials are judged on the same data; change the study.",
    "evaluate": "it decides how trials are judged; see tune.metric and tune.score.",
    "runtime": "it changes no number.", "store": "it changes no number.", "logging": "it changes no number.",
    "plugins": "they are the study's code.", "listeners": "they change no number.", "tune": "it is the search itself.",
}  # fmt: skip
"""What a search must not choose, and why."""
_MOST_OF_ONE, _COUNTED = 0.8, 1000
"""The share of the largest class from which accuracy is no judge, and up to how many clients are counted for it."""
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
    def label(self) -> str:
        """The method's name as one of a file can have it: that of its class, if it is the user's own."""
        return self.method.rpartition(":")[2]

    @property
    def points(self) -> int | None:
        """How many different settings there are; None where one of them has a range."""
        points = [space.points for space in self.spaces.values()]
        return prod(map(len, points)) if all(points) else None

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
            if self.metric.startswith(("clients/", "pooled/")) and evaluate.get("clients", "auto") in ("auto", "none"):
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
        resolved = study.resolved()
        settings = {
            "study": essential(resolved),
            "ending": ending(resolved),
            "metric": self.metric,
            "spaces": {path: repr(space) for path, space in self.spaces.items()},
            "sampler": self.tuning.sampler,
            "sampler_seed": self.tuning.sampler_seed,
            "pruner": self.tuning.pruner,
            "score": self.tuning.score,
        }
        digest = blake2b(json.dumps(settings, sort_keys=True, default=str).encode(), digest_size=4).hexdigest()
        return f"{study.title}-{digest}"


def candidates(table: Mapping[str, Any], base: Path, tuning: Tuning) -> list[Candidate]:
    """One per method, all with the same number of trials and rounds."""
    plain = {key: value for key, value in table.items() if key != "tune"}
    study = study_from_dict(plain, base)
    if not tuning.params:
        raise InputError("there is nothing to tune; name a setting: --param 'algorithm.lr=half-decades(-3, 1)'.")
    algorithm = dict(plain["algorithm"])
    methods = tuning.methods or (algorithm["name"],)
    metric = chosen_metric(study, tuning)
    result: list[Candidate] = []
    for method in methods:
        if not is_file_name(method) and method not in algorithms:
            raise InputError(f"tune.methods: there is no algorithm '{method}': {nearest(method, algorithms)}")
        chosen = algorithms[beside(method, base) if is_file_name(method) else method]
        known = [setting.name for setting in settings_of(chosen)]
        kept = (
            algorithm
            if method == algorithm["name"]
            else {k: v for k, v in algorithm.items() if k in known} | {"name": method}
        )
        spaces = tuning.spaces(method)
        for path in spaces:
            _check_path(path, method, known)
        candidate = Candidate(method, {**plain, "algorithm": kept}, base, spaces, metric, tuning, 0)
        # Other methods have other names, or all runs of a study with a name would be called alike.
        if plain.get("name") and len(methods) > 1:
            candidate = replace(candidate, table=candidate.table | {"name": f"{plain['name']}-{candidate.label}"})
        if any(candidate.label == other.label for other in result):
            raise InputError(f"two of tune.methods are called {candidate.label}; rename one.")
        result.append(candidate)
    trials = _trials(result, tuning)
    for candidate in result:
        for end in (0, -1):  # refuses settings that do not exist, or values that they cannot have
            candidate.study({path: space.ends()[end] for path, space in candidate.spaces.items()})
    return [replace(candidate, trials=trials) for candidate in result]


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
    if section in _FIXED:
        raise InputError(f"{path} cannot be tuned: {_FIXED[section]}")
    if section == "algorithm" and rest.partition(".")[0] not in known:
        near = nearest(path, [f"algorithm.{name}" for name in known])
        raise InputError(
            f"{method} has no setting '{path}' to tune: {near} What only some methods have stands in "
            "[tune.params.METHOD]."
        )


def _trials(chosen: list[Candidate], tuning: Tuning) -> int:
    """The same for every method; where there are points alone, no more than there are."""
    for candidate in chosen:
        for path, space in candidate.spaces.items():
            if tuning.sampler == "grid" and not space.points:
                raise InputError(f"a grid needs points, but {path} has a range; name points, or another sampler.")
    sizes = {candidate.method: candidate.points for candidate in chosen if candidate.points is not None}
    if not sizes:
        return tuning.trials or DEFAULT_TRIALS
    smallest, largest = min(sizes.values()), max(sizes.values())
    if tuning.sampler != "grid" and tuning.trials is None:
        return min(smallest, DEFAULT_TRIALS)
    if tuning.trials is None and smallest != largest:
        raise InputError(
            f"the grids have different sizes ({', '.join(f'{m} {n}' for m, n in sizes.items())}); say with trials how "
            "many each method gets, or use another sampler."
        )
    if tuning.trials is not None and tuning.trials > smallest:
        raise InputError(
            f"{tuning.trials} trials do not fit a grid of {smallest} points; name more points, a range or fewer trials."
        )
    return tuning.trials or smallest


def chosen_metric(study: Study, tuning: Tuning) -> str:
    """By what trials are judged."""
    federation = study.federation()
    regression = federation.info.kind == "regression"
    if tuning.metric != "auto":
        return _named_metric(tuning.metric, study)
    evaluation = study.evaluation or Evaluation()
    judged = (evaluation.headline or "").removeprefix("-")
    if federation.held_out is not None:
        if judged.startswith(("clients/", "pooled/")):
            return judged
        if evaluation.metric != "auto":
            return f"clients/{evaluation.metric}"
        return _on_clients(federation, evaluation)
    if federation.test is None:
        return "train/loss"
    warnings.warn(
        "clients have no held-out samples (data.test_fraction), so settings are chosen on the central test set; do not "
        "judge them by it afterwards.",
        ParleyWarning,
        stacklevel=3,
    )
    return "central/loss" if regression else "central/accuracy"


def _on_clients(federation: Federation, evaluation: Evaluation) -> str:
    """Accuracy of classes, unless always answering the same class has nearly all of it."""
    info = federation.info
    if info.kind == "regression":
        return "clients/loss"
    if info.kind != "classification" or info.outputs < 2 or len(federation) > _COUNTED or not federation.here:
        return "clients/accuracy"
    counts = sum(np.bincount(federation.client(i).y.numpy().ravel(), minlength=info.outputs) for i in federation.ids)
    share = float(np.max(counts) / np.sum(counts))
    if share < _MOST_OF_ONE:
        return "clients/accuracy"
    chosen = next((name for name in ("auc", "balanced-accuracy") if name in evaluation.metrics), "loss")
    warnings.warn(
        f"one class has {share:.0%} of the training samples, which accuracy rewards answering always; settings are "
        f"chosen by clients/{chosen} (tune.metric names another).",
        ParleyWarning,
        stacklevel=4,
    )
    return f"clients/{chosen}"


def _named_metric(wanted: str, study: Study) -> str:
    """The full name: `accuracy` is that on clients' held-out samples, where there are such."""
    federation = study.federation()
    regression = federation.info.kind == "regression"
    held, test = federation.held_out is not None, federation.test is not None
    where, slash, last = wanted.partition("/") if "/" in wanted else ("clients" if held else "central", "/", wanted)
    if where not in ("central", "clients"):
        return wanted
    evaluation = study.evaluation or Evaluation()
    check_measured(last, scorers(evaluation.metrics, federation.info), "tune.metric")
    if regression and last == "accuracy":
        raise InputError("tune.metric is 'accuracy', but the task is regression: use 'loss'.")
    if where == "clients" and not held:
        raise InputError(f"tune.metric is '{where}/{last}', but clients have no held-out samples (data.test_fraction).")
    if where == "central" and not (test and evaluation.central):
        raise InputError(f"tune.metric is '{where}/{last}', but nothing is evaluated on a central test set.")
    return f"{where}{slash}{last}"
