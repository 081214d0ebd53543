"""What the demo's numbers say, in five sentences to act on: every one follows from the numbers."""

from __future__ import annotations

import math

import numpy as np

from parley.advise.gain.result import Gains
from parley.advise.plan.advice import Advice
from parley.report import Comparison, Line

NTK = "ntk-fl (sends the data)"


def conclusions(comparison: Comparison, tested: int, gains: Gains, advice: Advice) -> list[str]:
    """Who should join, with which settings, by which method, what saves traffic and what to leave alone.

    `tested` is the number of samples in the test set.
    """
    lines = {line.label: line for line in comparison.lines}
    return [
        _joining(gains, lines["local-only"], _best(comparison)),
        _setting(advice, lines["default"], lines["advised"], tested),
        _method(comparison, lines["centralised"], tested),
        _traffic(lines["fedals"], lines["fedavg"], tested),
        _others(lines[NTK], lines["ffgb"], lines["histogram-boosting"], _best(comparison)),
    ]


def ranking_noise(accuracy: float, tested: int) -> float:
    """Two standard errors of the difference of two models' accuracies, if they erred independently."""
    return 2 * math.sqrt(2 * max(accuracy * (1 - accuracy), 0.0) / tested) if tested else 0.0


def _safe(comparison: Comparison) -> list[Line]:
    """The federated methods that keep the data where they are."""
    return [line for line in comparison.lines if line.group.role == "federated" and line.label != NTK]


def _best(comparison: Comparison) -> Line:
    return max(_safe(comparison), key=lambda line: line.last.value)


def _joining(gains: Gains, alone: Line, best: Line) -> str:
    join, stay, few = (gains.count(decision) for decision in ("join", "stay alone", "too few samples"))
    every = len(gains.clients)
    samples = float(np.median([one.samples for one in gains.clients]))
    middle = float(np.median([one.gain for one in gains.clients if math.isfinite(one.gain)]))
    return (
        f"Who should join: {_count(join, 'client')} of {every} can be told to join and {stay} to stay alone; "
        f"{every - join - stay - few} are undecided with about {samples:.0f} samples each and need more before they "
        f"are promised anything (median gain {middle:.1f}). On digits of all kinds a client's own model gets "
        f"{alone.last.value:.1%} right, {best.label} {best.last.value:.1%}."
    )


def _setting(advice: Advice, default: Line, advised: Line, tested: int) -> str:
    method = advice.best.algorithm
    steps = getattr(method, "steps", None)
    work = f"step size {getattr(method, 'lr', math.nan):.3g}" + (f" and {steps} local steps" if steps else "")
    gap = advised.last.value - default.last.value
    verdict = "worth taking" if gap > 0 else "not worth taking here"
    if abs(gap) <= ranking_noise(advised.last.value, tested):
        verdict = f"too close to tell with {tested} test samples"
    return (
        f"Which settings: for {advice.budget()} the advice is {type(method).__name__} with {work}; it ended at "
        f"{advised.last.value:.1%}, FedAvg with default settings at {default.last.value:.1%}: {verdict}."
    )


def _method(comparison: Comparison, pooled: Line, tested: int) -> str:
    best, rivals = _best(comparison), _safe(comparison)
    within = ranking_noise(best.last.value, tested)
    near = [line for line in rivals if best.last.value - line.last.value <= within]
    cheapest = min(near, key=lambda line: line.megabytes)
    tie = (
        f"{len(near)} runs, {best.label} among them, end too close to rank with {tested} test samples; of them "
        f"{cheapest.label} sends least, {_mb(cheapest)}"
        if len(near) > 1
        else f"{best.label} leads by more than the noise of {tested} test samples, for {_mb(best)}"
    )
    gap = 100 * (pooled.last.value - best.last.value)
    return f"Which method: {tie}. All data in one place would get {pooled.last.value:.1%} ({gap:+.1f} points)."


def _traffic(fedals: Line, fedavg: Line, tested: int) -> str:
    saved = 1 - fedals.megabytes / fedavg.megabytes
    lost = fedavg.last.value - fedals.last.value
    noise = ranking_noise(fedavg.last.value, tested)
    price = f"{100 * abs(lost):.1f} points {'below' if lost > 0 else 'above'} it"
    verdict = (
        "within the noise, so take it if traffic costs you"
        if abs(lost) <= noise
        else "take it only if traffic costs you more"
        if lost > 0
        else "take it"
    )
    return (
        f"Saving traffic: FedALS sends {saved:.0%} less than FedAvg ({_mb(fedals)} against {_mb(fedavg)}) and ends "
        f"{price}: {verdict}."
    )


def _others(ntk: Line, ffgb: Line, trees: Line, best: Line) -> str:
    ratio = _times(trees.megabytes / best.megabytes)
    return (
        f"What to leave alone here: NTK-FL gets {ntk.last.value:.1%} in {ntk.rounds:.0f} rounds, but the server can "
        f"read every sample it trains on; FFGB, with {ffgb.rounds:.0f} rounds, ends {_points(ffgb, best)} "
        f"{best.label}; histogram boosting, with {trees.rounds:.0f}, ends {_points(trees, best)} it and sends "
        f"{_mb(trees)}, {ratio} as much."
    )


def _points(line: Line, best: Line) -> str:
    gap = 100 * (line.last.value - best.last.value)
    return "level with" if abs(gap) < 0.05 else f"{abs(gap):.1f} points {'above' if gap > 0 else 'below'}"


def _times(ratio: float) -> str:
    return f"{ratio:.0f} times" if ratio >= 10 else f"{ratio:.1f} times"


def _mb(line: Line) -> str:
    return f"{line.megabytes:,.0f} MB" if line.megabytes >= 100 else f"{line.megabytes:.1f} MB"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
