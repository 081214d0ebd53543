"""Figure 6: accuracy after 10 rounds over the sampling rate beta and the width d' of the projected inputs."""

from __future__ import annotations

from itertools import pairwise

from parley_papers.figures.interval_lines import interval_lines
from parley_papers.harness import Scale, StudyContext, StudyResult, at_least, claims, study
from parley_papers.yue2022.arms import arm, mean_at, numbers, trains, tuned_trials

ROUNDS = 10
_BETAS: dict[Scale, tuple[float, ...]] = {
    "smoke": (0.2, 0.8),
    "cpu": (0.1, 0.3, 0.5),
    "paper": (0.1, 0.2, 0.3, 0.4, 0.5),
}
_WIDTHS: dict[Scale, tuple[int, ...]] = {"smoke": (8, 32), "cpu": (50, 100, 200), "paper": (50, 100, 200, 300)}
NOISE = 0.005
"""What a step to a larger beta or width may lose by chance."""


@study(
    "003/fig6",
    scales={
        "smoke": "digits, 2 x 2 settings, 2 rounds",
        "cpu": "Fashion-MNIST, 3 x 3 settings, 10 rounds, seeds 0-2",
        "paper": "5 x 4 settings",
    },
)
def fig6(scale: Scale, context: StudyContext) -> StudyResult:
    """More samples a round and wider projections give CP-NTK-FL more accuracy."""
    betas, widths = _BETAS[scale], _WIDTHS[scale]
    rounds = 2 if scale == "smoke" else ROUNDS
    arms = {
        (beta, width): arm(
            "NTK-FL", scale, projected=width, beta=beta, rounds=rounds, every=rounds, name=f"beta {beta:g}, d' {width}"
        )
        for beta in betas
        for width in widths
    }
    trials = tuned_trials(list(arms.values()), context, {})
    mean = {point: mean_at(trials[each.name], rounds) for point, each in arms.items()}
    steps = {
        "beta": min(mean[b, w].value - mean[a, w].value for a, b in pairwise(betas) for w in widths),
        "d'": min(mean[b, w].value - mean[b, v].value for b in betas for v, w in pairwise(widths)),
    }
    checks = [trains(trials)]
    checks += claims(
        [
            at_least("a step to a larger beta gains, at least", steps["beta"], -NOISE),
            at_least("a step to a larger d' gains, at least", steps["d'"], -NOISE),
            at_least(
                "from the smallest to the largest of both",
                mean[betas[-1], widths[-1]].value - mean[betas[0], widths[0]].value,
                0.01,
            ),
        ],
        scale,
    )
    lines = {f"d' = {width}": [mean[beta, width] for beta in betas] for width in widths}
    about = arms[betas[0], widths[0]].problem().about.replace(f", projected to {widths[0]}", ", projected inputs")
    figure = interval_lines(f"Accuracy after {rounds} rounds", "beta", betas, lines, about)
    data = numbers(trials, {}) | {f"beta {b:g}, d' {w}": value.plain() for (b, w), value in mean.items()}
    return context.result(checks, {"settings": figure}, data)
