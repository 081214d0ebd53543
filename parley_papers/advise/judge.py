"""What advice is worth on one federation: its cost until the target beside that of every setting of the grid."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import parley as pl
from parley_papers.advise.problems import Problem, grid, problem

_DIVERGED = 10.0
"""A loss above so many times the first one is not coming back."""
PATIENCE = 4
"""Advised runs may take so many times the budget, to see by how much advice misses."""


@dataclass(frozen=True)
class Judged:
    """One federation: what the grid's best and worst settings and the advised ones cost in its unit."""

    seed: int
    kind: str
    unit: str
    about: dict[str, float]
    best: float
    best_name: str
    settings: int
    worse: str
    """A setting of the grid that costs more than the advised one; empty where there is none."""
    advised: float
    advised_name: str
    forecast: float
    """Rounds until the target that were forecast for the advised setting."""
    piloted: float
    piloted_name: str
    pilot_share: float
    """Rounds of the pilot over those of the budget."""

    @property
    def factor(self) -> float:
        """What the advised setting costs over the grid's best."""
        return self.advised / self.best

    @property
    def pilot_factor(self) -> float:
        return self.piloted / self.best

    @property
    def is_worst(self) -> bool:
        """No setting of the grid costs more than the advised one."""
        return not self.worse

    def plain(self) -> dict[str, Any]:
        return asdict(self) | {"factor": self.factor, "pilot_factor": self.pilot_factor}


def judge(seed: int, every: int = 1, known: dict[str, float] | None = None) -> Judged:
    """The federation of a seed; `every`: only each so many-th setting of the grid; `known`: its costs, if at hand."""
    asked = problem(seed)
    costs = grid_costs(asked, every) if known is None else known
    best = min(costs, key=lambda name: costs[name])
    advice = pl.advise(asked.study(pl.FedAvg(batch=asked.batch)), whole=False, pilot=True, **_budget(asked))
    assert advice.pilot is not None
    assert advice.first is not None
    first, last = advice.first.candidate, advice.ranked[0].candidate
    paid = {
        candidate: cost_of(asked, candidate.algorithm(batch=asked.batch), candidate.channels, PATIENCE * asked.rounds)
        for candidate in {first, last}
    }
    return Judged(
        seed,
        asked.kind,
        asked.unit,
        asked.about,
        costs[best],
        best,
        len(costs),
        _worse(asked, paid[first], costs),
        paid[first],
        str(first),
        advice.first.rounds,
        paid[last],
        str(last),
        advice.pilot.rounds / advice.pilot.of,
    )


def _budget(asked: Problem) -> dict[str, Any]:
    """As `advise` takes it."""
    if asked.unit == "rounds":
        return {"rounds": asked.rounds}
    return {"megabytes": asked.rounds * traffic(asked.study(pl.FedAvg(batch=asked.batch))) / 1e6}


def traffic(study: pl.Study) -> float:
    """Bytes of one round, up and down, all clients of the cohort together."""
    record = pl.train(replace(study, rounds=1, evaluation=pl.Evaluation(central=False, clients="none"))).records[-1]
    return record.metrics["up/bytes"].value + record.metrics["down/bytes"].value


class _Cost(pl.Listener):
    """Adds up what a run costs; stops it where it has diverged or costs more than anybody would pay."""

    def __init__(self, asked: Problem, most: float) -> None:
        self.unit, self.limit, self.most, self.spent = asked.unit, _DIVERGED * asked.start, most, 0.0

    def round(self, record: pl.RoundRecord) -> None:
        if self.unit == "rounds":
            self.spent = float(record.number)
        elif "up/bytes" in record.metrics:
            self.spent += (record.metrics["up/bytes"].value + record.metrics["down/bytes"].value) / 1e6
        if not record.metrics["central/loss"].value < self.limit or self.spent > self.most:
            raise pl.StopRun


def cost_of(
    asked: Problem,
    algorithm: pl.Algorithm,
    channels: tuple[pl.Channel, ...] = (),
    rounds: int | None = None,
    most: float = math.inf,
) -> float:
    """In the problem's unit; infinite where neither `rounds` (default: the budget's) nor `most` reach the target."""
    spent = _Cost(asked, most)
    try:
        run = pl.train(asked.study(algorithm, channels, rounds), listeners=[spent])
    except pl.QuorumError:  # clients sent NaN
        return math.inf
    reached = run.records[-1].metrics["central/loss"].value <= asked.target
    return spent.spent if reached and spent.spent <= most else math.inf


def grid_costs(asked: Problem, every: int = 1) -> dict[str, float]:
    """Of every setting of the grid; infinite for what costs more than the best so far, or never gets there."""
    costs: dict[str, float] = {}
    for name, (algorithm, channels) in list(grid(asked).items())[::every]:
        costs[name] = cost_of(asked, algorithm, channels, most=min(costs.values(), default=math.inf))
    return costs


def _worse(asked: Problem, paid: float, costs: dict[str, float]) -> str:
    """The first setting, from the smallest steps on, that costs more than this."""
    if not math.isfinite(paid):
        return ""
    settings = grid(asked)
    for name in reversed(costs):
        if paid < costs[name] < math.inf or cost_of(asked, *settings[name], most=paid) == math.inf:
            return name
    return ""
