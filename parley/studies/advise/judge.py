"""What advice is worth on one federation: its cost until the target beside that of every setting of the grid."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from parley.advise.plan.candidates import traffic
from parley.advise.plan.make import advise
from parley.advise.plan.reasons import describe
from parley.algorithms.base.protocol import Algorithm
from parley.algorithms.local_update import FedAvg
from parley.channels.base import Channel
from parley.core.errors import QuorumError, StopRun
from parley.engine.listeners import Listener
from parley.store.records import RoundRecord
from parley.studies.advise.problems import MODEL, Problem, grid, problem
from parley.study.channel_names import stages
from parley.study.train import make_task, train

_DIVERGED = 10.0
"""A loss above so many times the first one is not coming back."""
HOPELESS = 2.0
"""A setting of the grid that has cost so many times the best one so far is given up."""
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
    worst: float
    """Infinite where some setting of the grid costs more than twice the best, or never gets there."""
    reached: int
    """Settings of the grid that got there within twice the best."""
    settings: int
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
        return not self.advised < self.worst

    def plain(self) -> dict[str, Any]:
        return asdict(self) | {"factor": self.factor, "pilot_factor": self.pilot_factor}


def judge(seed: int, every: int = 1) -> Judged:
    """The federation of a seed; `every`: only each so many-th setting of the grid."""
    own = problem(seed)
    costs = grid_costs(own, every)
    best = min(costs, key=lambda name: costs[name])
    budget = _budget(own)
    plain = advise(own.study(FedAvg(batch=own.batch)), whole=False, **budget)
    tried = advise(own.study(FedAvg(batch=own.batch)), whole=False, pilot=True, **budget)
    paid, piloted = (
        cost_of(own, one.best.algorithm, stages(one.best.channels), PATIENCE * own.rounds) for one in (plain, tried)
    )
    assert tried.pilot is not None
    return Judged(
        seed, own.kind, own.unit, own.about, costs[best], best, max(costs.values()),
        sum(math.isfinite(cost) for cost in costs.values()), len(costs), paid, describe(plain.ranked[0].candidate),
        plain.ranked[0].rounds, piloted, describe(tried.ranked[0].candidate), tried.pilot.rounds / tried.pilot.of,
    )  # fmt: skip


def _budget(own: Problem) -> dict[str, Any]:
    """As `advise` takes it."""
    if own.unit == "rounds":
        return {"rounds": own.rounds}
    task = make_task(own.federation, MODEL, own.seed)
    clients = own.cohort or len(own.federation)
    return {"megabytes": own.rounds * clients * traffic(FedAvg(), task) / 1e6}


class _Cost(Listener):
    """Adds up what a run costs; stops it where it has diverged or costs more than anybody would pay."""

    def __init__(self, own: Problem, most: float) -> None:
        self.unit, self.limit, self.most, self.spent = own.unit, _DIVERGED * own.start, most, 0.0

    def round(self, record: RoundRecord) -> None:
        if self.unit == "rounds":
            self.spent = float(record.number)
        elif "up/bytes" in record.metrics:
            self.spent += (record.metrics["up/bytes"].value + record.metrics["down/bytes"].value) / 1e6
        if not record.metrics["central/loss"].value < self.limit or self.spent > self.most:
            raise StopRun


def cost_of(
    own: Problem, algorithm: Algorithm, channels: tuple[Channel, ...] = (), rounds: int | None = None,
    most: float = math.inf,
) -> float:  # fmt: skip
    """In the problem's unit; infinite where neither `rounds` (default: the budget's) nor `most` reach the target."""
    spent = _Cost(own, most)
    try:
        run = train(own.study(algorithm, channels, rounds), listeners=[spent])
    except QuorumError:  # clients sent NaN
        return math.inf
    reached = run.records[-1].metrics["central/loss"].value <= own.target
    return spent.spent if reached and spent.spent <= most else math.inf


def grid_costs(own: Problem, every: int = 1) -> dict[str, float]:
    """Of every setting of the grid; infinite for what costs more than twice the best, or never gets there."""
    costs: dict[str, float] = {}
    for name, (algorithm, channels) in list(grid(own).items())[::every]:
        most = HOPELESS * min(costs.values(), default=math.inf)
        costs[name] = cost_of(own, algorithm, channels, most=most)
    return costs
