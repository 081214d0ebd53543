"""Exchanges: what a method asks of clients and parties, each declared on the function that answers it.

    @exchange(form=lambda self, task, message: Form.of(update=task.form), reads="mean", compress=("update",))
    def client(self, task, message, memory, data, context) -> Reply: ...

    replies = yield ask(self.client, messages)

Everybody reads that declaration and nothing else: the engine (sizes and checks of replies), channels, differential
privacy and secure sums, a node before it answers, the data owner's consent, `parley list` and the docs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypedDict, TypeVar, Unpack

from torch import Tensor

from parley.core.errors import InputError, WireError
from parley.core.form import Accepted, Form
from parley.core.message import Memory, Message
from parley.core.show import Brief
from parley.data import ClientData
from parley.training.task import Task

F = TypeVar("F", bound=Callable[..., Any])
Reads = Literal["nothing", "mean", "sum", "each"]
Asks = Literal["cohort", "everyone"]


@dataclass(frozen=True, slots=True)
class Party:
    """A recipient that is not a client: a key server, a shuffler. It has a memory and secrets, but no data."""

    name: str

    def __str__(self) -> str:
        return f"party '{self.name}'"


Recipient = str | Party
"""A client's id, or a party."""


@dataclass(frozen=True, slots=True, repr=False)
class Reply(Brief):
    """What a recipient gives back."""

    message: Message
    """Sent to the server; its bytes are counted."""
    memory: Memory | None = None
    """What it keeps from now on; None leaves its memory as it was."""
    observed: dict[str, Tensor] = field(default_factory=dict)
    """Values for listeners, in simulation only; never counted as traffic and never seen by the server."""


@dataclass(frozen=True)
class Exchange:
    """A question that a method asks with its present settings."""

    name: str
    """On the wire and in keys; `second.client` where methods are nested."""
    answer: Callable[..., Reply]
    """(task, message, memory, data, context) -> Reply, without the data where a party answers."""
    form: Callable[[Task, Message], Form | None]
    """The form of a reply to a message; None leaves it to the majority of the replies."""
    accepts: Callable[[Task, Message], Form | Accepted | None]
    """The form that a message must have (with scalars: `Form.with_scalars`), or a WireError for what no honest server
    sends; None: any."""
    reads: Reads = "each"
    """What the server reads of the replies: nothing, their mean, their sum, or each of them."""
    asks: Asks | Party = "cohort"
    """The clients of the round, any that have enrolled, or a party."""
    times: int = 1
    """How often one recipient may be asked in a round."""
    rounds: tuple[int, int | None] = (1, None)
    """The first and the last round that may ask it."""
    compress: tuple[str, ...] = ()
    """Trees of the reply that channels may compress."""
    reorder: tuple[str, ...] = ()
    """Trees of the reply whose rows are a set, so that channels may change their order."""
    feedback: bool = True
    """A reply stands for the same thing every time, so what a channel did not send of it may be added to the next."""
    fixed: tuple[str, ...] = ()
    """Trees of the message that are the same whenever a run sends them: a node refuses others than it had first."""
    grid: tuple[str, ...] = ()
    """Tensors or trees of the message that say in which cells samples are counted: a node compares them with those of
    its other runs, since two grids over the same samples, subtracted, tell of few."""
    discloses: tuple[str, ...] = ()
    """What of a client's samples the server can read off its reply: "inputs", "labels" (it SENDS THE DATA)."""
    bias: Literal["steps", "lr"] | None = None
    """Local steps move the fixed point off the optimum by a multiple of lr, where clients take equally many ("steps")
    or in any case ("lr"); None: they do not, or by nobody knows how much."""
    stack: bool = True
    """It may be asked of many clients at once, as the runtime `stacked` does; False where it looks at samples."""
    joins: Mapping[str, int] = field(default_factory=dict)
    """Tensors of the memory with the axis along which a client's samples lie in them, where the reply is a sum of whole
    numbers over samples and follows from message and memory alone: clients of one process answer as one."""
    floor: int | None = None
    """Fewest samples of a client that stand behind anything in its reply, where the reply describes samples."""
    rows: Callable[[Task, ClientData], Tensor] | None = None
    """Which of a client's own samples the method uses, [n] bool, where that is not all of them: a node compares them
    with those that its other runs used, since two sums, subtracted, tell of the few between them."""
    rare: Callable[[Task, ClientData], str] | None = None
    """What of a client's own samples fewer than the floor have and its reply shows all the same, as the end of a
    sentence; nothing if that is so of none. A node asks its owner."""

    def check(self, task: Task, message: Message) -> None:
        """Refuse, with a WireError, a message that no honest server sends."""
        try:
            accepted = self.accepts(task, message)
        except (InputError, WireError) as error:  # or a tensor that its form asks for is not there
            raise WireError(str(error)) from None
        except Exception as error:  # of another type or shape than was looked at
            raise WireError(f"it cannot be read ({type(error).__name__}).") from None
        if accepted is not None:
            (Accepted(accepted) if isinstance(accepted, Form) else accepted).check(message)

    def meets(self, other: Exchange) -> bool:
        """Some round may ask both."""
        (a, b), (c, d) = self.rounds, other.rounds
        return (b is None or c <= b) and (d is None or a <= d)


