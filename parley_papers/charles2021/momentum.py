"""Paper 001, Figure 6: server momentum and the proximal strength on real digits, with tuned learning rates.

Every arm is tuned on the same grid of (gamma, eta) by its mean accuracy over a whole run with a seed of its own, on
samples that no result uses. Scale `smoke` is too small for the paper's statements.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from parley_papers.charles2021.problems import writers
from parley_papers.charles2021.trained_arms import having_rates, local_update, mean_accuracy
from parley_papers.figures.training_curves import ArmCurve, training_curves
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, at_least, at_most, claims, study
from parley_papers.training_problem import Recipe
from parley_papers.trials import trained, tuned


@dataclass(frozen=True)
class _Size:
    steps: int
    gammas: tuple[float, ...]
    etas: tuple[float, ...]
    rounds: int
    every: int
    seeds: tuple[int, ...]

    def about(self, what: str) -> str:
        return f"{what}; K = {self.steps}, {self.rounds} rounds, {len(self.gammas) * len(self.etas)} settings per arm"


def _powers(low: float, high: float) -> tuple[float, ...]:
    """10^low, 10^(low + 1/2), ..., 10^high."""
    return tuple(float(value) for value in 10 ** np.arange(low, high + 0.25, 0.5))


_SIZES: dict[Scale, _Size] = {
    "smoke": _Size(10, (0.1, 0.3), (0.03, 0.1), 20, 2, (0,)),
    "cpu": _Size(50, _powers(-2, 0), _powers(-2.5, 0), 500, 5, (0, 1, 2)),
    "paper": _Size(50, _powers(-3, 1), _powers(-3, 1), 1500, 10, (0, 1, 2)),
}
_WORDS: dict[Scale, str] = {"smoke": "digits", "cpu": "MNIST by writer at 14x14", "paper": "MNIST by writer"}
PLAIN = "no momentum"
ARMS = {
    PLAIN: ("none", 0.0), "Nesterov": ("nesterov", 0.0), "heavy ball": ("heavy-ball", 0.0),
    "alpha = 0.1": ("none", 0.1), "alpha = 1": ("none", 1.0),
}  # fmt: skip
"""Server and proximal strength by name."""
MOMENTA, STRENGTHS = ("Nesterov", "heavy ball"), ("alpha = 0.1", "alpha = 1")
SLACK = 0.01
"""How much accuracy noise may take or give in "at least as good as"."""
SAME = 0.02
"""Accuracies within this are the same: the proximal strength has little effect."""


@study("001/fig6", scales={scale: size.about(_WORDS[scale]) for scale, size in _SIZES.items()})
def fig6(scale: Scale, context: StudyContext) -> StudyResult:
    """With tuned rates, server momentum converges at least as fast as none, and alpha has little effect."""
    size, problem = _SIZES[scale], Recipe(writers, (scale,))
    arms = [
        local_update(name, problem, steps=size.steps, rounds=size.rounds, every=size.every, server=server, alpha=alpha)
        for name, (server, alpha) in ARMS.items()
    ]
    chosen = tuned(arms, list(product(size.gammas, size.etas)), having_rates, mean_accuracy, context)
    trials = trained([having_rates(arm, chosen.best[arm.name]) for arm in arms], size.seeds, context)
    mean = {name: float(np.mean([mean_accuracy(trial) for trial in runs])) for name, runs in trials.items()}
    last = {name: float(np.mean([trial.last(0.2) for trial in runs])) for name, runs in trials.items()}
    chance = 1 / problem().federation.info.outputs
    checks = [at_least("least accuracy of any arm in the last fifth", min(last.values()), 3 * chance)]
    panels = {
        "Server momentum, $\\alpha$ = 0": [
            ArmCurve(name, trials[name], colour) for colour, name in enumerate((PLAIN, *MOMENTA))
        ],
        "Proximal strength, no momentum": [
            ArmCurve(f"$\\alpha$ = {ARMS[name][1]:g}", trials[name], colour)
            for colour, name in {0: PLAIN, 3: STRENGTHS[0], 4: STRENGTHS[1]}.items()
        ],
    }
    data = {
        "problem": problem().about,
        "chosen (gamma, eta)": chosen.best,
        "tuning": chosen.plain(),
        "trials": [trial.plain() for runs in trials.values() for trial in runs],
        "mean_accuracy": mean,
        "last_accuracy": last,
    }
    figure = training_curves(panels, "accuracy", problem().about)
    return context.result([*checks, *claims(_claims(mean, last), scale)], {"accuracy": figure}, data)


def _claims(mean: dict[str, float], last: dict[str, float]) -> list[Check]:
    """Of the accuracies over all rounds and in the last fifth."""
    checks = []
    for name in MOMENTA:
        checks.append(at_least(f"{name}: mean accuracy over all rounds", mean[name], mean[PLAIN] - SLACK))
        checks.append(at_least(f"{name}: accuracy in the last fifth", last[name], last[PLAIN] - SLACK))
    for name in STRENGTHS:
        checks.append(at_most(f"{name}: change of mean accuracy", abs(mean[name] - mean[PLAIN]), SAME))
        checks.append(at_most(f"{name}: change of last accuracy", abs(last[name] - last[PLAIN]), SAME))
    return checks
