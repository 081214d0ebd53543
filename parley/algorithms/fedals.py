"""FedALS: parts of a model averaged at their own pace (paper 004, Algorithm 1), with control variates (Algorithm 4).

    client k, round r (tau local steps):   theta_k <- theta_k - eta g_k, the optimizer's state running through
    after round r:   h <- sum_k w_k h_k;   phi <- sum_k w_k phi_k if alpha divides r

(After step n = r tau the head is averaged if tau | n, the representation if alpha tau | n; the printed conditions would
average at t = 0 and overwrite.) A part that is not averaged stays in the client's memory and does not travel. With
variates every part has its own c and c_i, which change when it is averaged and travel with it:

    theta_k <- theta_k - eta (g_k - c_k + c);   c_k <- c_k - c + (start - theta_k) / (eta * steps since its average)

Under partial participation a part is averaged over the clients of that round, and a client that has missed an average
of a part receives the current one. The reported model is the last one in which all parts were averaged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import nn

from parley.algorithms.parts import Part, by_function, by_layers, by_patterns, each_layer
from parley.algorithms.periods import plan_periods
from parley.algorithms.protocol import Cohort, Exchange, Method, Replies, Reply, algorithm
from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.tree import Tree, add, arranged, zeros_like
from parley.learn import transforms
from parley.learn.batches import Order, Work
from parley.learn.local import Data, Keys, train
from parley.learn.observe import observations
from parley.learn.optimizers import Kept, LocalOptimizer
from parley.learn.schedules import Constant, Schedule
from parley.learn.stack import per_client
from parley.learn.task import Predictor, Task


@algorithm("fedals")
@dataclass(frozen=True)
class FedALS(Method):
    """FedALS (Gholami and Seferoglu): the head is averaged every round, the representation only every alpha rounds.

    alpha = 1 is FedAvg with tau steps, all layers in phi is FedAvg with alpha tau steps. With `budget` the periods of
    parts are chosen from how fast clients' copies move apart.
    """

    stackable: ClassVar[bool] = True
    variates: ClassVar[bool] = False

    lr: float = 0.1
    """Local step size (eta)."""
    steps: int | None = None
    """Local steps per round (tau); without steps and epochs, 5 steps."""
    epochs: int | None = None
    """Local passes over the client's data per round, in place of steps."""
    batch: int | None = 64
    """Samples per step; 0 takes all of a client's samples."""
    order: Order = "shuffle"
    """Batches from shuffled passes, or drawn independently for each step."""
    alpha: int = 10
    """Rounds between two averages of the representation phi."""
    layers: int | None = None
    """The first so many layers are phi (L); by default all but the last."""
    periods: dict[str, int] = field(default_factory=dict)
    """In place of layers: parts by shell patterns of parameter names, such as "blocks.*", each with its rounds between
    averages; what fits no pattern is averaged every round."""
    split: Callable[[str], int] | None = None
    """In place of layers, from Python only: a function from a parameter's name to its rounds between averages."""
    budget: float | None = None
    """Choose the periods of all parts, by default every layer, so that the traffic is at most this share of FedAvg's;
    alpha does not count then, and the first round averages everything to measure."""
    longest: int = 32
    """With budget: no period is longer than this, a power of two."""
    report: int | None = None
    """Besides, all parts are sent every so many rounds to report the mean model, though clients go on with their own;
    this is counted as traffic. By default the reported model changes where all parts are averaged anyway."""
    optimizer: str = "sgd"
    """Local optimizer: sgd or any of torch.optim."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the local optimizer, such as momentum."""
    keep: bool = True
    """The optimizer's state runs through the rounds, kept by each client, instead of starting afresh."""
    schedule: Schedule = field(default_factory=Constant)
    """How the step size changes with the steps that a client has taken in all its rounds: constant, or inverse as paper
    004 fine-tunes; needs keep."""

    def __post_init__(self) -> None:
        if self.batch == 0:
            object.__setattr__(self, "batch", None)
        if self.steps is None and self.epochs is None:
            object.__setattr__(self, "steps", 5)
        for name, value in (("alpha", self.alpha), ("report", self.report), *self.periods.items()):
            if value is not None and value < 1:
                raise InputError(f"{name} counts rounds and must be at least 1, not {value}.")
        if [self.layers is not None, bool(self.periods), self.split is not None].count(True) > 1:
            raise InputError("say what the parts are in one way: layers, periods or split.")
        if self.longest < 1 or self.longest & (self.longest - 1):
            raise InputError(f"longest must be a power of two, not {self.longest}.")
        if self.budget is not None and not 1 / self.longest <= self.budget <= 1:
            raise InputError(f"budget must lie between 1/longest = {1 / self.longest:.3g} and 1, not {self.budget}.")
        if self.variates and self.optimizer != "sgd":
            raise InputError(f"control variates are read off SGD steps; '{self.optimizer}' cannot have them here.")
        if not isinstance(self.schedule, Constant) and (self.variates or not self.keep):
            raise InputError(
                "control variates are read off constant step sizes; leave out schedule."
                if self.variates
                else "a schedule goes by the steps of all rounds; set keep = true."
            )
        if not self.lr > 0:
            raise InputError(f"lr must be above 0, not {self.lr}.")
        self.work()
        self._optimizer()

    def work(self) -> Work:
        """How much a client does in a round."""
        return Work(self.steps, self.epochs, self.batch, self.order)

    def parts(self, task: Task) -> tuple[Part, ...]:
        """The parts, with the periods they have without a budget."""
        each = self.budget is not None and self.layers is None
        return _parts(task.module, tuple(self.periods.items()), self.split, each, self.layers, self.alpha)

    def init(self, task: Task, key: Key) -> State:
        x, buffers, parts = task.initial(), task.initial_buffers(), self.parts(task)
        periods = torch.tensor([1 if self.budget is not None else part.period for part in parts])
        c = zeros_like(x) if self.variates else {}
        return State.of(model=x, buffers=buffers, shown=x, statistics=buffers, c=c, periods=periods)

    # --- the server ---

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Exchange:
        parts = self.parts(task)
        periods = [int(period) for period in state.tensor("periods")]
        due = [q for q, period in enumerate(periods) if number % period == 0]
        reported = len(due) == len(parts) or (self.report is not None and number % self.report == 0)
        holders = self._holders(task, state)
        # Clients that lack the same parts get the same message.
        lacking = {i: tuple(q for q, have in enumerate(holders) if i not in have) for i in cohort.ids}
        asks = {"due": _listed(due), "send": _listed(range(len(parts)) if reported else due)}
        made = {want: self._message(task, state, [parts[q] for q in want], asks) for want in set(lacking.values())}
        replies = yield {i: made[want] for i, want in lacking.items()}
        held = {f"holders/{q}": sorted(set(replies.weights) | holders[q]) for q in range(len(parts)) if q not in due}
        return self._aggregate(
            task, state, replies, [parts[q] for q in due], periods, reported,
            {name: json.dumps(clients) for name, clients in held.items()},
        )  # fmt: skip

    def _holders(self, task: Task, state: State) -> list[set[str]]:
        """For each part, the clients that have it in their memories, not older than its last average."""
        known = (state.scalars.get(f"holders/{q}", "[]") for q in range(len(self.parts(task))))
        return [set(json.loads(str(clients))) for clients in known]

    def _message(self, task: Task, state: State, parts: Sequence[Part], asks: dict[str, str]) -> Message:
        buffers = _statistics(state["buffers"], parts) if task.buffers == "average" else {}
        return Message.of(model=_of(state["model"], parts), c=_of(state["c"], parts), buffers=buffers, **asks)

    def _aggregate(
        self, task: Task, state: State, replies: Replies, due: Sequence[Part], periods: list[int], reported: bool,
        holders: dict[str, str],
    ) -> State:  # fmt: skip
        moved, x = replies.average("update"), state["model"]
        mean = {name: x[name] - value for name, value in moved.items()}
        model, buffers, c = x | _of(mean, due), state["buffers"], state["c"]
        shown, statistics = state["shown"], state["statistics"]
        sent = replies.average("buffers")
        buffers = buffers | _statistics(sent, due)
        if reported:
            shown, statistics = x | mean, statistics | sent
        if self.variates:
            c = c | add(_of(c, due), replies.average("c"), len(replies.weights) / task.population)
        if self.budget is not None and len(due) == len(periods):
            periods = self._replanned(replies, moved, due, periods)
        new = State.of(model=model, buffers=buffers, shown=shown, statistics=statistics, c=c)
        return State(new.tensors | {"periods": torch.tensor(periods)}, dict(holders))

    def _replanned(self, replies: Replies, mean: Tree, parts: Sequence[Part], periods: list[int]) -> list[int]:
        """Periods from the rates v = consensus distance per parameter / T^2 just measured."""
        assert self.budget is not None
        total = math.fsum(replies.weights.values())
        rates, sizes = [], []
        for part, period in zip(parts, periods, strict=True):
            apart = math.fsum(
                weight / total * float((replies[i]["update"][name] - mean[name]).double().square().sum())
                for i, weight in replies.weights.items() for name in part.parameters
            )  # fmt: skip
            sizes.append(sum(mean[name].numel() for name in part.parameters))
            rates.append(apart / sizes[-1] / period**2)
        return plan_periods(rates, sizes, self.budget, self.longest)

    # --- the client ---

    def client(self, task: Task, message: Message, memory: Memory, data: Data, key: Keys) -> Reply:
        parts = self.parts(task)
        received = message["model"]
        due, send = ([parts[q] for q in _numbers(str(message.scalars[name]))] for name in ("due", "send"))
        rest = [part for part in parts if part not in due]
        names = [name for name, parameter in task.module.named_parameters() if parameter.requires_grad]
        x, start = _merged(names, memory["model"], received), memory["start"] | received
        buffers = (memory["buffers"] | message["buffers"]) or task.initial_buffers()
        transform = None
        if self.variates:
            c = _merged(names, memory["c"], message["c"])
            c_i = arranged(memory["c_i"], c) if memory["c_i"] else zeros_like(c)
            transform = transforms.add(c) | transforms.add(c_i, -1.0)
        local = train(
            task, x, data, key, buffers=buffers, work=self.work(), optimizer=self._optimizer(), transform=transform,
            kept=Kept.of(memory) if self.keep else None,
        )  # fmt: skip
        y = local.parameters
        moved = {name: start[name] - y[name] for part in send for name in part.parameters}
        waiting = {name: start[name].expand_as(y[name]) for part in rest for name in part.parameters}
        sent: dict[str, Tree] = {"update": moved}
        kept: dict[str, Tree] = {"model": _of(y, rest), "start": waiting}
        if self.variates:
            travel = self._travel(memory, received, parts, local.steps)
            change: Tree = {}
            for part in due:
                gradient = per_client(_of(moved, [part]), 1 / (self.lr * travel[part.label]))
                change |= {name: value - c[name] for name, value in gradient.items()}
            sent["c"] = change
            kept["c_i"] = {n: c_i[n].expand_as(y[n]) + change[n] if n in change else c_i[n].expand_as(y[n]) for n in y}
            kept["c"] = {name: c[name].expand_as(y[name]) for name in waiting}
            kept["travel"] = {part.label: travel[part.label] for part in rest}
        local_only = task.buffers == "local"
        sent["buffers"] = {} if local_only else _statistics(local.buffers, send)
        kept["buffers"] = local.buffers if local_only else _statistics(local.buffers, rest)
        state = local.optimizer.memory()
        own = Memory(Memory.of(**kept).tensors | state.tensors, state.scalars)
        return Reply(Message.of(**sent), own, observations(task, x, local, data, key, buffers))

    def _travel(self, memory: Memory, received: Tree, parts: Sequence[Part], steps: int | tuple[int, ...]) -> Tree:
        """How far each part has come since its last average, in units of lr and gradients."""
        now = self._optimizer().travels(steps, self.keep)
        before = memory["travel"]
        return {p.label: now if p.parameters[0] in received else before[p.label] + now for p in parts}

    def _optimizer(self) -> LocalOptimizer:
        return LocalOptimizer(self.optimizer, self.lr, self.options, self.schedule)

    # --- the reported model ---

    def predictor(self, task: Task, state: State, memory: Memory | None = None) -> Predictor:
        own = memory["buffers"] if memory is not None and task.buffers == "local" else {}
        return task.predictor(state["shown"], own or ({} if task.buffers == "local" else state["statistics"]))

    def weights(self, task: Task, state: State) -> Tree:
        return {**state["shown"], **state["statistics"]}

    def own_weights(self, task: Task, state: State, client: str, memory: Memory) -> Tree:
        """The averages, with the parts of which the client holds a copy that has moved on since."""
        held = [part for part, have in zip(self.parts(task), self._holders(task, state), strict=True) if client in have]
        own = memory["buffers"] if task.buffers == "local" else _statistics(memory["buffers"], held)
        return {**state["model"], **state["buffers"], **_of(memory["model"], held), **own}


