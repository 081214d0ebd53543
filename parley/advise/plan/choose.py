"""The candidate with the best forecast: the cheapest that reaches the target, else the lowest loss when all is spent.

Every candidate is forecast on the quadratic that the losses resemble. Where losses are not quadratic or rounds are
random, the best of them are forecast again: with mistaken curvatures, with clients that pull twice as hard, and with
draws that none was chosen by, since the best of hundreds owes something to luck. Of what is as good within 3% the
simplest is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from parley.advise.plan.candidates import EIGHT_BITS, Candidate, Grid, families, traffic
from parley.advise.plan.quadratic import Resemblance
from parley.theory.forecast import LocalQuadratics, LocalWork, ServerStep, forecast
from parley.theory.theta import Array
from parley.training.task import Task

MOST_ROUNDS = 500
"""Rounds that are forecast at most; what takes longer is compared by its loss there."""
_SECOND_LOOK, _OF_EACH = 30, 4
_FEW_STEPS = 8
_AS_GOOD = 1.03
_MISTAKEN = ((1.0, 2.0), (1.0, 1.0), (1.2, 1.0))
"""Factors of curvature and of the clients' pull, the latter times what drift was measured: local losses flatten away
from where they were looked at, so that clients drift farther than the quadratic says."""
_HARDLY_SEEN = ((1.0, 2.0), (1.0, 1.0), (3.0, 1.0))
"""The same where few of a model's directions were looked at: others may be steeper."""
_FARTHEST = 10.0
"""Averages of the clients' updates that the server's step may add up to, eta/(1 - beta), on a network hardly seen: what
momentum 0.9 does."""
_ADAM = 0.03
"""Adam's step there, by which every weight moves in a round."""
_DRAWS = 6
_STAYS, _NEAR = 2, 2.0
"""A target counts as reached where so many rounds later the loss is not above so many times it."""


