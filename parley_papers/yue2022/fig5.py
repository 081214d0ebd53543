"""Figure 5: accuracy over the Dirichlet parameter alpha, which is smaller where clients differ more."""

from __future__ import annotations

from parley_papers.figures.interval_lines import interval_lines
from parley_papers.harness import Scale, StudyContext, StudyResult, at_least, at_most, claims, study
from parley_papers.yue2022.arms import SIZES, Method, arm, chosen, mean_at, numbers, trains, tuned_trials

METHODS: tuple[Method, ...] = ("NTK-FL", "DataShare", "FedAvg")
FLAT = 0.02
"""How much NTK-FL's accuracy may vary with alpha."""


@study(
    "003/fig5",
    scales={
        "smoke": "digits, alpha = .1, .5, 3 rounds",
        "cpu": "Fashion-MNIST, alpha = .1, .3, .5, 30 rounds, seeds 0-2",
        "paper": "alpha = .1 ... .5, 50 rounds, beta = 1",
    },
)
def fig5(scale: Scale, context: StudyContext) -> StudyResult:
    """NTK-FL's accuracy does not depend on how much labels are skewed; FedAvg's (and FedNova's) falls at alpha = .1."""
    return _measured(scale, context, False)


@study(
    "003/fig5-authors",
    scales={
        "smoke": "digits, alpha = .1, .5, 3 rounds",
        "cpu": "the authors' index sets, alpha = .1, .3, .5, 21 clients a round, 12 times, beta = .3, seeds 0-2",
    },
)
def fig5_authors(scale: Scale, context: StudyContext) -> StudyResult:
    """Figure 5 on the authors' own index sets."""
    return _measured(scale, context, True)


def _measured(scale: Scale, context: StudyContext, authors: bool) -> StudyResult:
    size = SIZES[scale]
    # Chosen where clients differ most, so that the fall there is not due to poor tuning.
    first = [arm(name, scale, alpha=size.alphas[0], authors=authors) for name in METHODS if name != "NTK-FL"]
    settings = chosen(first, context)
    arms = {
        (name, alpha): arm(
            name,
            scale,
            alpha=alpha,
            beta=size.beta if name == "NTK-FL" else None,
            name=f"{name}, alpha {alpha:g}",
            authors=authors,
        )
        for name in METHODS
        for alpha in size.alphas
    }
    chosen_settings = {each.name: settings[name] for (name, _), each in arms.items() if name in settings}
    trials = tuned_trials(list(arms.values()), context, chosen_settings)
    means = {name: [mean_at(trials[arms[name, a].name], size.rounds) for a in size.alphas] for name in METHODS}
    flat = [mean.value for mean in means["NTK-FL"]]
    checks = [trains(trials)]
    checks += claims(
        [
            at_most("NTK-FL: accuracy, largest less smallest over alpha", max(flat) - min(flat), FLAT),
            at_least(
                "FedAvg: accuracy lost from alpha = .5 to .1",
                means["FedAvg"][-1].value - means["FedAvg"][0].value,
                FLAT,
            ),
            *(
                at_least(f"alpha = {a:g}: NTK-FL over FedAvg", ours.value - theirs.value, 0)
                for a, ours, theirs in zip(size.alphas, means["NTK-FL"], means["FedAvg"], strict=True)
            ),
            at_least(
                "NTK-FL's lead over FedAvg, alpha = .1 less .5",
                (means["NTK-FL"][0].value - means["FedAvg"][0].value)
                - (means["NTK-FL"][-1].value - means["FedAvg"][-1].value),
                0,
            ),
        ],
        scale,
    )
    where = first[0].problem().about.replace(f", Dir({size.alphas[0]:g})", "")
    about = f"{where}; NTK-FL with beta = {size.beta:g}; FedNova is FedAvg here"
    lines = {"FedAvg, FedNova" if name == "FedAvg" else name: values for name, values in means.items()}
    figure = interval_lines(f"Accuracy after {size.rounds} rounds", "alpha", size.alphas, lines, about)
    data = numbers(trials, chosen_settings) | {
        name: [mean.plain() for mean in values] for name, values in means.items()
    }
    return context.result(checks, {"alpha": figure}, data)
