"""FedAvg-Distill, or FedDF: ensemble distillation for model fusion (Lin et al., NeurIPS 2020, Algorithm 1).

    client   local SGD from x: x_i, as in FedAvg
    server   x_0 = sum_i w_i x_i;  teacher(u) = sum_i w_i logits(x_i; u) at every public input u
             x   = argmin_x  mean_u KL(softmax(teacher(u)) || softmax(logits(x; u))),  started from x_0

Shen et al. compares FFGB-Distill with it: both fuse an ensemble on the server, made by different clients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.boosting.distill import mean_outputs, public_inputs
from parley.algorithms.boosting.distilling import Distilling
from parley.algorithms.exchange import Exchange
from parley.algorithms.protocol import Replies, algorithm
from parley.core.key import Key
from parley.core.message import State
from parley.core.tree import subtract
from parley.training.task import Task


@algorithm("fedavg-distill")
@dataclass(frozen=True)
class FedAvgDistill(Distilling, FedAvg):
    """FedAvg-Distill, or FedDF (Lin et al., 2020): the average learns from the clients' models on public inputs.

    It needs unlabelled public inputs: data.public, data.public_fraction, or a federation that has some.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_distillation()

    def init(self, task: Task, key: Key) -> State:
        self.check_public(task)
        return super().init(task, key)

    def exchanges(self) -> tuple[Exchange, ...]:
        return tuple(replace(each, reads="each", bias=None) for each in super().exchanges())

    def aggregate(self, task: Task, state: State, replies: Replies, number: int, key: Key) -> State:
        averaged = super().aggregate(task, state, replies, number, key)
        x = state["model"]
        teachers = (
            task.predictor(subtract(x, replies[i]["update"]), replies[i].get("buffers")) for i in replies.weights
        )
        teacher = mean_outputs(teachers, replies.weights.values(), public_inputs(task))
        return self.distilled(task, averaged, teacher, key)
