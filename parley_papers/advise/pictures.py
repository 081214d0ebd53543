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

import parley as pl
from parley_papers.advise.judge import traffic
from parley_papers.figures.advice import megabytes_figure
from parley_papers.harness import Scale, StudyContext, StudyResult, at_least, at_most, claims, study
from parley_papers.spread import spread
from parley_papers.yue2022.setting import Images, clients

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
    jobs: Sequence[tuple[Scale, Images, int]],
    measurements: Sequence[dict[str, Any]],
    scale: Scale,
    context: StudyContext,
) -> StudyResult:
    """The checks, the figure and the numbers."""
    sets = list(dict.fromkeys(images for _, images, _ in jobs))
    by_set: dict[str, list[dict[str, Any]]] = {NAMES[images]: [] for images in sets}
    for (_, images, _), measurement in zip(jobs, measurements, strict=True):
        by_set[NAMES[images]].append(measurement)
    checks = []
    for name, each in by_set.items():
        last = {arm: float(np.mean([measurement[arm]["accuracy"][-1] for measurement in each])) for arm in _ARMS}
        spent = max(measurement[arm]["megabytes"][-1] / measurement["budget"] for measurement in each for arm in _ARMS)
        checks += claims(
            [at_least(f"{name}: {arm} less FedAvg, accuracy", last[arm] - last[_ARMS[0]], 0.0) for arm in _ARMS[1:]],
            scale,
        )
        checks.append(at_most(f"{name}: megabytes over the budget, at most", spent, 1.0 + 1e-9))
    curves = {
        name: {
            arm: [(measurement[arm]["megabytes"], measurement[arm]["accuracy"]) for measurement in each]
            for arm in _ARMS
        }
        for name, each in by_set.items()
    }
    return context.result(checks, {"megabytes": megabytes_figure(curves)}, {"sets": by_set})


def measured(job: tuple[Scale, Images, int]) -> dict[str, Any]:
    """Accuracy and megabytes of the three arms, round by round."""
    scale, images, seed = job
    problem = clients(scale, images, 0.1)
    shown = problem.evaluated_on("validation")
    plain = pl.Study(
        pl.FedAvg(),
        shown,
        model=problem.model,
        rounds=ROUNDS[scale],
        cohort=pl.Sampling(problem.cohort),
        seed=seed,
        evaluation=pl.Evaluation(clients="none"),
        workers=1,
    )
    budget = ROUNDS[scale] * traffic(plain) / 1e6
    advice = pl.advise(plain, megabytes=budget, whole=False, pilot=True)
    assert advice.first is not None
    assert advice.pilot is not None
    first, last = advice.first, advice.ranked[0]
    like = pl.FedAvg()
    arms = {_ARMS[0]: (plain, "lr 0.1, one epoch")}
    for name, ranked in zip(_ARMS[1:], (first, last), strict=True):
        study = replace(
            plain, algorithm=ranked.candidate.algorithm(like), channels=ranked.candidate.channels, rounds=ranked.limit
        )
        arms[name] = study, str(ranked.candidate)
    result: dict[str, Any] = {"seed": seed, "budget": budget, "pilot": advice.pilot.sentence()}
    for name, (study, setting) in arms.items():
        run = pl.train(study, data=problem.evaluated_on("test"))
        rounds, accuracy = run.series("central/accuracy")
        sent = [run.series(metric)[1] for metric in ("up/bytes", "down/bytes")]
        spent = np.concatenate([[0.0], np.cumsum(np.sum(sent, axis=0))]) / 1e6
        result[name] = {
            "setting": setting,
            "megabytes": spent[np.asarray(rounds, dtype=int)].tolist(),
            "accuracy": np.asarray(accuracy).tolist(),
        }
    return result
