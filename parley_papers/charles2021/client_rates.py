"""Paper 001, Figures 12 and 13: the client learning rate trades convergence for accuracy in non-convex training too.

Theta_{1:10}, gradient descent on the server, alpha = 0. Figure 12 holds eta fixed; Figure 13 tunes eta for each gamma
by the training loss at the end of a shorter run. Both show the loss on a fixed sample of the training data. The paper
fixes eta = 0.01 for ResNet-18. The small CNN of scale `cpu` curves less, so that rate would be far from what limits
gamma = 0 and the client rate could not help; there eta is 0.03. Scale `smoke` is too small for the paper's statements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

import parley as pl
from parley_papers.charles2021.problems import characters, dirichlet_images, pachinko_images
from parley_papers.charles2021.trained_arms import at_end, having_rates, local_update
from parley_papers.figures.training_curves import ArmCurve, training_curves
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, at_least, claims, holds, study
from parley_papers.training_problem import Recipe
from parley_papers.trials import Arm, ArmRun, trained, tuned

STEPS = 10
EARLY = 0.1
"""Share of the rounds after which "early" is measured."""


@dataclass(frozen=True)
class _Size:
    gammas: tuple[float, ...]
    etas: tuple[float, ...]
    tuning: int
    """Rounds of the runs that choose eta: whole ones, but at scale `paper`."""
    rounds: int
    every: int
    seeds: tuple[int, ...]


_FIXED: dict[Scale, _Size] = {
    "smoke": _Size((0.0, 0.1, 1.0), (0.03,), 0, 40, 2, (0,)),
    "cpu": _Size((0.0, 0.01, 0.1, 0.5), (0.03,), 0, 400, 10, (0, 1, 2)),
    "paper": _Size((0.0, 1e-3, 1e-2, 1e-1, 1.0, 10.0), (0.01,), 0, 4000, 50, (0, 1, 2)),
}
_TUNED: dict[Scale, _Size] = {
    "smoke": _Size((0.0, 0.1, 1.0), (0.1, 0.3), 5, 40, 4, (0,)),
    "cpu": _Size((0.0, 0.1, 1.0, 3.0), (0.3, 1.0, 3.0, 10.0), 400, 400, 10, (0, 1, 2)),
    "paper": _Size(
        (0.0, 1e-3, 1e-2, 1e-1, 1.0, 10.0), tuple(10 ** np.arange(-3, 1.25, 0.5)), 1000, 4000, 50, (0, 1, 2)
    ),
}

_PACHINKO: dict[Scale, _Size] = {
    "smoke": _FIXED["smoke"],
    "cpu": _Size((0.0, 0.01, 0.1, 0.5), (0.03,), 0, 2000, 50, (0, 1, 2)),
    "paper": _FIXED["paper"],
}
_LONG: dict[Scale, _Size] = {
    "smoke": _TUNED["smoke"],
    "cpu": _Size((0.0, 0.1, 1.0, 3.0), (0.3, 1.0, 3.0, 10.0), 1500, 1500, 50, (0, 1, 2)),
}
"""Does a small gamma overtake later? As far as 3 hours of two cores go, for both together."""


def _scales(sizes: dict[Scale, _Size], what: dict[Scale, str]) -> dict[Scale, str]:
    return {scale: f"{what[scale]}; {len(size.gammas)} gammas, {size.rounds} rounds" for scale, size in sizes.items()}


@study(
    "001/fig12",
    scales=_scales(_FIXED, {"smoke": "digits", "cpu": "CIFAR-10 at 16x16, small CNN", "paper": "CIFAR-10, ResNet-18"}),
)
def fig12(scale: Scale, context: StudyContext) -> StudyResult:
    """With one server rate for all, large client rates are faster early and small ones lower late."""
    size, problem = _FIXED[scale], Recipe(dirichlet_images, (scale,))
    return _compared(size, problem, dict.fromkeys(size.gammas, size.etas[0]), {}, context)


@study(
    "001/fig12-cifar100",
    scales=_scales(
        _PACHINKO,
        {
            "smoke": "digits",
            "cpu": "CIFAR-100 at 16x16 by Pachinko, small CNN, 2 hours",
            "paper": "CIFAR-100, ResNet-18",
        },
    ),
)
def fig12_cifar100(scale: Scale, context: StudyContext) -> StudyResult:
    """The same on CIFAR-100 by Pachinko, the paper's data set, for longer."""
    size, problem = _PACHINKO[scale], Recipe(pachinko_images, (scale,))
    return _compared(size, problem, dict.fromkeys(size.gammas, size.etas[0]), {}, context)


@study(
    "001/fig13",
    scales=_scales(
        _TUNED, {"smoke": "made-up text", "cpu": "Shakespeare, LSTM 64", "paper": "Shakespeare, LSTM 2 x 256"}
    ),
)
def fig13(scale: Scale, context: StudyContext) -> StudyResult:
    """With the server rate tuned to each client rate, large client rates gain more early; small ones are lower late."""
    return _tuned(_TUNED[scale], Recipe(characters, (scale,)), context)


