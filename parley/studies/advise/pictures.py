"""Does advice help on pictures? Fashion-MNIST dealt by Dir(.1) and MNIST by writer, at equal megabytes.

An MLP of 100 units, 20 of 300 clients (of all writers) a round. FedAvg as it comes (lr 0.1, one epoch, batches of 32)
trains for so many rounds; the advised settings get the megabytes that this took. Advice sees the validation samples
(with a pilot), results are of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from parley.advise.plan.candidates import traffic
from parley.advise.plan.make import advise
from parley.advise.plan.reasons import describe
from parley.algorithms.local_update import FedAvg
from parley.engine.settings import Evaluation, Sampling
from parley.report.papers.advice import megabytes_figure
from parley.studies.harness import Scale, StudyContext, StudyResult, at_least, at_most, claims, study
from parley.studies.paper003.setting import Images, clients
from parley.studies.spread import spread
from parley.study.description import Study
from parley.study.train import make_task, train

NAMES: dict[Images, str] = {"fashion": "Fashion-MNIST, Dir(.1)", "writers": "MNIST by writer"}
ROUNDS: dict[Scale, int] = {"smoke": 8, "cpu": 50}
"""Of FedAvg; the others get its megabytes."""
SEEDS: dict[Scale, tuple[int, ...]] = {"smoke": (0,), "cpu": (0, 1, 2)}
_ARMS = ("FedAvg as it comes", "advised", "advised, with a pilot")


@study(
    "advise/pictures",
    scales={"smoke": "digits in place of pictures, 8 rounds", "cpu": "the megabytes of 50 rounds of FedAvg, seeds 0-2"},
)
def pictures(scale: Scale, context: StudyContext) -> StudyResult:
    """Advised settings against FedAvg with its default settings on real pictures, at equal megabytes."""
    sets: list[Images] = ["fashion"] if scale == "smoke" else ["fashion", "writers"]
    jobs = [(scale, images, seed) for images in sets for seed in SEEDS[scale]]
    return summarised(jobs, spread(measured, jobs, context, "pictures"), scale, context)


def summarised(
    jobs: Sequence[tuple[Scale, Images, int]], found: Sequence[dict[str, Any]], scale: Scale, context: StudyContext
) -> StudyResult:
    """The checks, the figure and the numbers."""
    sets = list(dict.fromkeys(images for _, images, _ in jobs))
    by_set: dict[str, list[dict[str, Any]]] = {NAMES[images]: [] for images in sets}
    for (_, images, _), one in zip(jobs, found, strict=True):
        by_set[NAMES[images]].append(one)
    checks = []
    for name, each in by_set.items():
        last = {arm: float(np.mean([one[arm]["accuracy"][-1] for one in each])) for arm in _ARMS}
        spent = max(one[arm]["megabytes"][-1] / one["budget"] for one in each for arm in _ARMS)
        checks += claims(
            [at_least(f"{name}: {arm} less FedAvg, accuracy", last[arm] - last[_ARMS[0]], 0.0) for arm in _ARMS[1:]],
            scale,
        )
        checks.append(at_most(f"{name}: megabytes over the budget, at most", spent, 1.0 + 1e-9))
    curves = {
        name: {arm: [(one[arm]["megabytes"], one[arm]["accuracy"]) for one in each] for arm in _ARMS}
        for name, each in by_set.items()
    }
    return context.result(checks, {"megabytes": megabytes_figure(curves)}, {"sets": by_set})


def measured(job: tuple[Scale, Images, int]) -> dict[str, Any]:
    """Accuracy and megabytes of the three arms, round by round."""
    scale, images, seed = job
    problem = clients(scale, images, 0.1)
    shown = problem.evaluated_on("validation")
    plain = Study(
        FedAvg(), shown, model=problem.model, rounds=ROUNDS[scale], cohort=Sampling(problem.cohort), seed=seed,
        evaluation=Evaluation(clients="none"), workers=1,
    )  # fmt: skip
    task = make_task(shown, problem.model, seed)
    budget = ROUNDS[scale] * problem.cohort * traffic(FedAvg(), task) / 1e6
    advice = advise(plain, megabytes=budget, whole=False, pilot=True)
    assert advice.first is not None
    assert advice.pilot is not None
    first, last = advice.first, advice.ranked[0]
    like = FedAvg()
    arms = {_ARMS[0]: (plain, "lr 0.1, one epoch")}
    for name, one in zip(_ARMS[1:], (first, last), strict=True):
        own = replace(plain, algorithm=one.candidate.algorithm(like), channels=one.candidate.channels, rounds=one.limit)
        arms[name] = own, describe(one.candidate)
    found: dict[str, Any] = {"seed": seed, "budget": budget, "pilot": advice.pilot.sentence()}
    for name, (own, setting) in arms.items():
        run = train(own, data=problem.evaluated_on("test"))
        rounds, accuracy = run.series("central/accuracy")
        sent = [run.series(metric)[1] for metric in ("up/bytes", "down/bytes")]
        spent = np.concatenate([[0.0], np.cumsum(np.sum(sent, axis=0))]) / 1e6
        found[name] = {
            "setting": setting, "megabytes": spent[np.asarray(rounds, dtype=int)].tolist(),
            "accuracy": np.asarray(accuracy).tolist(),
        }  # fmt: skip
    return found
