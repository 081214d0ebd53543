"""Figure 3: NTK-FL and FedAvg, and both with subsampled and projected data (NTK-FL', FedAvg'; beta = .4, d' = 100)."""

from __future__ import annotations

from parley_papers.figures.training_curves import training_curves
from parley_papers.harness import Scale, StudyContext, StudyResult, at_least, at_most, claims, study
from parley_papers.yue2022.arms import SIZES, arm, chosen, curves, mean_at, numbers, trains, tuned_trials

BETA = 0.4
EARLY, LATE = 10, 30
"""The rounds at which NTK-FL and FedAvg are compared."""


@study(
    "003/fig3",
    scales={
        "smoke": "digits, 12 clients, 3 rounds",
        "cpu": "Fashion-MNIST, 300 clients, 30 rounds (NTK-FL 10), seeds 0-2",
        "paper": "50 rounds, t in 100 ... 2000",
    },
)
def fig3(scale: Scale, context: StudyContext) -> StudyResult:
    """NTK-FL is ahead of FedAvg, and loses less than it does to subsampling and projection."""
    return _measured(scale, context, False)


@study(
    "003/fig3-authors",
    scales={
        "smoke": "digits, 12 clients, 3 rounds",
        "cpu": "the authors' index sets, 21 clients a round, 12 times, seeds 0-2",
    },
)
def fig3_authors(scale: Scale, context: StudyContext) -> StudyResult:
    """Figure 3 on the authors' own index sets."""
    return _measured(scale, context, True)


def _measured(scale: Scale, context: StudyContext, authors: bool) -> StudyResult:
    width = 16 if scale == "smoke" else 100
    short = min(EARLY, SIZES[scale].rounds)
    arms = [
        arm("NTK-FL", scale, rounds=short, authors=authors),
        arm("FedAvg", scale, authors=authors),
        arm("NTK-FL", scale, projected=width, beta=BETA, name="NTK-FL'", authors=authors),
        arm("FedAvg", scale, projected=width, beta=BETA, name="FedAvg'", authors=authors),
    ]
    settings = chosen([each for each in arms if "FedAvg" in each.name], context)
    trials = tuned_trials(arms, context, settings)
    early = {name: mean_at(runs, EARLY) for name, runs in trials.items()}
    late = {name: mean_at(trials[name], LATE) for name in ("FedAvg", "FedAvg'", "NTK-FL'")}
    checks = [trains(trials)]
    lost = {"NTK-FL": early["NTK-FL"] - early["NTK-FL'"], "FedAvg": early["FedAvg"] - early["FedAvg'"]}
    checks += claims(
        [
            at_least(f"NTK-FL at round {short}, all samples", early["NTK-FL"].value, 0.82),
            at_least(
                f"NTK-FL at round {short} over FedAvg at round {LATE}", early["NTK-FL"].value - late["FedAvg"].value, 0
            ),
            at_least(f"NTK-FL' over FedAvg' at round {LATE}", late["NTK-FL'"].value - late["FedAvg'"].value, 0),
            at_most(
                f"round {short}: what NTK-FL' loses beyond what FedAvg' does",
                lost["NTK-FL"].value - lost["FedAvg"].value,
                0,
            ),
        ],
        scale,
    )
    problem = arms[0].problem()
    about = f"{problem.about}; ': beta = {BETA:g}, inputs projected to {width}"
    figure = training_curves({"Figure 3": curves(trials)}, "accuracy", about)
    data = numbers(trials, settings) | {
        f"round {EARLY}": {name: mean.plain() for name, mean in early.items()},
        f"round {LATE}": {name: mean.plain() for name, mean in late.items()},
    }
    return context.result(checks, {"curves": figure}, data)
