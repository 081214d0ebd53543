"""FedALS with SCAFFOLD: control variates for every part (Gholami and Seferoglu, Algorithm 4).

Every part has its own c and c_i, which change when it is averaged and travel with it:

    theta_k <- theta_k - eta (g_k - c_k + c);   c_k <- c_k - c + (start - theta_k) / (eta * steps since its average)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from parley.algorithms.exchange import Reply, exchange
from parley.algorithms.parts.fedals import FedALS
from parley.algorithms.parts.parts import Part, merged, parameters_of
from parley.algorithms.parts.periods import numbered
from parley.algorithms.protocol import Contexts, Needs, Replies, algorithm
from parley.core.errors import InputError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.tree import Tree, add, scale, zeros_like
from parley.training import transforms
from parley.training.stack import Data
from parley.training.task import Task


@algorithm("fedals-scaffold")
@dataclass(frozen=True)
class FedALSScaffold(FedALS):
    """FedALS with SCAFFOLD (Gholami and Seferoglu, Algorithm 4): control variates per part, at the part's own pace."""

    travels: ClassVar[tuple[str, ...]] = ("model", "c")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer != "sgd" or self.schedule.by == "step":
            raise InputError("control variates are read off SGD steps of one size; take sgd and leave out schedule.")

    @property
    def needs(self) -> Needs:
        return Needs(cohorts="unbiased")

    def init(self, task: Task, key: Key) -> State:
        return super().init(task, key).replace(c=zeros_like(task.initial()))

    def folded(self, task: Task, state: State, replies: Replies, due: Sequence[Part]) -> State:
        share, moved = replies.count / task.population, replies.mean_change("c", optional=True)
        return state.replace(c=state["c"] | add(parameters_of(state["c"], due), moved, share))

    @exchange(like=FedALS.client)
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        visit = self.visit(task, message, memory)
        zeros = zeros_like(parameters_of(visit.x, self.private(task)))
        c = merged(task.form, zeros | memory.get("c"), message.get("c"))
        c_i = memory.get("c_i") or zeros_like(c)
        transform = transforms.add(c) | transforms.add(c_i, -1.0)
        local = self.train(task, visit.x, message, memory, data, context, transform=transform)
        # How far each part has come since its last average, in units of gradients.
        before = memory.get("steps") | {part.label: 0 for part in visit.fresh}
        steps = {label: local.step_sum + past for label, past in before.items()}
        update, change = visit.moved(local), Tree()
        for part in visit.due:
            mean = scale(parameters_of(update, [part]), 1 / steps[part.label])
            change |= {name: gradient - c[name] for name, gradient in mean.items()}
        kept = {
            "c_i": c_i | add(parameters_of(c_i, visit.due), change),
            "c": parameters_of(c, visit.rest),
            "steps": {part.label: steps[part.label] for part in visit.rest},
        }
        return self.answer(task, visit, local, {"c": change}, kept)

    def _form(self, task: Task, message: Message, **more: Form) -> Form:
        due = numbered(self.parts(task), message, "due")
        return super()._form(task, message, c=Form(parameters_of(task.form, due)), **more)
