"""Paper 004, Table 3: how many layers the representation phi has.

The paper finds the first 16 of ResNet-20's 20 layers best. The small network of scale `cpu` has 7 layers, of which 5
correspond to that; all 7 in phi is FedAvg with alpha tau = 50 steps. What Table 3 calls L = 1 is L = 0 in the authors'
figure, every layer in h: FedAvg with tau = 5, which Table 2 has at 46.5% where Table 3 has 40.1%.
"""

from __future__ import annotations

from parley_papers.figures.accuracy_ladder import MeanRow, accuracy_ladder
from parley_papers.gholami2025.image_arms import SIZES, TAU, accuracies, compared, image_arm, numbers
from parley_papers.gholami2025.image_problem import data_sets
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, at_least, claims, study

PAPER = {0: 0.4013, 4: 0.3730, 8: 0.3779, 12: 0.4125, 16: 0.4687, 20: 0.4383}
"""Table 3's accuracies on CIFAR-10; 0 is printed as 1."""
_WORDS: dict[Scale, str] = {
    "smoke": "digits, 20 rounds",
    "cpu": "CIFAR-10 at 16x16, a CNN of 7 layers, 300 rounds, 3 seeds",
    "paper": "CIFAR-10, CIFAR-100 and SVHN, ResNet-20, 4000 rounds, 20 seeds",
}


@study("004/table3", scales=_WORDS)
def table3(scale: Scale, context: StudyContext) -> StudyResult:
    """About four fifths of the layers in the representation are best."""
    size = SIZES[scale]
    checks: list[Check] = []
    figures, data = {}, {}
    for name in data_sets(scale, "cifar10", "cifar100", "svhn"):
        # All but the last layer is the default split, so it is written as such and shared with Tables 1 and 2.
        most = max(size.layers)
        arms = {
            count: image_arm(f"L = {count}", scale, name, alpha=size.alpha, layers=None if count == most else count)
            for count in size.layers
        }
        arms[most + 1] = image_arm(f"L = {most + 1}", scale, name, tau=size.alpha * TAU)
        trials = compared(list(arms.values()), context)
        by_name = accuracies(trials, context)
        means = {count: by_name[arm.name] for count, arm in arms.items()}
        least = min(mean.value for mean in means.values())
        checks.append(at_least(f"{name}: least accuracy of any L", least, 0.15))
        gains = {count: (means[size.layer] - means[count]).value for count in arms if count not in (size.layer, most)}
        checks += claims(
            [at_least(f"{name}: L = {size.layer} over L = {count}", gain, 0.0) for count, gain in gains.items()], scale
        )
        rows = [MeanRow(f"{count}", mean) for count, mean in means.items()]
        about = f"{arms[most].problem().about}; $\\tau$ = 5, $\\alpha$ = {size.alpha}, {size.rounds} rounds"
        figures[name] = accuracy_ladder(rows, "Layers in the representation", f"L of {most + 1} layers", about)
        data[name] = numbers(trials, by_name) | {"paper, of 20 layers": PAPER if name == "cifar10" else {}}
    return context.result(checks, figures, data)
