"""Each decision in words: what is advised, why, and the formula behind it."""

from __future__ import annotations

import numpy as np

from parley.advise.gain.result import Gains
from parley.advise.plan.advice import Recommendation
from parley.advise.plan.candidates import EIGHT_BITS, STEPS, Candidate
from parley.advise.plan.choose import Goal, Ranked, rounding
from parley.advise.plan.measure import Measured
from parley.advise.plan.pilot import Pilot
from parley.algorithms.parts.parts import each_layer
from parley.algorithms.parts.periods import plan_periods
from parley.training.task import Task

_MOVES = "Delta_i = -P_i (g_i + A_i z + v_i), P_i = gamma sum_{k<K} (I - gamma (A_i + alpha I))^k"
_FORMULAS = {
    "fedavg": f"{_MOVES}, v_i = 0 (Charles and Konečný, eq. 5)",
    "fedprox": f"{_MOVES}, v_i = 0, alpha > 0 (Charles and Konečný, eq. 5)",
    "scaffold": f"{_MOVES}, v_i = c - c_i (Karimireddy et al., 2020)",
    "feddyn": f"{_MOVES}, v_i = -h_i, alpha > 0 (Acar et al., 2021)",
}
_WHY = {
    "fedavg": "nothing that corrects how clients pull apart at the optimum is forecast to bring more than it costs",
    "fedprox": "a pull towards the server's model keeps the clients' local steps together",
    "scaffold": "control variates take out how clients pull apart at the optimum, so many local steps stay exact",
    "feddyn": "a linear term per client takes out how clients pull apart at the optimum, at no further traffic",
}
PART_SHARE = 0.5
"""The share of the traffic that part periods are planned for."""
CROSSINGS = (1800, 6500)
"""Local steps after which part periods passed FedAvg in the curves of Gholami and Seferoglu: the fewest, the most."""


def forecast_reasons(best: Ranked, runner_up: Ranked | None, measured: Measured, goal: Goal) -> list[Recommendation]:
    """Method, gamma, K, server and channels of a candidate that was forecast."""
    candidate, work = best.candidate, best.candidate.work
    assert measured.quadratic is not None
    L = measured.quadratic.largest
    pull = f"pull at the optimum {measured.pull:.3g}"
    against = "" if runner_up is None else f" {_beside(best, runner_up)}, {_expected(runner_up, goal)}."
    made = [
        Recommendation(
            "method",
            candidate.method,
            f"{_WHY[work.method]} ({pull}). Expected: {_expected(best, goal)}.{against}",
            _FORMULAS[work.method],
        ),
        Recommendation(
            "local step size gamma",
            f"{work.gamma:.4g}",
            f"{work.gamma * L:.2g} of 1/L; the best of those forecast together with K, steps above 2/L diverge.",
            f"gamma = {work.gamma * L:.2g} / L, L = {L:.4g}",
        ),
        Recommendation("local steps K", str(work.K), *_local_steps(candidate)),
        _server(candidate),
    ]
    if work.alpha:
        made.append(
            Recommendation(
                "pull alpha", f"{work.alpha:.4g}", "the best of those forecast.", f"alpha = {work.alpha / L:.2g} L"
            )
        )
    made.append(_channels(best, measured, goal))
    return made


def _local_steps(candidate: Candidate) -> tuple[str, str]:
    """Why so many, and by which formula."""
    if candidate.work.method in ("scaffold", "feddyn"):
        return (
            f"corrected local steps lead to the common optimum however many there are; of {STEPS[2]} to {STEPS[-1]}, "
            "so many were forecast to do best.",
            "a fixed point has Delta_i = 0 for all i, so sum_i p_i grad f_i = 0",
        )
    formula = "kappa(K) falls from L/mu to 1, the distance of the minimisers grows (Charles and Konečný, eqs. 9 and 11)"
    if candidate.work.K == 1:
        return "every further local step would pull the result away from the common optimum.", formula
    return "more local work shortens the way to a point that is farther off; this many suit the budget.", formula


def _server(candidate: Candidate) -> Recommendation:
    server = candidate.server
    if candidate.work.method == "feddyn":
        return Recommendation("server optimizer", "FedDyn's own", "the method has a server step of its own.")
    if server.name == "sgd":
        what = "plain averaging" if server.eta == 1 else "a step other than 1 on the mean change"
        return Recommendation(
            "server optimizer",
            f"sgd, lr {server.eta:.4g}",
            f"{what} was the best forecast; momentum brought nothing.",
            "x <- x + eta sum_i p_i Delta_i",
        )
    if server.name == "adam":
        return Recommendation(
            "server optimizer",
            f"adam, lr {server.eta:.4g}",
            "coordinates have very different curvature.",
            "x <- x - eta m / (sqrt(v) + epsilon) (Reddi et al., 2021)",
        )
    return Recommendation(
        "server optimizer",
        f"{server.name}, lr {server.eta:.4g}, momentum {server.momentum:g}",
        "the mean of the clients' maps is badly conditioned, which momentum makes up for.",
        "rho = (sqrt(kappa) - 1)/(sqrt(kappa) + 1) in place of (kappa - 1)/(kappa + 1) (Charles and Konečný, Table 2)",
    )


