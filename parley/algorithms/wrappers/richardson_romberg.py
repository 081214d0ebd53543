"""Richardson-Romberg: FedAvg run twice, with step sizes lr and 2 lr, and extrapolated to lr = 0.

    clients   x_1 -> x_1 - update(lr),   x_2 -> x_2 - update(2 lr)      two runs of the method, side by side
    reported  2 x_1 - x_2

With K > 1 equal local steps and full gradients FedAvg settles at x(lr) = x* + lr b + O(lr^2), the minimiser of its
surrogate (Charles and Konečný), so 2 x(lr) - x(2 lr) = x* + O(lr^2): halving lr divides the bias by four, FedAvg's by
two. It needs lr K L small. With unequal steps x(0) is not x*: these are normalised (FedNova) or refused. Noise is
extrapolated too: with sampled gradients its variance can be five times FedAvg's; both runs see the same batches, which
makes it less. Twice FedAvg's traffic and work.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.exchange import Exchange, Reply
from parley.algorithms.protocol import Cohort, Contexts, Learned, Questions, algorithm
from parley.algorithms.wrappers.wrapper import Wrapper, inner, outer, translated
from parley.core.context import Context
from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.tree import add, scale
from parley.training.stack import ContextStack, Data
from parley.training.task import Task


@algorithm("richardson-romberg")
@dataclass(frozen=True)
class RichardsonRomberg(Wrapper):
    """Richardson-Romberg: two runs of FedAvg, with lr and 2 lr, extrapolated; removes the first order of its bias.

    In a study: [algorithm] name = "richardson-romberg", and the method with its settings in [algorithm.of].
    """

    of: FedAvg = field(default_factory=lambda: FedAvg(lr=0.05, steps=10))
    """FedAvg, FedProx or FedAvgM with a number of steps, or FedNova, whose clients may take unequal numbers."""

    def __post_init__(self) -> None:
        biases = {each.bias for each in self.of.exchanges()}
        if None in biases or not hasattr(self.of, "lr"):
            raise InputError("richardson-romberg extrapolates fedavg, fedprox, fedavgm or fednova; choose one of them.")
        if self.of.steps is None and "steps" in biases:
            raise InputError(
                "with epochs clients of unequal sizes take unequal numbers of steps, whose bias is not of first order "
                "in lr: give steps, or take fednova, which normalises."
            )
        if self.of.keep:
            raise InputError("richardson-romberg runs two optimizers at a client and keeps neither; leave out keep.")

    @property
    def twice(self) -> FedAvg:
        """The method with 2 lr."""
        return replace(self.of, lr=2 * self.of.lr)

    @property
    def title(self) -> str:
        return f"Richardson-Romberg of {self.of.title}"

    def init(self, task: Task, key: Key) -> State:
        if task.buffer_form:
            raise InputError("richardson-romberg extrapolates weights, and BatchNorm's statistics have no such rule.")
        return _joined(self.of.init(task, key), self.twice.init(task, key))

    def exchanges(self) -> tuple[Exchange, ...]:
        runs = {"one": self.of, "two": self.twice}
        return tuple(_alike(name, each) for name, run in runs.items() for each in run.exchanges())

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Questions:
        ended = []
        for name, run in (("one", self.of), ("two", self.twice)):
            questions = run.round(task, inner(state, name), cohort, number, key)
            ended.append((yield from translated(questions, lambda question, name=name: question.under(name))))  # type: ignore[misc]
        first, two = ended
        assert isinstance(first, State)
        assert isinstance(two, State)
        return _joined(first, two)

    def learned(self, task: Task) -> Learned:
        runs = self.of.learned(task)

        def extrapolated(state: State, since: int | None) -> Message:
            first, two = (runs.message(inner(state, name))["model"] for name in ("one", "two"))
            return Message.of(model=add(scale(first, 2.0), two, -1.0))

        return replace(runs, read=extrapolated)


def _alike(name: str, each: Exchange) -> Exchange:
    """An exchange of one of the two runs, which both see the same batches."""

    def answer(task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        return each.answer(task, message, memory, data, _as_first(context))

    return replace(each, name=f"{name}.{each.name}", answer=answer)


def _as_first(context: Contexts) -> Contexts:
    """The context of the round's first exchange, whose random numbers are drawn again."""
    if isinstance(context, ContextStack):
        return ContextStack(tuple(_first(each) for each in context.contexts))
    return _first(context)


def _first(context: Context) -> Context:
    return Context(context.id, context.round, "client", 0, context.round_key, context.secrets)


def _joined(first: State, two: State) -> State:
    both = outer("one", first), outer("two", two)
    return State(both[0].tensors | both[1].tensors, both[0].scalars | both[1].scalars)
