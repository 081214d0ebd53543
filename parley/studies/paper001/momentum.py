"""Paper 001, Figure 6: server momentum and the proximal strength on real digits, with tuned learning rates.

Every arm is tuned on the same grid of (gamma, eta) by its mean accuracy over a shorter run with a seed of its own, on
samples that no result is told on. Scale `smoke` is too small for the paper's statements: it checks that all arms train.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from parley.studies.curves import Line, lines
from parley.studies.harness import Context, Result, Scale, at_least, at_most, study
from parley.studies.paper001.problems import writers
from parley.studies.paper001.trials import Arm, Trial, run, tuned


@dataclass(frozen=True)
class _Size:
    steps: int
    gammas: tuple[float, ...]
    etas: tuple[float, ...]
    tuning: int
    rounds: int
    every: int
    seeds: tuple[int, ...]

    def about(self, what: str) -> str:
        return f"{what}; K = {self.steps}, {self.rounds} rounds, {len(self.gammas) * len(self.etas)} settings per arm"


def _powers(low: float, high: float) -> tuple[float, ...]:
    """10^low, 10^(low + 1/2), ..., 10^high."""
    return tuple(float(value) for value in 10 ** np.arange(low, high + 0.25, 0.5))


_SIZES: dict[Scale, _Size] = {
    "smoke": _Size(10, (0.1, 0.3), (0.03, 0.1), 10, 20, 2, (0,)),
    "cpu": _Size(50, _powers(-2, 0), _powers(-2.5, 0), 60, 500, 5, (0, 1, 2)),
    "paper": _Size(50, _powers(-3, 1), _powers(-3, 1), 500, 1500, 10, (0, 1, 2)),
}
_WORDS: dict[Scale, str] = {"smoke": "digits", "cpu": "MNIST by writer at 14x14", "paper": "MNIST by writer"}
ARMS = (
    Arm("no momentum", "none"), Arm("Nesterov", "nesterov"), Arm("heavy ball", "heavy-ball"),
    Arm("alpha = 0.1", "none", 0.1), Arm("alpha = 1", "none", 1.0),
)  # fmt: skip
SLACK = 0.01
"""How much accuracy noise may take or give in "at least as good as"."""
SAME = 0.02
"""Accuracies within this are the same: the proximal strength has little effect."""


@study("001/fig6", scales={scale: size.about(_WORDS[scale]) for scale, size in _SIZES.items()})
def fig6(scale: Scale, context: Context) -> Result:
    """With tuned rates, server momentum converges at least as fast as none, and alpha has little effect."""
    size, problem = _SIZES[scale], writers(scale)
    arms, table = tuned(
        problem, ARMS, product(size.gammas, size.etas), _mean_accuracy, context,
        steps=size.steps, rounds=size.tuning, every=size.every,
    )  # fmt: skip
    work = [(arm, seed) for arm in arms for seed in size.seeds]
    trials: dict[str, list[Trial]] = {arm.name: [] for arm in arms}
    for arm, seed in context.track(work, "training"):
        trials[arm.name].append(
            run(problem, arm, problem.tell, steps=size.steps, rounds=size.rounds, every=size.every, seed=seed)
        )
    mean = {name: float(np.mean([_mean_accuracy(trial) for trial in own])) for name, own in trials.items()}
    last = {name: float(np.mean([_last_accuracy(trial) for trial in own])) for name, own in trials.items()}
    plain, chance = ARMS[0].name, 1 / problem.federation.info.outputs
    checks = [at_least("least accuracy of any arm in the last fifth", min(last.values()), 3 * chance)]
    for arm in ARMS[1:3] if scale != "smoke" else ():
        checks.append(at_least(f"{arm.name}: mean accuracy over all rounds", mean[arm.name], mean[plain] - SLACK))
        checks.append(at_least(f"{arm.name}: accuracy in the last fifth", last[arm.name], last[plain] - SLACK))
    for arm in ARMS[3:] if scale != "smoke" else ():
        checks.append(at_most(f"{arm.name}: change of mean accuracy", abs(mean[arm.name] - mean[plain]), SAME))
        checks.append(at_most(f"{arm.name}: change of last accuracy", abs(last[arm.name] - last[plain]), SAME))
    panels = {
        "Server momentum, $\\alpha$ = 0": [Line(a.name, trials[a.name], i) for i, a in enumerate(ARMS[:3])],
        "Proximal strength, no momentum": [
            Line("$\\alpha$ = 0", trials[plain], 0),
            *[Line(f"$\\alpha$ = {a.alpha:g}", trials[a.name], i) for i, a in enumerate(ARMS[3:], 3)],
        ],
    }
    data = {
        "problem": problem.about, "chosen": {arm.name: {"gamma": arm.gamma, "eta": arm.eta} for arm in arms},
        "tuning": table, "trials": [trial.plain() for own in trials.values() for trial in own],
        "mean_accuracy": mean, "last_accuracy": last,
    }  # fmt: skip
    return context.result(checks, {"accuracy": lines(panels, "accuracy", problem.about)}, data)


def _mean_accuracy(trial: Trial) -> float:
    """Over all evaluated rounds but the start: high if it is reached soon."""
    return float(np.nan_to_num(trial.accuracy[1:]).mean())


def _last_accuracy(trial: Trial) -> float:
    return float(np.nan_to_num(trial.accuracy[-max(len(trial.accuracy) // 5, 1) :]).mean())