@study("001/fig13-long", scales=_scales(_LONG, {"smoke": "made-up text", "cpu": "Shakespeare, LSTM 64, 2 hours"}))
def fig13_long(scale: Scale, context: StudyContext) -> StudyResult:
    """The same for longer, every server rate chosen by whole runs."""
    return _tuned(_LONG[scale], Recipe(characters, (scale,)), context)


def _tuned(size: _Size, problem: Recipe, context: StudyContext) -> StudyResult:
    """Every gamma with the eta that lowers the loss most."""
    arms = {gamma: _arm(problem, gamma, size.tuning, max(size.tuning // 10, 1)) for gamma in size.gammas}
    chosen = tuned(
        list(arms.values()),
        size.etas,
        lambda arm, eta: having_rates(arm, (_gamma(arm), eta)),
        at_end(lambda trial: -trial.loss),
        context,
    )
    return _compared(
        size, problem, {gamma: chosen.best[arm.name] for gamma, arm in arms.items()}, chosen.plain(), context
    )


def _arm(problem: Recipe, gamma: float, rounds: int, every: int) -> Arm:
    return local_update(f"gamma = {gamma:g}", problem, steps=STEPS, rounds=rounds, every=every).having(lr=gamma)


def _gamma(arm: Arm) -> float:
    assert isinstance(arm.algorithm, pl.LocalUpdate)
    return arm.algorithm.lr


def _compared(
    size: _Size, problem: Recipe, etas: dict[float, float], table: dict[str, Any], context: StudyContext
) -> StudyResult:
    """Every gamma with its eta and all seeds."""
    arms = {
        gamma: having_rates(_arm(problem, gamma, size.rounds, size.every), (gamma, eta)) for gamma, eta in etas.items()
    }
    by_name = trained(arms.values(), size.seeds, context)
    trials = {gamma: by_name[arm.name] for gamma, arm in arms.items()}
    kept = {gamma: runs for gamma, runs in trials.items() if not any(trial.diverged for trial in runs)}
    shown = {"Training loss": [ArmCurve(f"$\\gamma$ = {g:g}", runs, i) for i, (g, runs) in enumerate(kept.items())]}
    about = problem().about
    data = {
        "problem": about,
        "etas": etas,
        "tuning": table,
        "diverged": [gamma for gamma in trials if gamma not in kept],
        "overtakes": overtakes(kept),
        "trials": [trial.plain() for runs in trials.values() for trial in runs],
    }
    figures = {"training-loss": training_curves(shown, "loss", about)} if kept else {}
    return context.result([*_trains(kept), *claims(_trade_off(kept), context.scale)], figures, data)


def _trains(kept: Mapping[float, Sequence[ArmRun]]) -> list[Check]:
    """Enough client rates are usable, and the best lowers the loss."""
    fallen = max((trial.loss[0] / trial.loss[-1] for runs in kept.values() for trial in runs), default=0.0)
    return [
        at_least("client rates that do not diverge", len(kept), 3),
        at_least("first loss over last loss, best of all", float(fallen), 1.1),
    ]


def _trade_off(kept: Mapping[float, Sequence[ArmRun]]) -> list[Check]:
    """The paper's: some client rate above 0 is ahead early, and one below the largest is ahead late."""
    if len(kept) < 2:
        return []
    early = {gamma: _mean(runs, _early_loss) for gamma, runs in kept.items()}
    late = {gamma: _mean(runs, at_end(lambda trial: trial.loss)) for gamma, runs in kept.items()}
    first, last = min(early, key=early.__getitem__), min(late, key=late.__getitem__)
    still, largest = min(early), max(early)
    return [
        holds("best gamma early", first > still, first, still, ">"),
        at_least("early: loss of gamma = 0 over the best's", early[still] / early[first], 1.02),
        holds("best gamma late", last < largest, last, largest, "<"),
        at_least("late: loss of the largest gamma over the best's", late[largest] / late[last], 1.02),
        holds("best gamma falls from early to late, or stays", last <= first, last, first, "<="),
    ]


def overtakes(kept: Mapping[float, Sequence[ArmRun]]) -> dict[str, float | None]:
    """From which round on the mean loss of a smaller gamma stays below a larger one's; None: it is not at the end."""
    means = {gamma: np.mean([trial.loss for trial in runs], axis=0) for gamma, runs in kept.items()}
    crossings: dict[str, float | None] = {}
    for small, large in combinations(sorted(means), 2):
        above = np.flatnonzero(means[small] >= means[large])
        after = int(above[-1]) + 1 if len(above) else 0
        rounds = kept[small][0].rounds
        crossings[f"{small:g} below {large:g}"] = float(rounds[after]) if after < len(rounds) else None
    return crossings


def _mean(trials: Sequence[ArmRun], value: Callable[[ArmRun], float]) -> float:
    return float(np.mean([value(trial) for trial in trials]))


def _early_loss(trial: ArmRun) -> float:
    return float(trial.loss[np.argmin(np.abs(trial.rounds - EARLY * trial.rounds[-1]))])