@algorithm("fedals-scaffold")
@dataclass(frozen=True)
class FedALSScaffold(FedALS):
    """FedALS with SCAFFOLD (paper 004, Algorithm 4): control variates per part, at the part's own pace."""

    variates: ClassVar[bool] = True


@lru_cache(maxsize=16)
def _parts(
    module: nn.Module, periods: tuple[tuple[str, int], ...], split: Callable[[str], int] | None, each: bool,
    count: int | None, alpha: int,
) -> tuple[Part, ...]:  # fmt: skip
    if periods:
        return by_patterns(module, dict(periods))
    if split is not None:
        return by_function(module, split)
    return each_layer(module) if each else by_layers(module, count, alpha)


def _of(tree: Tree, parts: Sequence[Part]) -> Tree:
    return {name: tree[name] for part in parts for name in part.parameters if name in tree}


def _statistics(tree: Tree, parts: Sequence[Part]) -> Tree:
    return {name: tree[name] for part in parts for name in part.buffers if name in tree}


def _merged(names: Sequence[str], memory: Tree, received: Tree) -> Tree:
    """What was received over what is remembered, in the order of the model's parameters."""
    missing = next((name for name in names if name not in received and name not in memory), None)
    if missing is not None:
        raise InputError(f"this client has lost its part of the model with '{missing}'; it can go on after an average.")
    return {name: received[name] if name in received else memory[name] for name in names}


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]
