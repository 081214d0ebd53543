"""FedAvg and FedProx in a reproducing kernel Hilbert space (Su et al.): with any kernel, on the clients' own points.

    server   f <- f + sum_i w_i (f_i - f)
    client   FedAvg    f_i = f after s gradient steps of size eta on 1/(2 n_i) sum_j (y_ij - f(x_ij))^2
             FedProx   f_i = argmin_g 1/(2 n_i) sum_j (y_ij - g(x_ij))^2 + 1/(2 eta) ||g - f||_H^2, exactly

The function is f = f_0 + sum_ij c_ij k(., x_ij), where f_0 is the model as it starts. A client that is asked for the
first time sends its inputs, once (`points`); then it receives f - f_0 at its own points and answers with the change of
its own coefficients c_i. With all clients and weights n_i / N the values at all samples are (Proposition 3)

    f <- f + eta K P (y - f),   P_ii = sum_{tau < s} (I - eta K_i)^tau (FedAvg) or (I + eta K_i)^-1 (FedProx).

With batches each pass visits a client's batches once, in the order of its samples, with eta/n_i on the batch's sum;
FedProx starts each proximal step from the latest iterate (Section 7.1). All of it is float64, also where the data are
float32.

This form REVEALS THE DATA TO THE SERVER: f cannot be evaluated without the points, so it learns all inputs, and it can
solve c_i = eta/n_i P_ii (y_i - f) for the targets. Clients learn nothing of each other but f at their own points,
unless they are asked to evaluate f on held-out samples: for that they need the function, hence all points. Use it
where the server may see the data, or to find out what features (`feature-fedavg`, `feature-fedprox`) lose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

import numpy as np
import torch
from torch import Tensor

from parley.algorithms.exchange import Reply, ask, exchange
from parley.algorithms.kernel.least_squares import LeastSquares, SampleSpace, descend, targets_of
from parley.algorithms.protocol import Cohort, Contexts, Learned, Questions, algorithm
from parley.core.errors import InputError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message, Payload, State
from parley.core.threads import one_thread
from parley.core.tree import Tree
from parley.data import ClientData
from parley.models.feature_model import points_of
from parley.theory.kernel.gram import Gram, cross_product
from parley.theory.kernel.kernels import RBF, Kernel
from parley.theory.kernel.methods import GradientSteps as FedAvg
from parley.theory.kernel.methods import KernelStep as Method
from parley.theory.kernel.methods import ProximalStep as FedProx
from parley.theory.kernel.points import Samples
from parley.theory.theta import Array
from parley.training.stack import Data
from parley.training.task import Predictor, Task


@dataclass(frozen=True)
class OnPoints(LeastSquares):
    """What both methods have in common."""

    kernel: Kernel = field(default_factory=RBF)
    """k(x, z): rbf, laplace, linear, polynomial, sobolev, arc-cosine or two-layer-ntk."""

    def init(self, task: Task, key: Key) -> State:
        self.check(task)
        return State()

    # --- the server ---

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Questions:
        points, coefficients = _points(state), state.get("coefficients")
        new = [i for i in cohort.ids if i not in points]
        if new:
            replies = yield ask(self.points, dict.fromkeys(new, Message()))
            points = dict(sorted((points | {i: reply.tensor("points") for i, reply in replies.items()}).items()))
            coefficients = coefficients | {i: _zeros(len(points[i]), task.info.outputs) for i in replies}
        values = self._values(points, coefficients, [i for i in cohort.ids if i in points])
        replies = yield ask(self.client, {i: Message.of(values=value) for i, value in values.items()})
        shares = cohort.shares(list(replies))
        moved = {i: coefficients[i] + share * replies[i].tensor("coefficients") for i, share in shares.items()}
        return State.of(points=points, coefficients=coefficients | moved)

    def _values(self, points: Tree, coefficients: Tree, clients: Sequence[str]) -> Tree:
        """f - f_0 at the points of these clients, [n_i, outputs] each."""
        if not clients:
            return {}
        gram = _gram(self.kernel, tuple(points.values()))  # type: ignore[arg-type] # kernels are frozen
        rows = dict(zip(points, gram.samples.slices, strict=True))
        with one_thread():
            if len(clients) == len(points):
                values = gram.matmul(_stacked(points, coefficients)) * gram.samples.N
                return {i: torch.from_numpy(values[rows[i]].copy()) for i in clients}
            x, c = gram.samples.x, _stacked(points, coefficients)
            return {i: torch.from_numpy(_sums(self.kernel, x[rows[i]], x, c)) for i in clients}

    # --- the client ---

    @exchange(
        form=lambda self, task, message: Form.of(points=(None, (None, prod(task.info.shape)))),
        accepts=lambda self, task, message: Form(),
        discloses=("inputs",),
        stack=False,
    )
    def points(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """The client's inputs, once."""
        assert isinstance(data, ClientData)
        self._descended(task, data, torch.zeros(1))  # a client that cannot take part fails before it has sent anything
        return Reply(Message.of(points=data.x.reshape(len(data), -1)))

    @exchange(
        form=lambda self, task, message: Form.of(coefficients=(torch.float64, tuple(message.tensor("values").shape))),
        accepts=lambda self, task, message: Form.of(values=(torch.float64, (None, task.info.outputs))),
        discloses=("labels",),
        stack=False,
    )
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        assert isinstance(data, ClientData)
        f, coefficients = self._descended(task, data, message.tensor("values"))
        return Reply(Message.of(coefficients=coefficients), observed={"loss": task.loss(f, data.y).mean()})

    def _descended(self, task: Task, data: ClientData, values: Tensor) -> tuple[Tensor, Tensor]:
        """f at the client's points, f - f_0 being `values`, and the coefficients that its steps add."""
        x, y = points_of(data.x, "its data"), targets_of(task, data.y)
        f = _start(task)(data.x).detach().double().reshape(y.shape) + values
        with one_thread():
            space = SampleSpace.of(self.kernel, x, y, f.numpy(), self.batch)
            descend(space, self.method, len(x))
        return f, torch.from_numpy(space.coefficients)

    # --- the function learned ---

    def learned(self, task: Task) -> Learned:
        return KernelSum(task, kernel=self.kernel, title=self.title)


