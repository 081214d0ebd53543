"""What an algorithm is: functions over messages, states and memories (the one loop everything runs in).

The server sends messages; each recipient turns (message, its memory, its data) into a reply; the server folds the
replies into its state. FedAvg, whole:

    @dataclass(frozen=True)
    class FedAvg(LocalSGD, OneExchange):
        def init(self, task, key):
            return State.of(model=task.initial())

        def broadcast(self, task, state, number):
            return Message.of(model=state["model"])

        @exchange(form=lambda self, task, message: Form.of(update=task.form), reads="mean", compress=("update",))
        def client(self, task, message, memory, data, context):
            x = message["model"]
            local = self.train(task, x, message, memory, data, context)
            return self.reply(task, local, send={"update": subtract(x, local.parameters)})

        def aggregate(self, task, state, replies, number, key):
            return state.replace(model=subtract(state["model"], replies.mean_change("update")))

SCAFFOLD adds a control variate c of the server's and c_i in each client's memory, and a transform of local gradients:

    @dataclass(frozen=True)
    class Scaffold(FedAvg):
        def init(self, task, key):
            return State.of(model=task.initial(), c=zeros_like(task.initial()))

        def broadcast(self, task, state, number):
            return Message.of(model=state["model"], c=state["c"])

        @exchange(form=lambda self, task, message: Form.of(update=task.form, c=task.form), reads="mean")
        def client(self, task, message, memory, data, context):
            x, c = message["model"], message["c"]
            c_i = memory.get("c_i") or zeros_like(x)
            corrected = transforms.add(c) | transforms.add(c_i, -1.0)
            local = self.train(task, x, message, memory, data, context, transform=corrected)
            moved = subtract(x, local.parameters)
            # c_i+ = c_i - c + (x - y) / (K eta), so c_i+ - c_i = (x - y) / (K eta) - c
            change = subtract(scale(moved, 1 / local.step_sum), c)
            return self.reply(task, local, send={"update": moved, "c": change}, keep={"c_i": add(c_i, change)})

        def aggregate(self, task, state, replies, number, key):
            new = super().aggregate(task, state, replies, number, key)
            return new.replace(c=add(state["c"], replies.mean_change("c"), replies.count / task.population))

Everything else (runtimes, channels, resume, evaluation, deployment) reads what is declared here: `needs`, `exchanges`,
`learned`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn

from parley.algorithms.exchange import Exchange, Question, Reply, ask, check_declared, declared
from parley.core.context import Context
from parley.core.errors import InputError, UnsupportedError, nearest
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message, Payload, Row, Stack, State, Total
from parley.core.registry import Registry
from parley.core.show import Brief
from parley.core.tree import Tree, plain_sum, stacked_sum, weighted_sum
from parley.training.stack import ContextStack, Data
from parley.training.task import Task

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
            weights = dict(zip(self.ids, self.weights, strict=True))
        else:
            present = set(answered)
            weights = {i: w for i, w in zip(self.ids, self.weights, strict=True) if i in present}
        total = sum(weights.values()) if self.normalise else len(answered) / max(len(self.ids), 1)
        if not total > 0:
            return weights
        return {i: w / total for i, w in weights.items()}


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
        return self._folded(group, optional, list(self.weights.values()))

    def mean(self, group: str, *, optional: bool = False) -> Tree:
        """sum_i w_i reply_i[group] / sum_i w_i: of absolute values (statistics, moments, models).

        Empty where nobody answered: what the server had before stays.
        """
        total = math.fsum(self.weights.values())
        return self._folded(group, optional, [w / total for w in self.weights.values()]) if total > 0 else {}

    def _folded(self, group: str, optional: bool, weights: list[float] | None) -> Tree:
        """The weighted sum of a tree of those that answered, without weights the plain one."""
        if weights is None and (total := Message(self._joint_sum()).get(group)):
            return total
        stacks = self._stacks(group, weights)
        if stacks and (stacks[0][0] or optional):
            return stacked_sum(stacks)
        trees = self._trees(group, optional)
        return plain_sum(trees) if weights is None else weighted_sum(trees, weights)

    def _joint_sum(self) -> Tree:
        """The sum of all replies, where clients answered as one; empty where it is not at hand."""
        messages = [self.messages[client] for client in self.weights]
        stack = messages[0].stack if messages and isinstance(messages[0], Row) else None
        if not isinstance(stack, Total) or len(messages) != stack.count:
            return {}
        return stack.tensors if all(isinstance(each, Row) and each.stack is stack for each in messages) else {}

    def _stacks(self, group: str, weights: list[float] | None) -> list[tuple[Tree, list[int], list[float] | None]]:
        """The tree in each of the stacks that the replies lie in, with their rows there and their weights; nothing
        where they do not all, or not alike."""
        rows: dict[int, tuple[Stack, list[int], list[float]]] = {}
        messages = [self.messages[client] for client in self.weights]
        cut = [message for message in messages if isinstance(message, Row) and not isinstance(message.stack, Total)]
        if len(cut) < len(messages):
            return []
        factors = [1.0] * len(cut) if weights is None else weights
        if len({id(message.stack) for message in cut}) == 1:
            rows[0] = cut[0].stack, [message.row for message in cut], factors
        else:
            for message, weight in zip(cut, factors, strict=True):
                entry = rows.setdefault(id(message.stack), (message.stack, [], []))
                entry[1].append(message.row)
                entry[2].append(weight)
        if len({stack.schema for stack, _, _ in rows.values()}) != 1:
            return []
        stacks = []
        for stack, positions, factors in rows.values():
            order = sorted(range(len(positions)), key=positions.__getitem__)
            stacks.append(
                (
                    Message(stack.tensors).get(group),
                    [positions[i] for i in order],
                    None if weights is None else [factors[i] for i in order],
                )
            )
        return stacks

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
        return self._folded(group, optional, None)

    def reweighted(self, factors: Mapping[str, float]) -> Replies:
        """The same replies, each client's weight times its factor."""
        return Replies(self.messages, {i: w * factors[i] for i, w in self.weights.items()}, self.expected)


