"""Local SGD, once for all methods: how much a client does, with which optimizer, what it keeps and what may be seen.

A method adds a gradient transform, what it sends and how the server folds it:

    local = self.train(task, x, message, memory, data, context, transform=...)
    return self.reply(task, local, send={"update": subtract(x, local.parameters)}, keep={...})

A method that trains in several phases, or two models, calls `train` several times and names the phases:

    head = self.train(task, x, ..., only=head_names, phase="head")
    body = self.train(task, head.parameters, ..., only=body_names, buffers=head.buffers)
    return self.reply(task, body, send={...}, keep={..., **head.kept})
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from parley.algorithms.exchange import Reply
from parley.algorithms.protocol import Algorithm, Contexts, Replies
from parley.core.errors import InputError
from parley.core.form import Form
from parley.core.message import Memory, Message, Part, State
from parley.core.show import Brief
from parley.core.tree import Tree, scale
from parley.training.batches import Order, Work
from parley.training.local import Theta, Trained, full_gradient, observations, train
from parley.training.optimizers import Kept, LocalOptimizer
from parley.training.schedules import Constant, Schedule
from parley.training.stack import Data
from parley.training.task import Task
from parley.training.transforms import GradientTransform


@dataclass(frozen=True, slots=True, repr=False)
class Local(Brief):
    """What a client's local training led to."""

    parameters: Tree
    buffers: Tree
    gradients: Tree
    """sum_k theta_k g_k, empty unless asked for."""
    observed: dict[str, Tensor]
    trained: Trained
    kept: dict[str, Part] = field(default_factory=dict)
    """The optimizer's state for the client's memory, if it runs through the rounds."""

    def mean_gradient(self, moved: Tree) -> Tree:
        """The mean of the (transformed) gradients whose SGD steps moved the parameters by -`moved`."""
        return scale(moved, 1 / self.trained.step_sum)

    @property
    def step_sum(self) -> Tensor:
        """lr ||a||_1, [] in float64: lr times the number of steps, without momentum."""
        return self.trained.step_sum


@dataclass(frozen=True)
class LocalSGD(Algorithm):
    """What every method with local SGD can be told."""

    usual_steps: ClassVar[int | None] = None
    """Local steps if neither steps nor epochs are given; None: one epoch."""

    lr: float = 0.1
    """Local step size."""
    steps: int | None = None
    """Local steps per round; without steps and epochs, one epoch."""
    epochs: int | None = None
    """Local passes over the client's data per round, in place of steps."""
    batch: int | None = 32
    """Samples per step; 0 takes all of a client's samples (its exact gradient)."""
    order: Order = "shuffle"
    """Batches from shuffled passes, or drawn independently for each step."""
    optimizer: str = "sgd"
    """Local optimizer: sgd or any elementwise one of torch.optim."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the local optimizer, such as momentum."""
    schedule: Schedule = field(default_factory=Constant)
    """How the step size changes: constant, exponential or cosine by round, or inverse by the client's own steps (needs
    keep)."""
    clip: float | None = None
    """Largest norm of a local step's gradient; longer ones are scaled down to it."""
    keep: bool = False
    """Clients keep the optimizer's state from round to round instead of resetting it."""

    def __post_init__(self) -> None:
        if self.batch == 0:
            object.__setattr__(self, "batch", None)
        if self.steps is None and self.epochs is None:
            object.__setattr__(self, *(("steps", self.usual_steps) if self.usual_steps else ("epochs", 1)))
        if self.clip is not None and not self.clip > 0:
            raise InputError(f"clip must be above 0, not {self.clip}.")
        if self.schedule.by == "step" and not self.keep:
            raise InputError("this schedule goes by a client's steps of all rounds; set keep = true.")
        self.work()
        self.local_optimizer()

    def work(self) -> Work:
        """How much a client does in a round."""
        return Work(self.steps, self.epochs, self.batch, self.order)

    def local_optimizer(self, number: int = 1) -> LocalOptimizer:
        """The optimizer of the local steps in a round."""
        factor = self.schedule.factor(number - 1) if self.schedule.by == "round" else 1.0
        return LocalOptimizer(self.optimizer, self.lr * factor, self.options, self.schedule)

    def train(
        self,
        task: Task,
        x: Tree,
        message: Message,
        memory: Memory,
        data: Data,
        context: Contexts,
        *,
        transform: GradientTransform | None = None,
        theta: Theta | None = None,
        only: Collection[str] | None = None,
        work: Work | None = None,
        buffers: Tree | None = None,
        phase: str = "",
    ) -> Local:
        """The client's steps from x, with the buffers and the optimizer state that are this client's.

        `only`: the parameters that move. `work` and `buffers`: in place of the method's. `phase`: a name of its own for
        each call but one, so that each draws its own batches and keeps its own optimizer's state.
        """
        buffers = self.buffers(task, message, memory) if buffers is None else buffers
        trained = train(
            task,
            x,
            data,
            context.key.fold(phase) if phase else context.key,
            buffers=buffers,
            clip=self.clip,
            work=work or self.work(),
            optimizer=self.local_optimizer(context.round),
            transform=transform,
            theta=theta,
            kept=Kept.of(memory, phase) if self.keep else None,
            only=only,
        )
        return self.local(task, x, trained, data, context, buffers, phase)

    def local(
        self, task: Task, x: Tree, trained: Trained, data: Data, context: Contexts, buffers: Tree, phase: str = ""
    ) -> Local:
        """With what listeners may see."""
        observed = observations(task, x, trained, data, context, buffers)
        kept = trained.optimizer.parts(phase) if self.keep else {}
        return Local(trained.parameters, trained.buffers, trained.gradients, observed, trained, kept)

    def buffers(self, task: Task, message: Message, memory: Memory) -> Tree:
        """The statistics to start from: those the server sent, else the client's own, else the module's."""
        if not task.buffer_form:
            return {}
        return {**task.initial_buffers(), **memory.get("buffers"), **message.get("buffers")}

    def full_gradient(
        self, task: Task, x: Tree, message: Message, memory: Memory, data: Data, context: Contexts
    ) -> Tree:
        """The gradient of the client's loss at x over all its samples."""
        key = context.key.fold("full gradient")
        return full_gradient(task, x, data, key, self.buffers(task, message, memory))

    def reply(
        self, task: Task, local: Local, send: Mapping[str, Part], keep: Mapping[str, Part] | None = None
    ) -> Reply:
        """Sends and keeps; statistics travel or stay (`sent_buffers`), the optimizer's state is kept if it runs on."""
        travelling = self.sent_buffers(task)
        sent = dict(send) | {"buffers": {n: b for n, b in local.buffers.items() if n in travelling}}
        kept = dict(keep or {}) | local.kept
        if staying := {n: b for n, b in local.buffers.items() if n not in travelling}:
            kept["buffers"] = staying
        return Reply(Message.of(**sent), Memory.of(**kept) if kept else None, local.observed)

    def form_of(self, task: Task, **parts: Any) -> Form:
        """The form of `reply(send=parts)`, the statistics that travel included."""
        return Form.of(**parts, buffers=self.sent_buffers(task))

    def sent_buffers(self, task: Task) -> Form:
        """The form of the statistics that travel: by the task's policy, all or none."""
        return task.sent_buffers

    def folded_buffers(self, task: Task, state: State, replies: Replies) -> Tree:
        """The server's statistics after a round: the clients' mean, or those of before if nobody answered."""
        return state.get("buffers") | (replies.mean("buffers") if self.sent_buffers(task) else {})
