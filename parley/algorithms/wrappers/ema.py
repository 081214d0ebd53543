"""EMA: the exponential moving average, over rounds, of the models that any method reports.

    server   the method's round, then   m <- decay m + (1 - decay) model,   m = the first model at the start

Clients train as if it were not there. What is evaluated and exported is m, a weighted mean of the models of all rounds:
after T of them m = decay^T model_0 + (1 - decay) sum_t decay^(T - t) model_t.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.protocol import Algorithm, Cohort, Learned, Questions, algorithm, as_algorithm
from parley.algorithms.wrappers.wrapper import Wrapper
from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.message import Message, State
from parley.core.tree import Tree
from parley.training.task import Task


@algorithm("ema")
@dataclass(frozen=True)
class EMA(Wrapper):
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

    @property
    def title(self) -> str:
        return f"EMA of {self.of.title}"

    def init(self, task: Task, key: Key) -> State:
        learned, state = self.of.learned(task), self.of.init(task, key)
        if learned.incremental:
            raise InputError(f"the model of {self.of.title} grows, so its models cannot be averaged.")
        return self.outer(state).replace(ema=learned.message(state).tensors)

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Questions:
        outcome = yield from self.of.round(task, self.inner(state), cohort, number, key)
        new, metrics = outcome if isinstance(outcome, tuple) else (outcome, {})
        mean = self._mean(state.get("ema"), self.of.learned(task).message(new).tensors)
        return self.outer(new).replace(ema=mean), metrics

    def _mean(self, before: Tree, now: Tree) -> Tree:
        if before.keys() != now.keys() or any(before[name].shape != value.shape for name, value in now.items()):
            raise InputError(f"the model of {self.of.title} has changed its form, so its models cannot be averaged.")
        # Counters among a model's buffers have no mean.
        mean = {n: before[n].lerp(v, 1 - self.decay) for n, v in now.items() if v.is_floating_point()}
        return now | mean

    def learned(self, task: Task) -> Learned:
        of = super().learned(task)
        return replace(of, read=lambda state, since: Message(state.get("ema"), of.message(state, since).scalars))
