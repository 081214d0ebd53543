"""FedDyn: dynamic regularisation (Acar et al., ICLR 2021, Algorithm 1; a baseline of Shen et al.).

    client   theta_i ~ argmin f_i(theta) - <h_i, theta> + alpha/2 ||theta - x||^2 by K local steps from x
             h_i <- h_i - alpha (theta_i - x)
    server   h <- h - alpha |S|/N mean(theta_i - x),  x <- mean(theta_i) - h/alpha

h is the mean of all clients' h_i. At a fixed point theta_i = x, hence h_i = grad f_i(x) and h = 0: the true optimum,
however few local steps there are. No more traffic than FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.averaging.server import Descent, ServerOptimizer
from parley.algorithms.exchange import Reply, exchange
from parley.algorithms.protocol import Contexts, Learned, Needs, Replies, algorithm
from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.tree import add, subtract, zeros_like
from parley.training import transforms
from parley.training.stack import Data
from parley.training.task import Task


@algorithm("feddyn")
@dataclass(frozen=True)
class FedDyn(FedAvg):
    """FedDyn (Acar et al., 2021): a linear term per client that makes local optima agree with the global one.

    Its fixed point is the true optimum, also under partial participation with clients of unequal sizes: cohorts are
    drawn by the scheme "unbiased" unless the study says otherwise. Its speed depends on alpha.
    """

    server: ClassVar[ServerOptimizer] = Descent()  # type: ignore[misc] # the server's step is FedDyn's own

    alpha: float = 0.1
    """Strength of the regularisation; the paper's range is .001 to .1, quadratics of curvature 1 like about 1."""
    report: Literal["server", "mean"] = "server"
    """The model to evaluate and export: the server's x, or the mean of the clients' theta_i, which is often better."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha == 0:
            raise InputError("FedDyn divides by alpha; it must be above 0.")

    @property
    def needs(self) -> Needs:
        return Needs(cohorts="unbiased")

    def init(self, task: Task, key: Key) -> State:
        x = task.initial()
        return super().init(task, key).replace(h=zeros_like(x), mean=x)

    @exchange(like=FedAvg.client, bias=None)
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        x = message["model"]
        h_i = memory.get("h_i") or zeros_like(x)
        regulariser = transforms.pull(x, self.alpha) | transforms.add(h_i, -1.0)
        local = self.train(task, x, message, memory, data, context, transform=regulariser)
        moved = subtract(x, local.parameters)
        return self.reply(task, local, send={"update": moved}, keep={"h_i": add(h_i, moved, self.alpha)})

    def aggregate(self, task: Task, state: State, replies: Replies, number: int, key: Key) -> State:
        h = add(state["h"], replies.mean_change("update"), self.alpha * replies.count / task.population)
        new = super().aggregate(task, state, replies, number, key)
        return new.replace(model=add(new["model"], h, -1 / self.alpha), h=h, mean=new["model"])

    def learned(self, task: Task) -> Learned:
        name = "model" if self.report == "server" else "mean"
        return Learned(task, read=lambda state, since: Message.of(model=state[name], buffers=state.get("buffers")))
