"""Paper 004's own curves made again: the authors' recipe on pictures of 32x32, point by point beside theirs.

`004/authors` takes CIFAR-10 with alpha = 1 and 10 for 1000 steps, `004/full-size` CIFAR-100 past the crossing. Which
rate theirs have is not known, so each arm is trained with both, and the closer one counts. What was fixed before any
run: a point agrees if the mean of our seeds, at the authors' moment, lies within two of their deviations; an arm agrees
if four points of five do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parley_papers.arrays import Array
from parley_papers.figures.training_curves import ArmCurve, training_curves
from parley_papers.gholami2025.authors_curves import CIFAR10, CIFAR100, EARLY, LATE, Curves, Points, authors_curve
from parley_papers.gholami2025.authors_recipe import Length, Moments, SmokeMoments, authors_arm, by_seed, sorted_images
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, at_least, claims, study
from parley_papers.training_problem import Recipe
from parley_papers.trials import Arm, ArmRun, having_rate

DEVIATIONS = 2.0
SHARE = 0.8
"""Of the points, so many agree at least."""


class EarlyMoments(Moments):
    length = Length(5, 10, (1000, 1000), 100, 10, 1000, (1 / 4, 1.0), (0, 1), re_estimated=False)


class FullSizeMoments(Moments):
    length = Length(5, 10, (7000, 7000), 500, 14, 1000, (1 / 4, 1.0), (0,), re_estimated=False)


@dataclass(frozen=True)
class _Setting:
    data: tuple[str, int]
    moments: type[Moments]
    curves: Curves
    steps: tuple[int, ...]


_EARLY: dict[Scale, _Setting] = {
    "smoke": _Setting(("digits", 8), SmokeMoments, CIFAR10, tuple(range(4, 41, 4))),
    "cpu": _Setting(("cifar10", 32), EarlyMoments, CIFAR10, EARLY),
}
_FULL: dict[Scale, _Setting] = {
    "smoke": _Setting(("digits", 8), SmokeMoments, CIFAR100, tuple(range(4, 81, 4))),
    "cpu": _Setting(("cifar100", 32), FullSizeMoments, CIFAR100, LATE),
}


@study("004/authors", scales={"smoke": "digits, 8 steps", "cpu": "CIFAR-10, 1000 steps, 2 rates, 2 seeds; 2 hours"})
def authors(scale: Scale, context: StudyContext) -> StudyResult:
    """The first 1000 steps of the authors' curves on CIFAR-10, made again with their recipe."""
    return _beside(_EARLY[scale], context)


@study("004/full-size", scales={"smoke": "digits, 8 steps", "cpu": "CIFAR-100, 7000 steps, 2 rates, 1 seed; 6 hours"})
def full_size(scale: Scale, context: StudyContext) -> StudyResult:
    """The authors' curves on CIFAR-100 up to step 7000, made again at 32x32 with one seed."""
    return _beside(_FULL[scale], context)


def _beside(setting: _Setting, context: StudyContext) -> StudyResult:
    length, problem = setting.moments.length, Recipe(sorted_images, setting.data)
    arms: dict[str, list[Arm]] = {}
    for name, body in zip(setting.curves, (length.tau, length.tau * length.alpha), strict=True):
        made = authors_arm(name, problem, length.tau, body, setting.moments)
        arms[name] = [having_rate(replace(made, name=f"{name}, rate {rate:g}"), rate) for rate in length.rates]
    trials = by_seed([arm for of_method in arms.values() for arm in of_method], length.seeds, context)
    ours = {name: [points(trial, length) for trial in runs] for name, runs in trials.items()}
    checks: list[Check] = []
    data: dict[str, Any] = {}
    panels: dict[str, list[ArmCurve]] = {}
    for name, of_method in arms.items():
        theirs = authors_curve(setting.curves, name, setting.steps, length.ends[0])
        apart = {arm.name: deviations(ours[arm.name], theirs) for arm in of_method}
        closest = min(apart, key=lambda label: float(np.abs(apart[label]).mean()))
        within = float((np.abs(apart[closest]) <= DEVIATIONS).mean())
        checks.append(at_least(f"{closest}: share of points within two deviations", within, SHARE))
        data[name] = {"authors": theirs.accuracy, "their deviations": theirs.deviation, "apart, in deviations": apart}
        panels[name] = [
            *(ArmCurve(arm.name.removeprefix(f"{name}, "), ours[arm.name], i) for i, arm in enumerate(of_method)),
            ArmCurve("the authors", [theirs], len(of_method)),
        ]
    least = min(float(curve.accuracy[-1]) for curves in ours.values() for curve in curves)
    trains = at_least("least accuracy of any trial at the end", least, 0.005)
    figure = training_curves(panels, "accuracy", f"{problem().about}; a round is a step")
    data["points"] = {name: {"steps": c[0].rounds, "accuracy": [x.accuracy for x in c]} for name, c in ours.items()}
    data["trials"] = [trial.plain() for runs in trials.values() for trial in runs]
    return context.result([trains, *claims(checks, context.scale)], {"curves": figure}, data)


def points(trial: ArmRun, length: Length) -> Points:
    """A trial's accuracies at the authors' moment; 0 after divergence."""
    steps = np.array([float(step) for step in range(1, length.ends[0] + 1) if length.window(step)])
    return Points(steps, trial.metrics.get("moment/authors/averaged", np.zeros(len(steps))), np.zeros(len(steps)))


def deviations(ours: Sequence[Points], theirs: Points) -> Array:
    """How many of their deviations the mean over our seeds lies above their curve, at their steps."""
    mean = np.interp(theirs.rounds, ours[0].rounds, np.mean([curve.accuracy for curve in ours], axis=0))
    return np.asarray((mean - theirs.accuracy) / theirs.deviation)
