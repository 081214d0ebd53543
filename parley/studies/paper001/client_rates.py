"""Paper 001, Figures 12 and 13: the client learning rate trades convergence for accuracy in non-convex training too.

Theta_{1:10}, gradient descent on the server, alpha = 0. Figure 12 holds eta fixed; Figure 13 tunes eta for each gamma
by the training loss at the end of a shorter run. Both tell the loss on a fixed sample of the training data. The paper
fixes eta = 0.01 for ResNet-18. The small CNN of scale `cpu` curves less, so that rate would be far from what limits
gamma = 0 and the client rate could not help; there eta is 0.03. Scale `smoke` is too small for the paper's statements:
its checks say only that everything trains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from parley.studies.curves import Line, lines
from parley.studies.harness import Check, Context, Result, Scale, at_least, holds, study
from parley.studies.paper001.problems import pictures, plays
from parley.studies.paper001.trials import Arm, Trial, run, tuned
from parley.studies.problem import Problem

STEPS = 10
EARLY = 0.1
"""Share of the rounds after which "early" is measured."""


@dataclass(frozen=True)
class _Size:
    gammas: tuple[float, ...]
    etas: tuple[float, ...]
    tuning: int
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
    "cpu": _Size((0.0, 0.1, 1.0, 3.0), (0.3, 1.0, 3.0, 10.0), 60, 400, 10, (0, 1, 2)),
    "paper": _Size(
        (0.0, 1e-3, 1e-2, 1e-1, 1.0, 10.0), tuple(10 ** np.arange(-3, 1.25, 0.5)), 1000, 4000, 50, (0, 1, 2)
    ),
}


def _scales(sizes: dict[Scale, _Size], what: dict[Scale, str]) -> dict[Scale, str]:
    return {scale: f"{what[scale]}; {len(own.gammas)} gammas, {own.rounds} rounds" for scale, own in sizes.items()}


@study(
    "001/fig12",
    scales=_scales(_FIXED, {"smoke": "digits", "cpu": "CIFAR-10 at 16x16, small CNN", "paper": "CIFAR-10, ResNet-18"}),
)
def fig12(scale: Scale, context: Context) -> Result:
    """With one server rate for all, large client rates are faster early and small ones lower late."""
    size, problem = _FIXED[scale], pictures(scale)
    arms = [Arm(f"gamma = {gamma:g}", gamma=gamma, eta=size.etas[0]) for gamma in size.gammas]
    return _compared(problem, size, arms, {}, context)


@study(
    "001/fig13",
    scales=_scales(
        _TUNED, {"smoke": "made-up text", "cpu": "Shakespeare, LSTM 64", "paper": "Shakespeare, LSTM 2 x 256"}
    ),
)
def fig13(scale: Scale, context: Context) -> Result:
    """With the server rate tuned to each client rate, large client rates gain more early; small ones are lower late."""
    size, problem = _TUNED[scale], plays(scale)
    arms: list[Arm] = []
    table: dict[str, object] = {}
    for gamma in size.gammas:
        # One arm per gamma: only eta is chosen, from the same grid for each.
        own, scores = tuned(
            problem, [Arm(f"gamma = {gamma:g}")], [(gamma, eta) for eta in size.etas], _final(lambda t: -t.loss),
            context, steps=STEPS, rounds=size.tuning, every=max(size.tuning // 10, 1),
        )  # fmt: skip
        arms += own
        table |= scores
    return _compared(problem, size, arms, table, context)


def _compared(problem: Problem, size: _Size, arms: list[Arm], table: dict[str, object], context: Context) -> Result:
    work = [(arm, seed) for arm in arms for seed in size.seeds]
    trials: dict[str, list[Trial]] = {arm.name: [] for arm in arms}
    for arm, seed in context.track(work, "training"):
        trials[arm.name].append(
            run(problem, arm, problem.tell, steps=STEPS, rounds=size.rounds, every=size.every, seed=seed)
        )
    kept = [arm for arm in arms if not any(trial.diverged for trial in trials[arm.name])]
    shown = {"Training loss": [Line(f"$\\gamma$ = {a.gamma:g}", trials[a.name], i) for i, a in enumerate(kept)]}
    data = {
        "problem": problem.about, "etas": {arm.name: arm.eta for arm in arms}, "tuning": table,
        "diverged": [arm.name for arm in arms if arm not in kept],
        "trials": [trial.plain() for own in trials.values() for trial in own],
    }  # fmt: skip
    figures = {"training-loss": lines(shown, "loss", problem.about)} if kept else {}
    checks = _trains(kept, trials)
    return context.result(checks if context.scale == "smoke" else checks + _claims(kept, trials), figures, data)


def _trains(kept: list[Arm], trials: dict[str, list[Trial]]) -> list[Check]:
    """Enough client rates are usable, and the best lowers the loss."""
    fallen = max((trial.loss[0] / trial.loss[-1] for arm in kept for trial in trials[arm.name]), default=0.0)
    return [
        at_least("client rates that do not diverge", len(kept), 3),
        at_least("first loss over last loss, best of all", float(fallen), 1.1),
    ]


def _claims(kept: list[Arm], trials: dict[str, list[Trial]]) -> list[Check]:
    """The paper's: some client rate above 0 is ahead early, and one below the largest is ahead late."""
    if len(kept) < 2:
        return []
    early = {arm.gamma: _mean(trials[arm.name], _at(EARLY)) for arm in kept}
    late = {arm.gamma: _mean(trials[arm.name], _final(lambda t: t.loss)) for arm in kept}
    first, last = min(early, key=early.__getitem__), min(late, key=late.__getitem__)
    still, largest = min(early), max(early)
    return [
        holds("best gamma early", first > still, first, still, ">"),
        at_least("early: loss of gamma = 0 over the best's", early[still] / early[first], 1.02),
        holds("best gamma late", last < largest, last, largest, "<"),
        at_least("late: loss of the largest gamma over the best's", late[largest] / late[last], 1.02),
        holds("best gamma falls from early to late, or stays", last <= first, last, first, "<="),
    ]


def _mean(trials: list[Trial], value: Callable[[Trial], float]) -> float:
    return float(np.mean([value(trial) for trial in trials]))


def _at(share: float) -> Callable[[Trial], float]:
    def loss(trial: Trial) -> float:
        return float(trial.loss[np.argmin(np.abs(trial.rounds - share * trial.rounds[-1]))])

    return loss


def _final(series: Callable[[Trial], np.ndarray]) -> Callable[[Trial], float]:
    """The mean over the last tenth of the evaluations."""
    return lambda trial: float(series(trial)[-max(len(trial.loss) // 10, 1) :].mean())