@dataclass(frozen=True)
class Goal:
    """A budget, and the excess loss to reach if the study names a target."""

    rounds: int | None
    megabytes: float | None
    excess: float | None
    participants: int
    """Clients of a round."""

    def limit(self, bytes_each: int) -> int:
        """Rounds that the budget pays for where a client's round takes so many bytes."""
        if self.megabytes is None:
            assert self.rounds is not None
            return self.rounds
        paid = int(self.megabytes * 1e6 // (bytes_each * self.participants))
        return paid if self.rounds is None else min(paid, self.rounds)

    def price(self, bytes_each: int) -> float:
        """Of a round, in the unit of the budget."""
        return 1.0 if self.megabytes is None else bytes_each * self.participants / 1e6


@dataclass(frozen=True, eq=False)
class Ranked:
    """A candidate and what it is expected to do."""

    candidate: Candidate
    bytes_each: int
    limit: int
    """Rounds that the budget pays for."""
    curve: Array
    """f - f* at rounds 0 ... limit, forecast."""
    rounds: float
    """Until the target; infinite where it is not reached, or there is none."""
    score: float
    """What it is judged by: the cost until the target, or where that is out of reach the cost of all and more; without
    a target the excess loss at the end, mean over the forecasts."""
    bold: bool = False
    """Its server goes farther than a network of which few directions were seen may bear: only a pilot tries it."""


def rank(measured: Resemblance, task: Task, goal: Goal, seed: int = 0, grid: Grid | None = None) -> list[Ranked]:
    """The best candidates, the advised one first; of all families, or of this grid."""
    sizes = {method: _sizes(method, task) for method in ("fedavg", "fedprox", "scaffold", "feddyn")}
    coarse: list[Ranked] = []
    for work, servers in grid or families(measured.clients, measured.clients.L):
        unpacked, packed = sizes[work.method]
        size = packed if goal.megabytes is not None else unpacked
        limit = goal.limit(size)
        curves = forecast(measured.clients, work, servers, min(limit, MOST_ROUNDS), seed)
        for server, curve in zip(servers, curves, strict=True):
            coarse.append(_judged(Candidate(work, server), size, limit, [curve], goal, measured))
    coarse.sort(key=lambda ranked: ranked.score)
    variants = _variants(measured, seed)
    second = []
    for ranked in _first_of_each(coarse):
        again = [
            forecast(clients, ranked.candidate.work, [ranked.candidate.server], len(ranked.curve) - 1, draw)[0]
            for clients, draw in variants
        ]
        second.append(_judged(ranked.candidate, ranked.bytes_each, ranked.limit, again, goal, measured))
    second.sort(key=lambda ranked: ranked.score)
    second = [
        replace(ranked, bold=not (measured.all_directions or _modest(ranked.candidate.server))) for ranked in second
    ]
    safe = [ranked for ranked in second if not ranked.bold]
    as_good = [ranked for ranked in safe if ranked.score <= _AS_GOOD * safe[0].score]
    first = min(as_good, key=lambda ranked: (ranked.candidate.complexity, ranked.score))
    ordered = [first, *[ranked for ranked in second if ranked is not first]]
    return [_packed(ranked, measured, task, goal) for ranked in ordered]


def _modest(server: ServerStep) -> bool:
    """Goes no farther than some rounds' averages would: what a network bears that is no quadratic."""
    return server.eta <= (_ADAM if server.name == "adam" else _FARTHEST * (1 - server.momentum))


def _first_of_each(coarse: list[Ranked]) -> list[Ranked]:
    """The best of all, and the best few of every kind, so that a kind that forecasts flatter does not crowd out."""
    seen: dict[tuple[object, ...], int] = {}
    chosen = []
    for position, ranked in enumerate(coarse):
        kind = kind_of(ranked.candidate)
        seen[kind] = seen.get(kind, 0) + 1
        if position < _SECOND_LOOK or seen[kind] <= _OF_EACH:
            chosen.append(ranked)
    return chosen


def kind_of(candidate: Candidate) -> tuple[str, bool]:
    """The method (momentum and Adam of the server being methods), and whether clients do much local work."""
    method = candidate.work.method if candidate.server.name == "sgd" else candidate.server.name
    return method, candidate.work.K > _FEW_STEPS


def _sizes(method: str, task: Task) -> tuple[int, int]:
    """Bytes of a client's round, and with eight bits an entry on the way up."""
    algorithm = Candidate(LocalWork(method, 0.1, 2, 0.1)).algorithm()  # type: ignore[arg-type]
    return traffic(algorithm, task), traffic(algorithm, task, [EIGHT_BITS])


def _variants(measured: Resemblance, seed: int) -> list[tuple[LocalQuadratics, int]]:
    """What the best are forecast on again, with a draw for each."""
    clients = measured.clients
    random = clients.noise is not None or clients.cohort is not None
    if measured.exact:
        doubts = [clients] * (_DRAWS if random else 1)
    else:
        factors = _MISTAKEN if measured.all_directions else _HARDLY_SEEN
        doubted = [clients.scaled(steep, pull if pull == 1 else pull * measured.drift) for steep, pull in factors]
        doubts = [variant for variant in doubted for _ in range(_DRAWS // len(doubted) if random else 1)]
    return [(variant, seed + draw) for draw, variant in enumerate(doubts, start=1)]


def _judged(
    candidate: Candidate, size: int, limit: int, curves: list[Array], goal: Goal, measured: Resemblance
) -> Ranked:
    """By the mean over the curves; what does not reach the target is worse than all that does."""
    scores, reached = [], []
    for curve in curves:
        last = float(np.min(curve[-1]))
        rounds = np.inf
        if goal.excess is not None:
            rounds = _reached(curve, goal.excess)
        reached.append(rounds)
        if goal.excess is None:
            scores.append(last)
        elif np.isfinite(rounds):
            scores.append(_crossing(curve, int(rounds), goal.excess) * goal.price(size))
        else:
            missing = np.log(last / goal.excess) if goal.excess > 0 and np.isfinite(last) else 10.0
            scores.append(limit * goal.price(size) * (2 + min(max(missing, 0.0), 10.0)))
    middle = curves[len(curves) // 2]
    return Ranked(candidate, size, limit, middle, float(np.mean(reached)), float(np.mean(scores)))


def _reached(curve: Array, level: float) -> float:
    """The first round at the level that is not left at once: a path that rushes through it needs luck to stop there."""
    after = [np.append(curve[step:], np.full(min(step, len(curve)), curve[-1])) for step in range(1, _STAYS + 1)]
    hit = np.flatnonzero((curve <= level) & np.all([later <= _NEAR * level for later in after], axis=0))
    return float(hit[0]) if len(hit) else np.inf


def _crossing(curve: Array, rounds: int, level: float) -> float:
    """Where between two rounds the curve, straight on a log scale, meets the level: the more room, the earlier."""
    if rounds < 1:
        return 1.0
    before, after = float(curve[rounds - 1]), max(float(curve[rounds]), 1e-300)
    return rounds - 1 + float(np.log(before / level) / max(np.log(before / after), 1e-12))


def _packed(candidate: Ranked, measured: Resemblance, task: Task, goal: Goal) -> Ranked:
    """With eight bits where bytes are what counts, unless rounding would be felt at the target."""
    if goal.megabytes is None:
        return candidate
    if rounding(candidate.candidate, measured) <= 0.1 * (goal.excess or max(float(candidate.curve[-1]), 0.0)):
        return replace(candidate, candidate=replace(candidate.candidate, channels=(EIGHT_BITS,)))
    size = traffic(candidate.candidate.algorithm(), task)
    return replace(candidate, bytes_each=size, limit=goal.limit(size))


def rounding(candidate: Candidate, measured: Resemblance) -> float:
    """The excess loss that one round's rounding to eight bits may add near the optimum.

    L/2 eta^2 omega sum_i p_i^2 ||Delta_i||^2 with omega = d/(4 s^2), s = 127 levels; Delta_i is what clients still
    send there, which the methods with variates let vanish.
    """
    clients = measured.clients
    if candidate.work.method in ("scaffold", "feddyn"):
        return 0.0
    P, _ = clients.movers(candidate.work)
    moved = (P @ clients.g[:, :, None])[:, :, 0]
    omega = EIGHT_BITS.variance(clients.g.shape[1])
    return float(0.5 * clients.L * candidate.server.eta**2 * omega * (clients.p**2 @ (moved**2).sum(1)))


__all__ = ["Goal", "Ranked", "ServerStep", "rank", "rounding"]
