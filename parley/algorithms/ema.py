"""EMA: the exponential moving average, over rounds, of the models that any method reports.

    server   the method's round, then   m <- decay m + (1 - decay) model,   m = the first model at the start

Clients train as if it were not there. What is evaluated and exported is m, a weighted mean of the models of all rounds:
after T of them m = decay^T model_0 + (1 - decay) sum_t decay^(T - t) model_t.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor, nn

from parley.algorithms.base.protocol import Algorithm, Cohort, Contexts, Exchange, Reply, algorithm, as_algorithm
from parley.algorithms.local_update import FedAvg
from parley.core.errors import InputError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.tree import Tree
from parley.data import Federation
from parley.learn.stack import Data
from parley.learn.task import Predictor, Task


@algorithm("ema")
@dataclass(frozen=True)
class EMA(Algorithm):
    """EMA: any method, whose reported model is the moving average of the models of its rounds.

    In a study: [algorithm] name = "ema", and the method with its settings in [algorithm.of].
    """

    of: Algorithm = field(default_factory=FedAvg)
    """The method."""
    decay: float = 0.9
    """Share of the average that stays in a round, in [0, 1); 0 is the method itself."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "of", as_algorithm(self.of))
        if not 0 <= self.decay < 1:
            raise InputError(f"decay must lie in [0, 1), not {self.decay}.")
        if self.of.incremental:
            raise InputError(f"the model of {self.of.title} grows, so its models cannot be averaged.")
        for name in (
            "pooled",
            "scheme",
            "compressible",
            "summed",
            "parties",
            "exchangeable",
            "on_cpu",
            "needs_model",
            "takes_missing",
            "steady",
        ):
            object.__setattr__(self, name, getattr(self.of, name))

    @property
    def discloses(self) -> tuple[str, ...]:
        return self.of.discloses

    @property
    def turning_points(self) -> tuple[int, ...]:
        return self.of.turning_points

    @property
    def personal(self) -> bool:
        return self.of.personal

    @property
    def title(self) -> str:
        return f"EMA of {self.of.title}"

    def init(self, task: Task, key: Key) -> State:
        state = self.of.init(task, key)
        return _joined(state, self.of.model(task, state).tensors)

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Exchange:
        outcome = yield from self.of.round(task, _inner(state), cohort, number, key)
        new, metrics = outcome if isinstance(outcome, tuple) else (outcome, {})
        return _joined(new, self._mean(state.get("ema"), self.of.model(task, new).tensors)), metrics

    def _mean(self, before: Tree, now: Tree) -> Tree:
        if before.keys() != now.keys() or any(before[name].shape != value.shape for name, value in now.items()):
            raise InputError(f"the model of {self.of.title} has changed its form, so its models cannot be averaged.")
        # Counters among a model's buffers have no mean.
        mean = {n: before[n].lerp(v, 1 - self.decay) for n, v in now.items() if v.is_floating_point()}
        return now | mean

    def model(self, task: Task, state: State, since: int | None = None) -> Message:
        return Message(state.get("ema"), self.of.model(task, _inner(state)).scalars)

    # --- everything else is the method's ---

    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        return self.of.client(task, message, memory, data, context)

    def answers(self, asked: str) -> Callable[..., Reply]:
        return self.of.answers(asked)

    def reply_form(self, task: Task, asked: str, message: Message) -> Form | None:
        return self.of.reply_form(task, asked, message)

    def prepare(self, federation: Federation, key: Key) -> Federation:
        return self.of.prepare(federation, key)

    def weights(self, task: Task, model: Message, memory: Memory | None = None) -> Tree | None:
        return self.of.weights(task, model, memory)

    def predictor(self, task: Task, model: Message, memory: Memory | None = None) -> Predictor:
        return self.of.predictor(task, model, memory)

    def module(self, task: Task, model: Message) -> nn.Module | None:
        return self.of.module(task, model)

    def outputs(
        self, task: Task, model: Message, memory: Memory | None, x: Tensor, before: Tensor | None = None
    ) -> Tensor:
        return self.of.outputs(task, model, memory, x, before)


def _joined(state: State, mean: Tree) -> State:
    return State(
        State.of(of=state.tensors, ema=mean).tensors, {f"of/{name}": value for name, value in state.scalars.items()}
    )


def _inner(state: State) -> State:
    return State(state.get("of"), {name.removeprefix("of/"): value for name, value in state.scalars.items()})