def _channels(best: Ranked, measured: Measured, goal: Goal) -> Recommendation:
    if goal.megabytes is None:
        return Recommendation("channels", "none", "the budget counts rounds, and compression saves none.")
    assert measured.quadratic is not None
    felt = rounding(best.candidate, measured.quadratic)
    formula = "L/2 eta^2 omega sum_i p_i^2 ||Delta_i||^2, omega = d / (4 * 127^2)"
    if best.candidate.channels:
        return Recommendation(
            "channels",
            "qsgd(8)",
            f"eight bits an entry on the way up; the loss that rounding adds near the optimum is about {felt:.1g}.",
            formula,
        )
    return Recommendation("channels", "none", f"rounding to eight bits would add {felt:.1g} to the loss.", formula)


def parts_reason(task: Task, measured: Measured, steps: float) -> Recommendation | None:
    """Periods of the model's parts that halve the traffic, from how far clients' gradients are apart in each.

    `steps`: local steps of a client in the whole run; whether periods can pay depends on them.
    """
    parts = each_layer(task.network)
    if len(parts) < 2 or measured.quadratic is None:
        return None
    gradients, p = measured.quadratic.start_gradients, measured.quadratic.clients.p
    names = [name for name, value in task.network.named_parameters() if value.requires_grad]
    ends = np.cumsum([0, *[dict(task.network.named_parameters())[name].numel() for name in names]])
    slices = {name: slice(ends[i], ends[i + 1]) for i, name in enumerate(names)}
    apart = gradients - p @ gradients
    sizes = [sum(slices[n].stop - slices[n].start for n in part.parameters) for part in parts]
    rates = [
        float(p @ sum((apart[:, slices[n]] ** 2).sum(1) for n in part.parameters)) / size
        for part, size in zip(parts, sizes, strict=True)
    ]
    periods = plan_periods(rates, sizes, PART_SHARE, 32)
    shown = ", ".join(f"{part.label} every {T}" for part, T in zip(parts, periods, strict=True))
    return Recommendation(
        "part periods",
        f"{shown} (method fedals)",
        "if traffic must be halved: parts in which clients' gradients differ little are averaged less often. "
        f"{_length_reason(steps)} FedAvg with twice the local steps sends as little and is the rival to try. No "
        "forecast covers it; it is not in the study below.",
        "minimise sum_q s_q v_q T_q^2 with sum_q s_q / T_q <= half of all: T_q ~ v_q^(-1/3) (Gholami and Seferoglu)",
    )


def _length_reason(steps: float) -> str:
    """Whether a run of so many local steps of a client is long enough for part periods to pay in accuracy."""
    first, last = CROSSINGS
    end = "so it does not pay in accuracy"
    if steps >= first:
        end = "so it may or may not" if steps < last else "enough for the gain of its authors, which is not settled"
    return (
        f"Where clients differ this costs accuracy for the first {first:,} to {last:,} local steps of a client; it "
        f"takes about {max(steps, 1):,.0f} here, {end}."
    )


def stopping_reason(best: Ranked | None, goal: Goal, limit: int, gains: Gains | None) -> Recommendation:
    """When to stop."""
    if gains is not None and gains.stop.rule is not None and gains.stop.round is not None:
        return Recommendation(
            "stopping round",
            str(min(gains.stop.round, limit)),
            gains.stop.reason,
            "T = max{t : R(1/sqrt(eta t s)) <= 1/(sqrt(2e) sigma eta t s)} (Su et al., eq. 23)",
        )
    if best is None:
        return Recommendation("stopping round", str(limit), "nothing was forecast, so the budget decides.")
    if goal.excess is not None and np.isfinite(best.rounds):
        return Recommendation(
            "stopping round",
            f"{max(best.rounds, 1):.0f}",
            f"where the target is expected; the budget allows {limit}.",
            "first t with f(x_t) - f* <= target - f*, by the recursion of the method",
        )
    curve = best.curve
    late = int(np.argmax(curve <= curve[-1] + 0.01 * (curve[0] - curve[-1])))
    return Recommendation(
        "stopping round",
        str(min(limit, max(late, 1))),
        f"from there to round {limit} the training loss is expected to fall by less than 1% of what it falls in all; "
        f"the study below takes all {limit} rounds, so set its rounds to this if they cost you something.",
        "f(x_t) - f(x_T) <= 0.01 (f(x_0) - f(x_T)), by the recursion of the method",
    )


def pilot_reason(pilot: Pilot, name: str) -> Recommendation:
    """What the pilot changed."""
    return Recommendation("pilot", name, pilot.sentence())


def _beside(best: Ranked, other: Ranked) -> str:
    """How another candidate stands to the advised one."""
    name = str(other.candidate)
    if other.score >= best.score:
        return f"Next best: {name}"
    if other.bold:
        return (
            "Forecast to do better, but left for --pilot to try, as its server goes farther than a network of which so "
            f"few directions were seen may bear: {name}"
        )
    return f"As good within a few percent, and less simple: {name}"


def _expected(ranked: Ranked, goal: Goal) -> str:
    if goal.excess is not None and np.isfinite(ranked.rounds):
        unit = "" if goal.megabytes is None else f", {ranked.rounds * goal.price(ranked.bytes_each):.3g} MB"
        return f"the target in about {ranked.rounds:.0f} rounds{unit}"
    left = ranked.score if goal.excess is None else ranked.curve[-1]
    return f"an excess training loss of {left:.3g} after {ranked.limit:,} rounds"


__all__ = ["EIGHT_BITS", "forecast_reasons", "parts_reason", "stopping_reason"]
