"""Figure 4: accuracy over rounds on writers (skewed features) and on labels dealt by Dir(.5) (skewed labels)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from parley_papers.figures.training_curves import training_curves
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, at_least, at_most, claims, study
from parley_papers.trials import trained
from parley_papers.yue2022.arms import SIZES, Method, arm, chosen, curves, mean_at, numbers, tuned_trials
from parley_papers.yue2022.setting import Images

PANELS: dict[str, tuple[Images, float]] = {
    "MNIST by writer": ("writers", 0.5),
    "MNIST, Dir(.5)": ("mnist", 0.5),
    "Fashion-MNIST, Dir(.5)": ("fashion", 0.5),
}
BASELINES: tuple[Method, ...] = ("FedAvg", "FedNova", "DataShare", "centralised")
NEAR = 0.03
"""How far below centralised training counts as similar."""


@study(
    "003/fig4",
    scales={
        "smoke": "digits, 12 clients, 3 rounds",
        "cpu": "MNIST by writer in place of FEMNIST, MNIST and Fashion-MNIST; 30 rounds, beta = .3, seeds 0-2",
        "paper": "50 rounds, beta = 1",
    },
)
def fig4(scale: Scale, context: StudyContext) -> StudyResult:
    """NTK-FL is ahead of FedAvg, FedNova and DataShare, and close to centralised training, on three federations."""
    return _measured(scale, context, PANELS, False)


@study(
    "003/fig4-authors",
    scales={
        "smoke": "digits, 12 clients, 3 rounds",
        "cpu": "MNIST and Fashion-MNIST, the authors' index sets, 21 clients a round, 12 times, beta = .3, seeds 0-2",
    },
)
def fig4_authors(scale: Scale, context: StudyContext) -> StudyResult:
    """Figure 4 on the authors' own index sets; there are none of FEMNIST."""
    return _measured(scale, context, {name: panel for name, panel in PANELS.items() if panel[0] != "writers"}, True)


def _measured(
    scale: Scale, context: StudyContext, panels: Mapping[str, tuple[Images, float]], authors: bool
) -> StudyResult:
    size = SIZES[scale]
    checks: list[Check] = [at_most("equal steps: FedNova's loss off FedAvg's", _apart(scale, context, authors), 0.0)]
    parts, data = {}, {}
    for title, (images, alpha) in panels.items():
        names = [name for name in BASELINES if name != "FedNova" or images == "writers"]
        arms = [arm(name, scale, images, alpha, authors=authors) for name in names]
        settings = chosen(arms, context, size.steps[:1])
        ours = arm("NTK-FL", scale, images, alpha, beta=size.beta, authors=authors)
        trials = tuned_trials([*arms, ours], context, settings)
        end = {name: mean_at(runs, size.rounds) for name, runs in trials.items()}
        checks += claims(
            [
                *(
                    at_least(f"{title}: NTK-FL over {name}", end["NTK-FL"].value - end[name].value, 0)
                    for name in names
                    if name != "centralised"
                ),
                at_least(f"{title}: NTK-FL over centralised", end["NTK-FL"].value - end["centralised"].value, -NEAR),
            ],
            scale,
        )
        parts[title] = curves(trials)
        data[title] = numbers(trials, settings) | {"last round": {name: mean.plain() for name, mean in end.items()}}
    about = f"NTK-FL with beta = {size.beta:g}; where all take as many steps FedNova is FedAvg"
    return context.result(checks, {"curves": training_curves(parts, "accuracy", about)}, data)


def _apart(scale: Scale, context: StudyContext, authors: bool) -> float:
    """FedNova and FedAvg where all take as many steps: the same."""
    names: tuple[Method, ...] = ("FedAvg", "FedNova")
    pair = [arm(name, scale, rounds=2, every=1, authors=authors).having(lr=0.01) for name in names]
    runs = trained(pair, [0], context)
    return float(np.abs(runs["FedAvg"][0].loss - runs["FedNova"][0].loss).max())
