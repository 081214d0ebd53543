"""FedAvg and FedProx on features (Su et al.): kernel regression in which no sample is sent.

    server   theta <- theta + sum_i w_i (theta_i - theta)
    client   FedAvg    theta_i = theta after s gradient steps of size eta on 1/(2 n_i) ||y_i - Phi_i theta||^2
             FedProx   theta_i = argmin_v 1/(2 n_i) ||y_i - Phi_i v||^2 + 1/(2 eta) ||v - theta||^2, exactly

f(x) = theta phi(x) is the model "features"; theta and its changes travel, d numbers per output. A round is

    theta <- theta - eta sum_i w_i P_i (A_i theta - b_i),   A_i = Phi_i'Phi_i / n_i,  b_i = Phi_i'y_i / n_i,
    P_i = sum_{tau < s} (I - eta A_i)^tau (FedAvg) or (I + eta A_i)^-1 (FedProx)

which is Proposition 3 for the kernel <phi(x), phi(z)>. With batches each pass visits a client's batches once, in the
order of its samples, with eta/n_i on the batch's sum; FedProx starts each proximal step from the latest iterate
(Section 7.1). All of it is float64, also where the data are float32.

Samples stay with the client, but a change lies in the span of its phi(x_ij): of a client with a single sample it
shows phi(x) up to a factor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from parley.algorithms.exchange import Reply, exchange
from parley.algorithms.kernel.least_squares import FeatureSpace, LeastSquares, descend, targets_of
from parley.algorithms.protocol import Contexts, OneExchange, Replies, algorithm
from parley.core.errors import InputError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.threads import one_thread
from parley.core.tree import subtract
from parley.data import ClientData
from parley.models.feature_model import FeatureModel
from parley.theory.kernel.methods import GradientSteps as FedAvg
from parley.theory.kernel.methods import KernelStep as Method
from parley.theory.kernel.methods import ProximalStep as FedProx
from parley.theory.kernel.points import check_finite
from parley.training.stack import Data
from parley.training.task import Task


@dataclass(frozen=True)
class OnFeatures(LeastSquares, OneExchange):
    """What both methods have in common."""

    def init(self, task: Task, key: Key) -> State:
        self.check(task)
        if not isinstance(task.module, FeatureModel):
            raise InputError(
                f'{type(self).__name__} trains the model "features", not {type(task.module).__name__}; for linear '
                'regression take its map "identity".'
            )
        return State.of(model=task.initial())

    @exchange(
        form=lambda self, task, message: Form.of(update=task.form),
        accepts=lambda self, task, message: Form.of(model=task.form),
        reads="mean",
        compress=("update",),
        stack=False,
    )
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        assert isinstance(data, ClientData)
        assert isinstance(task.module, FeatureModel)
        ((name, theta),) = message["model"].items()
        y, phi = targets_of(task, data.y), task.module.features(data.x)
        check_finite(phi.numpy(), "its features")
        with one_thread():
            space = FeatureSpace.of(phi.numpy(), y, theta.numpy().T, self.batch, self.method)
            descend(space, self.method, len(data))
        moved = theta - torch.from_numpy(np.ascontiguousarray(space.theta.T))
        return Reply(Message.of(update={name: moved}), observed={"loss": task.loss(phi @ theta.T, data.y).mean()})

    def aggregate(self, task: Task, state: State, replies: Replies, number: int, key: Key) -> State:
        return State.of(model=subtract(state["model"], replies.mean_change("update")))


@algorithm("feature-fedavg")
@dataclass(frozen=True)
class FeatureFedAvg(OnFeatures):
    """FedAvg on features (Su et al.): s gradient steps of least squares, full batches by default."""

    steps: int = 5
    """Local gradient steps, or passes over the batches, per round (s)."""

    @property
    def method(self) -> Method:
        return FedAvg(self.lr, self.steps)


@algorithm("feature-fedprox")
@dataclass(frozen=True)
class FeatureFedProx(OnFeatures):
    """FedProx on features (Su et al.): the exact proximal step of least squares, for any step size."""

    @property
    def method(self) -> Method:
        return FedProx(self.lr)
