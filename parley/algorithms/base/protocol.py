"""What an algorithm is: functions over messages, states and memories (the one loop everything runs in).

The server sends messages; each recipient turns (message, its memory, its data) into a reply; the server folds the
replies into its state.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from parley.algorithms.base.exchange import (
    Exchange,
    Question,
    Reply,
    ask,
    check_declared,
    declared,
)
from parley.core.context import Context
from parley.core.errors import InputError, UnsupportedError, nearest
from parley.core.key import Key
from parley.core.message import Memory, Message, Payload, State
from parley.core.registry import Registry
from parley.core.show import Brief
from parley.core.tree import Tree, plain_sum, weighted_sum
from parley.learn.stack import ContextStack, Data
from parley.learn.task import Predictor, Task

algorithms: Registry[type[Algorithm]] = Registry("algorithm")
algorithm = algorithms

Scheme = Literal["without-replacement", "with-replacement", "unbiased", "poisson"]
Contexts = Context | ContextStack


@dataclass(frozen=True, slots=True, repr=False)
class Cohort(Brief, Sequence[str]):
    """The clients of a round, in folding order, with the weight each reply has in the average."""

    ids: tuple[str, ...]
    weights: tuple[float, ...]
    normalise: bool = True
    """Weights are shares: those of the clients that answered are scaled to sum to one. Otherwise (an unbiased
    estimate of the population's mean) they are scaled by the number of clients asked over the number that answered."""
    since: Mapping[str, int | None] = field(default_factory=dict)
    """Client -> the round whose memory it holds, None if it holds none: with it a server sends what a client lacks."""
    everyone: Sequence[str] = ()
    """All clients that have enrolled, in the federation's order; they can be asked too."""
    expected: float | None = None
    """How many clients a cohort has on average, where each comes by a chance of its own (Poisson)."""

    def __getitem__(self, index: Any) -> Any:
        return self.ids[index]

    def __len__(self) -> int:
        return len(self.ids)

    def shares(self, answered: Sequence[str]) -> dict[str, float]:
        """The weight of each client that answered."""
        if len(answered) == len(self.ids):
            own = dict(zip(self.ids, self.weights, strict=True))
        else:
            present = set(answered)
            own = {i: w for i, w in zip(self.ids, self.weights, strict=True) if i in present}
        total = sum(own.values()) if self.normalise else len(answered) / max(len(self.ids), 1)
        if not total > 0:
            return own
        return {i: w / total for i, w in own.items()}


class Replies(Mapping[Any, Message]):
    """The replies of one exchange by sender, in folding order, with the weights of the cohort's clients."""

    __slots__ = ("expected", "messages", "weights")

    def __init__(self, messages: dict[Any, Message], weights: dict[str, float], expected: float | None = None) -> None:
        self.messages, self.weights, self.expected = messages, weights, expected

    def __getitem__(self, sender: Any) -> Message:
        return self.messages[sender]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def count(self) -> float:
        """How many clients of the cohort the average is of; of Poisson cohorts the expected number."""
        return len(self.weights) if self.expected is None else self.expected

    def mean_change(self, group: str, *, optional: bool = False) -> Tree:
        """sum_i w_i reply_i[group] over the cohort's clients that answered, in folding order: of differences only.

        The weights estimate the population's mean without bias; in "unbiased" and "poisson" cohorts they sum to one
        only on average. With `optional` it is empty where nobody sent a tree of that name beside others.
        """
        return weighted_sum(self._trees(group, optional), list(self.weights.values()))

    def mean(self, group: str, *, optional: bool = False) -> Tree:
        """sum_i w_i reply_i[group] / sum_i w_i: of absolute values (statistics, moments, models).

        Empty where nobody answered: what the server had before stays.
        """
        trees, total = self._trees(group, optional), math.fsum(self.weights.values())
        return weighted_sum(trees, [w / total for w in self.weights.values()]) if total > 0 else {}

    def _trees(self, group: str, optional: bool) -> list[Tree]:
        """The tree of every client that answered; they must have the same tensors."""
        trees = {client: self.messages[client].get(group) for client in self.weights}
        first = next(iter(trees), None)
        names = trees[first].keys() if first is not None else set()
        if first is not None and not names and not optional:
            refuse_absent(group, self.messages[first])
        for client, tree in trees.items():
            if tree.keys() != names:
                raise InputError(
                    f"client '{client}' sent other tensors in '{group}' than the first client that answered."
                )
        return list(trees.values())

    @property
    def answered(self) -> int | None:
        """How many clients of the cohort answered; None where that is not told."""
        return len(self.weights)

    def sum(self, group: str, *, optional: bool = False) -> Tree:
        """sum_i reply_i[group] over the cohort's clients that answered, whatever their weights; of whole numbers
        exactly."""
        return plain_sum(self._trees(group, optional))

    def reweighted(self, factors: Mapping[str, float]) -> Replies:
        """The same replies, each client's weight times its factor."""
        return Replies(self.messages, {i: w * factors[i] for i, w in self.weights.items()}, self.expected)


def refuse_absent(group: str, sent: Payload) -> None:
    """Refuse to fold a tree that is not there beside those that are; a reply without any has nothing to fold."""
    if sent.tensors and group not in sent:
        raise InputError(f"the clients sent no tree '{group}': {nearest(group, sent.groups())}")


Outcome = State | tuple[State, Mapping[str, float]]
"""The state after a round; numbers beside it are metrics of the server's own."""
Questions = Generator[Question, Replies, Outcome]
"""A round under way: each yield sends messages by recipient and receives the replies that came back."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a method needs of a study, with its present settings."""

    network: bool = True
    """A network to train, which a study must name; others refuse one."""
    cohorts: Scheme = "without-replacement"
    """How cohorts are drawn unless the study says so: what the method's fixed point needs."""
    missing: bool = False
    """It takes inputs that are missing (NaN)."""
    pooled: bool = False
    """The pooled data of all clients: a baseline, not a federated method."""
    cpu: bool = False
    """It computes on the CPU alone, as NumPy does, whatever other devices there are."""


class Algorithm:
    """A federated method. Everything else (runtimes, resume, byte counts, deployment) works on these functions.

    `init`, `round` and the answers to what it asks must be there; the rest has defaults for methods whose state has a
    tree `model`.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        check_declared(cls)

    incremental: ClassVar[bool] = False
    """Outputs of a model follow from those of an older one and what `model` gives since then (see `outputs`)."""

    @property
    def needs(self) -> Needs:
        """What it needs of a study."""
        return Needs()

    @property
    def personal(self) -> bool:
        """Each client has a model of its own (in its memory); there is no server model to evaluate."""
        return False

    @property
    def title(self) -> str:
        """What it is called in sentences."""
        return type(self).__name__

    # --- training ---

    def init(self, task: Task, key: Key) -> State:
        """The server's first state."""
        raise NotImplementedError(f"{self.title} has no init")

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Questions:
        """A generator: each yield sends messages and receives replies; it returns the new state."""
        raise NotImplementedError(f"{self.title} has no round")

    def exchanges(self) -> tuple[Exchange, ...]:
        """What it asks with these settings: by default all that its functions declare."""
        return declared(self)

    # --- the model ---

    def model(self, task: Task, state: State, since: int | None = None) -> Message:
        """What a client needs to predict; of an incremental method, what has come since the round `since`."""
        if "model" not in state:
            return Message(state.tensors, state.scalars)
        return Message.of(model=state["model"], buffers=state.get("buffers"))

    def weights(self, task: Task, model: Message, memory: Memory | None = None) -> Tree | None:
        """The model as one tree of parameters and buffers, a client's own with its memory; None if it is no network."""
        if "model" not in model:
            return None
        local = memory.get("buffers") if memory is not None and task.buffers == "local" else {}
        return {**model["model"], **(local or ({} if task.buffers == "local" else model.get("buffers")))}

    def predictor(self, task: Task, model: Message, memory: Memory | None = None) -> Predictor:
        """Inputs -> outputs of the model; with a client's memory, of the client's own."""
        weights = self.weights(task, model, memory)
        if weights is None:
            raise UnsupportedError(f"{self.title} says neither how to predict (predictor) nor what its weights are.")
        return task.predictor(weights)

    def module(self, task: Task, model: Message) -> nn.Module | None:
        """The model as a module of its own, for methods that train no network; None if it cannot be one."""
        return None

    def outputs(
        self, task: Task, model: Message, memory: Memory | None, x: Tensor, before: Tensor | None = None
    ) -> Tensor:
        """The model's outputs at x. Of an incremental method: given those at the round that `model` begins from."""
        return self.predictor(task, model, memory)(x)


class OneExchange(Algorithm):
    """Methods with one exchange a round: write `broadcast`, `client` and `aggregate`."""

    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """What a client answers; declare it with @exchange(...)."""
        raise NotImplementedError(f"{self.title} has no client")

    def broadcast(self, task: Task, state: State, number: int) -> Message:
        """The message every client of the cohort receives."""
        return Message(state.tensors)

    def aggregate(self, task: Task, state: State, replies: Replies, number: int, key: Key) -> Outcome:
        """The state after the round."""
        return state

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Questions:
        message = self.broadcast(task, state, number)
        replies = yield ask(self.client, dict.fromkeys(cohort.ids, message))
        return self.aggregate(task, state, replies, number, key)


def as_algorithm(thing: Any) -> Algorithm:
    """The method itself, or why it is none."""
    if isinstance(thing, Algorithm):
        return thing
    what = "is a class; make an instance of it" if isinstance(thing, type) else "does not derive from parley.Algorithm"
    raise InputError(f"{thing!r} is not an algorithm: it {what}.")