@dataclass(frozen=True)
class KernelSum(Learned):
    """f_0 + sum_ij c_ij k(., x_ij)."""

    kernel: Kernel = field(default_factory=RBF)
    title: str = ""

    def check(self, message: Message, memory: Memory | None = None) -> None:
        points, sides = _points(message), (None, self.task.info.outputs)
        coefficients = dict.fromkeys(points, (torch.float64, sides))
        inputs = dict.fromkeys(points, (None, (None, prod(self.task.info.shape))))
        Form.of(points=inputs, coefficients=coefficients).check(message.tensors)

    def outputs(self, message: Message, memory: Memory | None, x: Tensor, before: Tensor | None = None) -> Tensor:
        f, points = _start(self.task)(x).double(), _points(message)
        if not points:
            return f
        everywhere = np.concatenate([points_of(inputs) for inputs in points.values()])
        coefficients = _stacked(points, message.get("coefficients"))
        with one_thread():
            learned = _sums(self.kernel, points_of(x), everywhere, coefficients)
        return f + torch.from_numpy(learned).reshape(f.shape)

    def module(self, message: Message, memory: Memory | None = None) -> None:
        raise InputError(
            f"what {self.title} learns is a function on the clients' points, so there is no module to take "
            'out: use "parley predict", or train on features, which can be exported.'
        )


@algorithm("kernel-fedavg")
@dataclass(frozen=True)
class KernelFedAvg(OnPoints):
    """FedAvg for kernel regression (Su et al.): s gradient steps in the function space. Clients send their inputs."""

    steps: int = 5
    """Local gradient steps, or passes over the batches, per round (s)."""

    @property
    def method(self) -> Method:
        return FedAvg(self.lr, self.steps)


@algorithm("kernel-fedprox")
@dataclass(frozen=True)
class KernelFedProx(OnPoints):
    """FedProx for kernel regression (Su et al.): the exact proximal step, any step size. Clients send their inputs."""

    @property
    def method(self) -> Method:
        return FedProx(self.lr)


def _points(payload: Payload) -> Tree:
    """By client, in an order that does not depend on who came first or on how a checkpoint was written."""
    return dict(sorted(payload.get("points").items()))


def _start(task: Task) -> Predictor:
    """f_0."""
    return task.predictor(task.initial(), task.initial_buffers())


def _zeros(rows: int, columns: int) -> Tensor:
    return torch.zeros(rows, columns, dtype=torch.float64)


def _stacked(points: Tree, coefficients: Tree) -> Array:
    """All coefficients in the order of the points, [N, outputs]."""
    return np.asarray(torch.cat([coefficients[i] for i in points]).numpy(), dtype=np.float64)


def _sums(kernel: Kernel, at: Array, points: Array, coefficients: Array) -> Array:
    """sum_j c_j k(x, x_j) at every x, [n, outputs]."""
    return cross_product(kernel, at, points, coefficients) * len(points)


@lru_cache(maxsize=1)
def _gram(kernel: Kernel, points: tuple[Tensor, ...]) -> Gram:
    """K of all points the server has; tensors differ by identity, so it is made again only when somebody joins."""
    return Gram(kernel, Samples.of([points_of(inputs) for inputs in points]), memory=2**30)