class Settings(TypedDict, total=False):
    """What can be declared besides the forms: a value each, or a function of the method where its settings matter."""

    reads: Reads | Callable[[Any], Reads]
    asks: Asks | Party | Callable[[Any], Asks | Party]
    times: int | Callable[[Any], int]
    rounds: tuple[int, int | None] | Callable[[Any], tuple[int, int | None]]
    compress: tuple[str, ...] | Callable[[Any], tuple[str, ...]]
    reorder: tuple[str, ...] | Callable[[Any], tuple[str, ...]]
    feedback: bool | Callable[[Any], bool]
    fixed: tuple[str, ...] | Callable[[Any], tuple[str, ...]]
    grid: tuple[str, ...] | Callable[[Any], tuple[str, ...]]
    discloses: tuple[str, ...] | Callable[[Any], tuple[str, ...]]
    bias: Literal["steps", "lr"] | Callable[[Any], Literal["steps", "lr"] | None] | None
    stack: bool | Callable[[Any], bool]
    joins: Mapping[str, int] | Callable[[Any], Mapping[str, int]]
    floor: int | Callable[[Any], int | None] | None
    rows: Callable[[Any], Callable[[Task, ClientData], Tensor]]
    rare: Callable[[Any], Callable[[Task, ClientData], str]]


_SETTINGS = tuple(f.name for f in fields(Exchange) if f.name not in ("name", "answer", "form", "accepts"))


def exchange(
    form: Callable[..., Form | None] | None = None,
    *,
    accepts: Callable[..., Form | Accepted | None] | None = None,
    like: Callable[..., Any] | None = None,
    **settings: Unpack[Settings],
) -> Callable[[F], F]:
    """Declare the function below as the answer to an exchange; the fields of `Exchange` say what can be declared.

    `form` and `accepts` are functions (self, task, message) -> Form. Everything else is a value, or a function of self
    where it depends on the method's settings: `reads=lambda self: "each" if self.budget else "mean"`. With
    `like=FedAvg.client` what is not said is as that function declares it.
    """
    if like is not None:
        if not is_declared(like):
            raise InputError(f"{like.__qualname__} declares no exchange to be like.")
        known = like.__exchange__  # type: ignore[attr-defined]
        form, accepts, settings = form or known[0], accepts or known[1], known[2] | settings
    unknown = settings.keys() - set(_SETTINGS)
    if unknown:
        raise InputError(f"an exchange has no '{sorted(unknown)[0]}'; it has form, accepts, {', '.join(_SETTINGS)}.")

    def declare(function: F) -> F:
        function.__exchange__ = (form, accepts, settings)  # type: ignore[attr-defined]
        return function

    return declare


_OVERRIDDEN = "{kind}.{name} overrides the answer to an exchange; declare it anew with @exchange(...) above it."


def declared(method: Any) -> tuple[Exchange, ...]:
    """The exchanges that a method's functions declare, with its settings."""
    names: dict[str, None] = {}
    for kind in reversed(type(method).__mro__):
        names |= {name: None for name, value in vars(kind).items() if is_declared(value)}
    exchanges = []
    for name in names:
        answer = getattr(method, name)
        if not is_declared(answer):
            raise InputError(_OVERRIDDEN.format(kind=type(method).__name__, name=name))
        form, accepts, settings = answer.__exchange__
        values = {key: value(method) if callable(value) else value for key, value in settings.items()}
        exchanges.append(Exchange(name, answer, _bound(form, method), _bound(accepts, method), **values))
    return tuple(exchanges)


def _bound(function: Callable[..., Any] | None, method: Any) -> Callable[[Task, Message], Any]:
    if function is None:
        return lambda task, message: None
    chosen = function
    return lambda task, message: chosen(method, task, message)


def is_declared(value: Any) -> bool:
    """A function that answers an exchange."""
    return callable(value) and hasattr(value, "__exchange__")


def check_declared(kind: type) -> None:
    """Refuse a class that overrides an answer without saying anew what it answers."""
    for name, value in vars(kind).items():
        base = next((vars(b)[name] for b in kind.__mro__[1:] if name in vars(b)), None)
        if is_declared(base) and not is_declared(value):
            raise InputError(_OVERRIDDEN.format(kind=kind.__name__, name=name))


@dataclass(frozen=True, slots=True)
class Question:
    """Messages by recipient, and the exchange that they are."""

    asked: str
    messages: Mapping[Any, Message]

    def under(self, path: str) -> Question:
        """Asked by a method inside another."""
        return replace(self, asked=f"{path}.{self.asked}")


def ask(answer: Callable[..., Reply], messages: Mapping[Any, Message]) -> Question:
    """`replies = yield ask(self.losses, messages)`: that function of the method answers, at each recipient."""
    if not is_declared(answer):
        name = getattr(answer, "__qualname__", repr(answer))
        raise InputError(f"{name} answers an exchange; say so with @exchange(...) above it.")
    return Question(answer.__name__, messages)


def disclosed(exchanges: tuple[Exchange, ...]) -> tuple[str, ...]:
    """What of clients' samples the server can read off all replies."""
    return tuple(dict.fromkeys(part for each in exchanges for part in each.discloses))


def parties(exchanges: tuple[Exchange, ...]) -> tuple[str, ...]:
    """Names of the parties that are asked; a deployment has a node for each."""
    return tuple(dict.fromkeys(each.asks.name for each in exchanges if isinstance(each.asks, Party)))
