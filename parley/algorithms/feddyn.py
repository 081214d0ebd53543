"""FedDyn: dynamic regularisation (Acar et al., ICLR 2021, Algorithm 1; a baseline of paper 002).

    client   theta_i ~ argmin f_i(theta) - <h_i, theta> + alpha/2 ||theta - x||^2 by K local steps from x
             h_i <- h_i - alpha (theta_i - x)
    server   h <- h - alpha |S|/N mean(theta_i - x),  x <- mean(theta_i) - h/alpha

h is the mean of all clients' h_i. At a fixed point theta_i = x, hence h_i = grad f_i(x) and h = 0: the true optimum,
however few local steps there are. No more traffic than FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from parley.algorithms.local_update import FedAvg, answer
from parley.algorithms.protocol import Replies, Reply, algorithm
from parley.algorithms.server import Descent
from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.tree import Tree, add, arranged, subtract, zeros_like
from parley.learn import transforms
from parley.learn.local import Data, Keys, train
from parley.learn.observe import observations
from parley.learn.optimizers import LocalOptimizer
from parley.learn.task import Predictor, Task


@algorithm("feddyn")
@dataclass(frozen=True)
class FedDyn(FedAvg):
    """FedDyn (Acar et al., 2021): a linear term per client that makes local optima agree with the global one.

    Its fixed point is the true optimum under full participation, and under partial participation where weights are
    uniform or `cohort.scheme` is "unbiased". Its speed depends on alpha.
    """

    alpha: float = 0.1
    """Strength of the regularisation; the paper's range is .001 to .1, quadratics of curvature 1 like about 1."""
    report: Literal["server", "mean"] = "server"
    """The model to evaluate and export: the server's x, or the mean of the clients' theta_i, which is often better."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha == 0:
            raise InputError("FedDyn divides by alpha; it must be above 0.")
        if self.server != Descent():
            raise InputError("FedDyn's server step is its own; leave server as it is.")

    def init(self, task: Task, key: Key) -> State:
        x = task.initial()
        return _with(super().init(task, key), zeros_like(x), x)

    def client(self, task: Task, message: Message, memory: Memory, data: Data, key: Keys) -> Reply:
        x, buffers = message["model"], memory["buffers"] or message["buffers"]
        h_i = arranged(memory["h_i"] or zeros_like(x), x)
        local = train(
            task, x, data, key, buffers=buffers, work=self.work(),
            optimizer=LocalOptimizer(self.optimizer, self.lr, self.options),
            transform=transforms.pull(x, self.alpha) | transforms.add(h_i, -1.0),
        )  # fmt: skip
        moved = subtract(x, local.parameters)
        own = {name: h_i[name] + self.alpha * value for name, value in moved.items()}
        observed = observations(task, x, local, data, key, buffers)
        return answer(task, local, Message.of(update=moved), observed, Memory.of(h_i=own))

    def aggregate(self, task: Task, state: State, replies: Replies, number: int, key: Key) -> State:
        moved = replies.average("update")
        h = add(state["h"], moved, self.alpha * len(replies.weights) / task.population)
        new = super().aggregate(task, state, replies, number, key)
        mean = new["model"]
        x = State.of(model=add(mean, h, -1 / self.alpha)).tensors
        return _with(State(new.tensors | x, new.scalars), h, mean)

    def predictor(self, task: Task, state: State, memory: Memory | None = None) -> Predictor:
        return super().predictor(task, self._reported(state), memory)

    def weights(self, task: Task, state: State) -> Tree:
        return super().weights(task, self._reported(state))

    def _reported(self, state: State) -> State:
        if self.report == "server":
            return state
        return State(state.tensors | State.of(model=state["mean"]).tensors, state.scalars)


def _with(state: State, h: Tree, mean: Tree) -> State:
    return State(state.tensors | State.of(h=h, mean=mean).tensors, state.scalars)
