"""Paper 004, Table 2: accuracy and traffic over alpha where clients hold different classes.

The paper's accuracy rises from alpha = 1 (FedAvg) to about 10 and falls by 25 to 50. What is sent is counted from the
messages: trainable parameters, both ways, per client; statistics of normalisations apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import parley as pl
from parley_papers.figures.accuracy_ladder import MeanRow, accuracy_ladder
from parley_papers.figures.training_curves import ArmCurve, training_curves
from parley_papers.gholami2025.image_arms import RESNET, SIZES, accuracies, compared, image_arm, numbers
from parley_papers.gholami2025.image_problem import data_sets
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, at_least, claims, near, study
from parley_papers.training_problem import TrainingProblem
from parley_papers.trials import Arm, ArmRun

RISE = 0.01
"""The best of alpha = 5 and 10 above alpha = 1, at least (the paper's: 0.057)."""
FALL = 0.02
"""The best of alpha = 5 and 10 above alpha = 50 and above alpha = 100, at least (the paper's: 0.24)."""
PAPER = {1: 0.4651, 5: 0.5201, 10: 0.5224, 25: 0.3814, 50: 0.2853, 100: 0.2817}
"""Table 2's accuracies on CIFAR-10."""
_WORDS: dict[Scale, str] = {
    "smoke": "digits, 20 rounds",
    "cpu": "CIFAR-10 at 16x16, a small CNN, 300 rounds, 3 seeds",
    "paper": "CIFAR-10 and SVHN, ResNet-20, 4000 rounds, 20 seeds",
}
_ACROSS = "$\\alpha$ (1 is FedAvg)"


@study("004/table2", scales=_WORDS)
def table2(scale: Scale, context: StudyContext) -> StudyResult:
    """Averaging the representation every 5 to 10 rounds beats every round and every 50, with less traffic."""
    size = SIZES[scale]
    checks: list[Check] = []
    figures, data = {}, {}
    for name in data_sets(scale, "cifar10", "svhn"):
        arms = {alpha: image_arm(f"alpha = {alpha}", scale, name, alpha=alpha) for alpha in size.alphas}
        trials = compared(list(arms.values()), context)
        by_name = accuracies(trials, context)
        means = {alpha: by_name[arm.name] for alpha, arm in arms.items()}
        checks += _as_counted(arms, trials, f"{name}, ")
        checks += claims(_rise_and_fall(name, means), scale)
        paper = PAPER if name == "cifar10" else {}
        rows = [MeanRow(f"{alpha}", mean, paper.get(alpha)) for alpha, mean in means.items()]
        about = f"{arms[1].problem().about}; $\\tau$ = 5, {size.rounds} rounds"
        figures[name] = accuracy_ladder(rows, "Rounds between averages of the representation", _ACROSS, about)
        data[name] = numbers(trials, by_name)
    return context.result(checks, figures, data)


@study("004/batchnorm", scales={scale: words for scale, words in _WORDS.items() if scale != "paper"})
def batchnorm(scale: Scale, context: StudyContext) -> StudyResult:
    """Table 2's rise and fall in the small network with batch normalisation, as ResNet-20 has it."""
    size, name = SIZES[scale], data_sets(scale)[0]
    alphas = size.alphas if scale == "smoke" else (1, 10, 50)
    arms = {alpha: image_arm(f"alpha = {alpha}", scale, name, alpha=alpha, network="normalised") for alpha in alphas}
    trials = compared(list(arms.values()), context)
    by_name = accuracies(trials, context)
    means = {alpha: by_name[arm.name] for alpha, arm in arms.items()}
    checks = [at_least("accuracy of FedAvg", means[1].value, 0.2), *claims(_rise_and_fall(name, means), scale)]
    rows = [MeanRow(f"{a}", mean, PAPER.get(a) if scale != "smoke" else None) for a, mean in means.items()]
    about = f"{arms[1].problem().about}; $\\tau$ = 5, {size.rounds} rounds"
    figure = accuracy_ladder(rows, "With batch normalisation", _ACROSS, about)
    return context.result(checks, {"accuracy": figure}, numbers(trials, by_name))


@study(
    "004/resnet20",
    scales={"smoke": "digits, 4 rounds", "cpu": "CIFAR-10, 120 rounds (600 steps), 2 rates, 2 seeds; 3 hours"},
)
def resnet20(scale: Scale, context: StudyContext) -> StudyResult:
    """Table 2's rise in the paper's own network on its own pictures, far fewer steps."""
    size, name = RESNET[scale], data_sets(scale)[0]
    arms = {alpha: image_arm(f"alpha = {alpha}", scale, name, alpha=alpha, network="resnet20") for alpha in size.alphas}
    trials = compared(list(arms.values()), context, size, further=0)
    by_name = accuracies(trials, context, size)
    few, many = (by_name[arms[alpha].name] for alpha in size.alphas)
    trains = at_least("accuracy of FedAvg", few.value, 0.2)
    rises = at_least(f"alpha = {size.alphas[1]} over 1", (many - few).value, RISE)
    curves = [ArmCurve(f"{label}, rate {_rate(runs)}", runs, i) for i, (label, runs) in enumerate(trials.items())]
    about = f"{arms[1].problem().about}; $\\tau$ = 5"
    figure = training_curves({"Test accuracy": curves}, "accuracy", about)
    checks = [*_as_counted(arms, trials), *claims([trains, rises], scale)]
    return context.result(checks, {"accuracy": figure}, numbers(trials, by_name))


def _rate(trials: Sequence[ArmRun]) -> str:
    """As a fraction."""
    lr: float = getattr(trials[0].arm.algorithm, "lr", 0.0)
    return str(Fraction(lr))


def _as_counted(arms: Mapping[int, Arm], trials: Mapping[str, Sequence[ArmRun]], where: str = "") -> list[Check]:
    """That the messages of every alpha carried what the formula under Table 2 says."""
    checks = []
    for alpha, arm in arms.items():
        head, body = parameter_counts(arm.problem())
        expected = 2 * arm.rounds * (head + body / alpha)
        checks.append(near(f"{where}{arm.name}: parameters sent", _sent(trials[arm.name][0]), expected))
    return checks


def _sent(trial: ArmRun) -> float:
    """Trainable parameters a client receives and sends in the whole run."""
    entries = trial.metrics["entries/down"].sum() + trial.metrics["entries/up"].sum()
    return float(entries / len(trial.arm.problem().federation))


def _rise_and_fall(name: str, means: Mapping[int, pl.report.SeedMean]) -> list[Check]:
    """Of the values of alpha that were tried."""
    best = max((alpha for alpha in (5, 10) if alpha in means), key=lambda alpha: means[alpha].value)
    checks = [at_least(f"{name}: alpha = {best} over 1", (means[best] - means[1]).value, RISE)]
    for large in (50, 100):
        if large in means:
            gain = (means[best] - means[large]).value
            checks.append(at_least(f"{name}: alpha = {best} over {large}", gain, FALL))
    return checks


def parameter_counts(problem: TrainingProblem) -> tuple[int, int]:
    """Trainable parameters of the last layer and of all others."""
    module = pl.make_task(problem.federation, problem.model, seed=0).network
    sizes = [parameter.numel() for parameter in module.parameters()]
    head = sum(sizes[-2:])
    return head, sum(sizes) - head
