"""What an algorithm is: functions over messages, states and memories (the one loop everything runs in).

The server sends messages; each recipient turns (message, its memory, its data) into a reply; the server folds the
replies into its state.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor

from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.registry import Registry
from parley.core.tree import Schema, Tree, weighted_sum
from parley.data import Federation
from parley.learn.local import Data, Keys
from parley.learn.task import Predictor, Task

algorithms: Registry[type[Algorithm]] = Registry("algorithm")
algorithm = algorithms


@dataclass(frozen=True, slots=True)
class Reply:
    """What a recipient gives back."""

    message: Message
    """Sent to the server; its bytes are counted."""
    memory: Memory | None = None
    """What it keeps from now on; None leaves its memory as it was."""
    observed: dict[str, Tensor] = field(default_factory=dict)
    """Values for listeners, in simulation only; never counted as traffic and never seen by the server."""


@dataclass(frozen=True, slots=True)
class Cohort(Sequence[str]):
    """The clients of a round, in folding order, with the weight each reply has in the average."""

    ids: tuple[str, ...]
    weights: tuple[float, ...]
    normalise: bool = True
    """Weights are shares: those of the clients that answered are scaled to sum to one. Otherwise (an unbiased
    estimate of the population's mean) they are scaled by the number of clients asked over the number that answered."""

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


class Replies(Mapping[str, Message]):
    """The replies of one exchange by sender, in folding order, with the weights of the cohort's clients."""

    __slots__ = ("messages", "weights")

    def __init__(self, messages: dict[str, Message], weights: dict[str, float]) -> None:
        self.messages, self.weights = messages, weights

    def __getitem__(self, sender: str) -> Message:
        return self.messages[sender]

    def __iter__(self) -> Iterator[str]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    def average(self, group: str) -> Tree:
        """sum_i w_i reply_i[group] over the cohort's clients that answered, in folding order."""
        trees = {client: self.messages[client][group] for client in self.weights}
        names = next(iter(trees.values())).keys() if trees else set()
        for client, tree in trees.items():
            if tree.keys() != names:
                raise InputError(
                    f"client '{client}' sent other tensors in '{group}' than the first client that answered."
                )
        return weighted_sum(trees.values(), list(self.weights.values()))


Exchange = Generator[Mapping[str, Message], Replies, State]
"""A round under way: each yield sends messages by recipient and receives the replies that came back."""


@runtime_checkable
class Algorithm(Protocol):
    """A federated method. Everything else (runtimes, resume, byte counts, deployment) works on these functions."""

    def init(self, task: Task, key: Key) -> State: ...

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Exchange: ...

    def client(self, task: Task, message: Message, memory: Memory, data: Data, key: Keys) -> Reply: ...

    def predictor(self, task: Task, state: State, memory: Memory | None = None) -> Predictor: ...


class Method:
    """Defaults of the optional parts of an algorithm that the engine asks for."""

    stackable: ClassVar[bool] = False
    """`client` is the shared training core plus elementwise operations, so it also takes a stack of clients."""
    personal: ClassVar[bool] = False
    """Each client has a model of its own (in its memory); there is no server model to evaluate."""
    pooled: ClassVar[bool] = False
    """Trains on the pooled data of all clients: a baseline, not a federated method."""
    alike: ClassVar[bool] = True
    """All replies of an exchange have the same tensors; where they have not, `inspect` looks at each."""

    def prepare(self, federation: Federation, key: Key) -> Federation:
        """The federation as this method trains on it; most take it as it is."""
        return federation

    def parties(self) -> Sequence[str]:
        """Recipients that are not clients."""
        return ()

    def party(self, task: Task, name: str, message: Message, memory: Memory, key: Key) -> Reply:
        """What a party answers; it has its own key and memory instead of data."""
        raise InputError(f"{type(self).__name__} has no party '{name}'.")

    def weights(self, task: Task, state: State) -> Tree | None:
        """The server's model as one tree of parameters and buffers, for export; None if there is no such thing."""
        return None

    def own_weights(self, task: Task, state: State, client: str, memory: Memory) -> Tree | None:
        """The model as this client has it, as one tree; without models of clients, the server's with their buffers."""
        shared = self.weights(task, state)
        return None if shared is None else {**shared, **(memory["buffers"] if task.buffers == "local" else {})}

    def expected(self, task: Task) -> Schema | None:
        """Names, dtypes and shapes every client's reply must have; None leaves it to the majority of the replies."""
        return None

    def inspect(self, task: Task, sent: Message, reply: Message) -> None:
        """Raise a WireError if this cannot be the reply to that message; asked of methods that are not `alike`."""


class OneExchange(Method):
    """Methods with one exchange a round: write `broadcast` and `aggregate`."""

    def broadcast(self, task: Task, state: State, number: int) -> Message:
        """The message every client of the cohort receives."""
        return Message(state.tensors)

    def aggregate(self, task: Task, state: State, replies: Replies, number: int, key: Key) -> State:
        """The state after the round."""
        return state

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Exchange:
        message = self.broadcast(task, state, number)
        replies = yield dict.fromkeys(cohort.ids, message)
        return self.aggregate(task, state, replies, number, key)
