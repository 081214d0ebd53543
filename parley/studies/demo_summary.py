"""A comparison in plain words: every sentence follows from its numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from parley.report import Comparison, Line


def conclusions(comparison: Comparison, tested: int) -> list[str]:
    """Does joining pay, what does not pooling cost, which method is quickest; `tested`: samples of the test set."""
    lines = comparison.lines
    federated = [line for line in lines if line.group.role == "federated"]
    if not federated:
        return []
    best = max(federated, key=lambda line: line.last.value)
    by_role = {line.group.role: line for line in lines if line.group.role != "federated"}
    sentences = []
    if "alone" in by_role:
        sentences.append(_joining(best, by_role["alone"]))
    if "pooled" in by_role:
        sentences.append(_pooling(best, by_role["pooled"], tested))
    return [*sentences, _speed(comparison, federated, best, tested)]


def ranking_noise(accuracy: float, tested: int) -> float:
    """Two standard errors of the difference of two models' accuracies, if they erred independently."""
    return 2 * math.sqrt(2 * max(accuracy * (1 - accuracy), 0.0) / tested) if tested else 0.0


def _joining(best: Line, alone: Line) -> str:
    verdict = "Joining pays" if best.last.value > alone.last.value else "Joining does not pay here"
    return (
        f"{verdict}: a client's own model gets {alone.last.value:.1%} of all kinds of samples right on average"
        f"{_at_home(alone)}, the model of {best.label} {best.last.value:.1%}{_at_home(best)}."
    )


def _at_home(line: Line) -> str:
    values = [value for run in line.group.runs for value in run.clients.values() if not math.isnan(value)]
    return f" ({sum(values) / len(values):.0%} on the kinds it knows)" if values else ""


def _pooling(best: Line, pooled: Line, tested: int) -> str:
    gap = pooled.last.value - best.last.value
    if abs(gap) <= ranking_noise(pooled.last.value, tested):
        return (
            f"Keeping the data apart costs little: with all data in one place accuracy is {pooled.last.value:.1%}, and "
            f"the difference of {100 * abs(gap):.1f} points is within the noise of {tested} test samples."
        )
    if gap < 0:
        return f"Training on all data in one place got less, {pooled.last.value:.1%}; its settings may be at fault."
    return f"Keeping the data apart costs {100 * gap:.1f} points: all data in one place give {pooled.last.value:.1%}."


def _speed(comparison: Comparison, federated: Sequence[Line], best: Line, tested: int) -> str:
    first_runs = {line.label: line.successes[0] for line in federated if line.successes}
    missed = [line.label for line in federated if not line.successes]
    target = comparison.show(comparison.target)
    if not first_runs:
        return f"None of the federated methods reached {target}. {_ranking(federated, best, tested)}"
    rounds = sorted({run.round for run in first_runs.values()})
    quickest, slowest = (
        [name for name in first_runs if first_runs[name].round == end] for end in (rounds[0], rounds[-1])
    )
    first = first_runs[quickest[0]]
    text = f"To {target}, {_listed(quickest)} took {_rounds(first.round)} and {first.megabytes:.1f} MB"
    if slowest != quickest:
        last = first_runs[slowest[0]]
        text += f", {_listed(slowest)} {_rounds(last.round)} and {last.megabytes:.1f} MB"
    if missed:
        text += f"; {_listed(missed)} did not get there"
    return f"{text}. {_ranking(federated, best, tested)}"


def _ranking(federated: Sequence[Line], best: Line, tested: int) -> str:
    if len(federated) == 1:
        return f"It ended at {best.last.value:.1%}."
    within = ranking_noise(best.last.value, tested)
    near = [line.label for line in federated if line is not best and best.last.value - line.last.value <= within]
    if near:
        return f"At the end {_listed([best.label, *near])} are too close for {tested} test samples to rank."
    return f"At the end {best.label} leads by more than the noise of {tested} test samples."


def _rounds(number: int) -> str:
    return "1 round" if number == 1 else f"{number:,} rounds"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
