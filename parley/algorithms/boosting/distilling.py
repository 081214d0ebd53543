"""What methods share whose server distils the clients' functions into one network on public inputs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from parley.algorithms.boosting.distill import Distillation, DistillationLoss, public_inputs
from parley.algorithms.protocol import Algorithm
from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.message import State
from parley.training.task import Task


@dataclass(frozen=True)
class Distilling(Algorithm):
    """How the student learns."""

    student_loss: DistillationLoss | None = None
    """mse compares raw outputs, kl the chances of classes; by default kl, for numbers mse."""
    student_epochs: int = 100
    """Passes of the student over the public inputs in a round."""
    student_batch: int | None = 64
    """Public inputs per step of the student; 0 takes all."""
    student_lr: float = 0.001
    """Step size of the student."""
    student_optimizer: str = "adam"
    """Optimizer of the student: sgd or any elementwise one of torch.optim."""
    student_clip: float | None = 5.0
    """Largest norm of the gradient of a student's step."""

    def check_distillation(self) -> None:
        """Refuse settings that the student cannot learn with."""
        if self.student_batch == 0:
            object.__setattr__(self, "student_batch", None)
        self._distillation("mse")

    def _distillation(self, loss: DistillationLoss) -> Distillation:
        return Distillation(
            loss, self.student_epochs, self.student_batch, self.student_lr, self.student_optimizer, self.student_clip
        )

    def check_public(self, task: Task) -> None:
        """Refuse a task without public inputs, or one whose statistics the server never sees."""
        public_inputs(task)
        if task.buffer_form and task.buffers == "local":
            raise InputError(
                f"{self.title} trains a student at the server, whose statistics clients must have; set "
                'buffers = "average".'
            )
        if task.info.kind == "regression" and self.student_loss == "kl":
            raise InputError('student_loss = "kl" is for classes; set student_loss = "mse".')

    def distilled(self, task: Task, state: State, teacher: Tensor, key: Key) -> State:
        """The state whose model, the student's start, has become the student."""
        distil = self._distillation(self.student_loss or ("mse" if task.info.kind == "regression" else "kl"))
        student = distil(task, state["model"], state.get("buffers"), teacher, key.fold("student"))
        return state.replace(model=student.parameters, buffers=student.buffers if task.buffer_form else {})
