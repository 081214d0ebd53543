"""FFGB-Distill: functional gradient boosting whose ensemble becomes one network every round (Shen et al., Section 5).

    client   phi = grad R_i[f] + mu f at its samples;  h_i = a fresh weak learner, fitted to phi  (Algorithm 2)
    server   f <- argmin_theta  sum over public x of ||h_theta(x) - sum_i w_i g_i(x)||^2,  g_i = f - eta h_i       (17)
             started from the f before

K = 1, so there is no residual, and the regulariser is part of what is fitted, as in the published code (mu = 0.005,
eta = 10). A client receives one model and sends one learner in a round, however many rounds there were.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from parley.algorithms.boosting.distill import DistillationLoss, mean_outputs, outputs, public_inputs
from parley.algorithms.boosting.distilling import Distilling
from parley.algorithms.boosting.weak import Learner, Network
from parley.algorithms.boosting.weak.gradient import functional_gradient
from parley.algorithms.exchange import Reply, exchange
from parley.algorithms.protocol import Contexts, OneExchange, Replies, algorithm
from parley.core.context import Context
from parley.core.errors import InputError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.training.stack import Data
from parley.training.task import Task


@algorithm("ffgb-distill")
@dataclass(frozen=True)
class FFGBDistill(Distilling, OneExchange):
    """FFGB-Distill (Shen et al.): functional boosting, each round distilled into one network on public inputs.

    It needs unlabelled public inputs: data.public, data.public_fraction, or a federation that has some. Its first
    rounds are a warm start for other methods (init_from).
    """

    student_loss: DistillationLoss | None = "mse"
    """mse compares raw outputs (17), kl the chances of classes."""
    lr: float = 10.0
    """Step size in the space of functions (eta)."""
    mu: float = 0.005
    """Strength of the regulariser mu/2 ||f||^2."""
    learner: Learner = field(default_factory=Network)
    """Weak learner: network, of the study's [model] with weights of its own, or another."""

    def __post_init__(self) -> None:
        if not self.lr > 0 or not self.mu >= 0:
            raise InputError(f"lr must be above 0 and mu at least 0, not {self.lr} and {self.mu}.")
        self.check_distillation()

    def init(self, task: Task, key: Key) -> State:
        self.check_public(task)
        self.learner.check(task, "l2")
        return State.of(model=task.initial(), buffers=task.initial_buffers())

    def broadcast(self, task: Task, state: State, number: int) -> Message:
        return Message.of(model=state["model"], buffers=state.get("buffers"))

    @exchange(
        form=lambda self, task, message: self._learner_form(task),
        accepts=lambda self, task, message: Form.of(model=task.form, buffers=task.buffer_form),
        discloses=lambda self: self.learner.discloses,
        stack=False,
    )
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        f = outputs(task.predictor(message["model"], message.get("buffers")), data.x)
        phi = functional_gradient(task, f, data.y) + self.mu * f
        assert isinstance(context, Context)
        h = self.learner.fit(task, data.x, phi, context.key)
        return Reply(Message.of(learner=h), observed={"loss": task.loss(f, data.y).mean()})

    def _learner_form(self, task: Task) -> Form | None:
        form = self.learner.form(task, 1)
        return None if form is None else Form.of(learner=form)

    def aggregate(self, task: Task, state: State, replies: Replies, number: int, key: Key) -> State:
        x = public_inputs(task)
        received = {i: replies[i]["learner"] for i in replies.weights}
        shares = {i: w for i, w in replies.weights.items() if self.learner.sound(task, received[i])}
        if not shares:
            return state
        learners = (partial(self.learner.values, task, received[i]) for i in shares)
        f = outputs(task.predictor(state["model"], state.get("buffers")), x)
        teacher = f - self.lr * mean_outputs(learners, shares.values(), x)
        return self.distilled(task, state, teacher, key)