def refuse_absent(group: str, sent: Payload) -> None:
    """Refuse to fold a tree that is not there beside those that are; a reply without any has nothing to fold."""
    if group in sent.tensors:
        raise InputError(
            f"'{group}' is a tensor, and trees are folded; send {group}={{\"value\": tensor}} in its place."
        )
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
    texts: bool = False
    """It takes columns of texts as they are, by the numbers of their levels."""
    pooled: bool = False
    """The pooled data of all clients: a baseline, not a federated method."""
    cpu: bool = False
    """It computes on the CPU alone, as NumPy does, whatever other devices there are."""


def _reported(state: State, since: int | None) -> Message:
    if "model" not in state:
        return Message(state.tensors, state.scalars)
    return Message.of(model=state["model"], buffers=state.get("buffers"))


@dataclass(frozen=True)
class Learned:
    """What a method has learned, from messages alone: a node that predicts has no server state.

    Evaluation, prediction, export and deployment use nothing else. As it stands it is a network whose parameters are
    the tree `model` and whose statistics are `buffers`. What else a method has learned is a subclass with `weights`, or
    with `outputs`.
    """

    task: Task
    personal: bool = False
    """Each client has a model of its own (in its memory); there is no server model to evaluate."""
    incremental: bool = False
    """Outputs follow from those of an older model and what has come since (see `outputs`)."""
    read: Callable[[State, int | None], Message] = _reported
    """(state, since) -> message, at the server; by default its trees `model` and `buffers`."""

    def message(self, state: State, since: int | None = None) -> Message:
        """What a client needs to predict; where it is incremental, what has come since the round `since`."""
        return self.read(state, since)

    def weights(self, message: Message, memory: Memory | None = None) -> Tree | None:
        """The network's parameters and buffers, a client's own with its memory; None if it is no network."""
        if "model" not in message:
            return None
        local = memory.get("buffers") if memory is not None and self.task.buffers == "local" else {}
        return {**message["model"], **(local or ({} if self.task.buffers == "local" else message.get("buffers")))}

    def check(self, message: Message, memory: Memory | None = None) -> None:
        """Refuse, with a WireError, a message that no honest server sends; a node asks before it evaluates.

        A bias of [n, outputs], say, would be another one for each of its samples.
        """
        weights = self.weights(message, memory)
        if weights is not None:
            network = dict(self.task.network.named_parameters()) | dict(self.task.network.named_buffers())
            Form.like({name: network[name] for name in weights if name in network}).check(weights)

    def outputs(self, message: Message, memory: Memory | None, x: Tensor, before: Tensor | None = None) -> Tensor:
        """The outputs at x, with a client's memory those of its own model.

        Where it is incremental, `before` are those at the round that `message` begins from.
        """
        weights = self.weights(message, memory)
        if weights is None:
            raise UnsupportedError("the method does not say how to predict: `learned` has no weights and no outputs.")
        return self.task.predictor(weights)(x)

    def module(self, message: Message, memory: Memory | None = None) -> nn.Module | None:
        """A module of its own that computes the outputs; None, or an InputError with the reason, if none can."""
        weights = self.weights(message, memory)
        if weights is None:
            return None
        network = deepcopy(self.task.network)
        network.load_state_dict(weights, strict=False)
        return network


class Algorithm:
    """A federated method. Everything else (runtimes, resume, byte counts, deployment) works on these functions.

    `init`, `round` and the answers to what it asks must be there; the rest has defaults for methods that train one
    network, whose state has a tree `model`.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        check_declared(cls)

    @property
    def needs(self) -> Needs:
        """What it needs of a study."""
        return Needs()

    @property
    def title(self) -> str:
        """What it is called in sentences."""
        return type(self).__name__

    def init(self, task: Task, key: Key) -> State:
        """The server's first state."""
        raise NotImplementedError(f"{self.title} has no init")

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Questions:
        """A generator: each yield sends messages and receives replies; it returns the new state."""
        raise NotImplementedError(f"{self.title} has no round")

    def exchanges(self) -> tuple[Exchange, ...]:
        """What it asks with these settings: by default all that its functions declare."""
        return declared(self)

    def learned(self, task: Task) -> Learned:
        """What has been learned: by default a network whose parameters are the state's tree `model`."""
        return Learned(task)


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
