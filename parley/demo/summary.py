"""What the demo's numbers say, in five sentences to act on: every one follows from the numbers."""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import binom

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
        _setting(advice, lines["default"], lines["advised"], lines["fedavg"], tested),
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


def median_interval(values: list[float], level: float) -> tuple[float, float]:
    """Order statistics that enclose the median of what the values were drawn from; infinite where they are too few."""
    ordered, n = sorted(values), len(values)
    below = int(binom.ppf((1 - level) / 2, n, 0.5)) - 1
    return (ordered[below], ordered[n - 1 - below]) if below >= 0 else (-math.inf, math.inf)


def _joining(gains: Gains, alone: Line, best: Line) -> str:
    join, stay = (gains.count(decision) for decision in ("join", "stay alone"))
    undecided = len(gains.clients) - join - stay
    estimated = [client.gain for client in gains.clients if math.isfinite(client.gain)]
    low, high = median_interval(estimated, gains.level)
    group = "yes" if low > 1 else "no" if high < 1 else "undecided"
    interval = f", {gains.level:.0%} interval over clients {low:.1f} to {high:.1f}" if math.isfinite(high) else ""
    samples = float(np.median([client.samples for client in gains.clients]))
    return (
        f"Who should join (Su et al.): as a group, {group}: the federated model is estimated to err less than their "
        f"own for {sum(gain > 1 for gain in estimated)} of {_count(len(estimated), 'client')} (median gain "
        f"{np.median(estimated):.1f}{interval}). One by one, on about {samples:.0f} samples each, "
        f"{_decided(join, stay, undecided)}. On digits of all kinds a client's own model gets "
        f"{alone.last.value:.1%} right, {best.label} {best.last.value:.1%}."
    )


def _decided(join: int, stay: int, undecided: int) -> str:
    """What follows for single clients."""
    decided = [f"{count} should {what}" for count, what in ((join, "join"), (stay, "stay alone")) if count]
    if not decided:
        return "no client can be decided yet: all need more samples"
    open_ones = f"{undecided} need{'s' * (undecided == 1)} more samples" if undecided else ""
    return ", ".join([*decided, *([open_ones] if open_ones else [])])


def _setting(advice: Advice, default: Line, advised: Line, tuned: Line, tested: int) -> str:
    method = advice.best.algorithm
    steps = getattr(method, "steps", None)
    work = f"step size {getattr(method, 'lr', math.nan):.3g}" + (f" and {steps} local steps" if steps else "")
    gap = advised.last.value - default.last.value
    verdict = "worth taking" if gap > 0 else "not worth taking here"
    if abs(gap) <= ranking_noise(advised.last.value, tested):
        verdict = f"too close to tell with {tested} test samples"
    return (
        f"Which settings (Charles and Konečný): for {advice.budget()} the advice is FedAvg with {work}; it ended at "
        f"{advised.last.value:.1%}, with default settings at {default.last.value:.1%}, both with "
        f"{_mb(advised)}: {verdict}. Settings tuned by trial end at {tuned.last.value:.1%}."
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
        f"Saving traffic (Gholami and Seferoglu): FedALS sends {saved:.0%} less than FedAvg ({_mb(fedals)} against "
        f"{_mb(fedavg)}) and ends {price}: {verdict}."
    )


def _others(ntk: Line, ffgb: Line, trees: Line, best: Line) -> str:
    ratio = _times(trees.megabytes / best.megabytes)
    return (
        f"What to leave alone here: NTK-FL (Yue et al.) gets {ntk.last.value:.1%} in {ntk.rounds:.0f} rounds, but the "
        f"server can read every sample it trains on; FFGB (Shen et al.), with {ffgb.rounds:.0f} rounds, ends "
        f"{_points(ffgb, best)} {best.label}; histogram boosting, with {trees.rounds:.0f}, ends "
        f"{_points(trees, best)} it and sends {_mb(trees)}, {ratio} as much."
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
