"""LocalUpdate (paper 001, Algorithms 1 and 2) and its special cases (Table 1).

    server   x_{t+1} = SERVEROPT(x_t, q_t),  q_t = sum_i w_i q_t^i
    client   x_1 = x;  for k = 1 ... K:  g_k = gradient of f_i + alpha/2 ||. - x||^2 at x_k,  x_{k+1} = x_k - gamma g_k
             send q_t^i = sum_k theta_k g_k

FedAvg and its kin are usually written with the change of the model, x - x_{K+1} = gamma sum_k g_k, in place of q: that
is `form = "delta"`, where a server step of 1 is plain averaging. In the form "gradients" the server's learning rate
stands on its own and gamma = 0 makes sense (FedSGD).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import Tensor

from parley.algorithms.protocol import OneExchange, Replies, Reply, algorithm
from parley.algorithms.server import Adagrad, Adam, Descent, HeavyBall, ServerOptimizer, Slots, Yogi
from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.tree import Schema, Tree, schema, subtract
from parley.learn.batches import Order, Work
from parley.learn.local import Data, Keys, Trained, train
from parley.learn.meta import meta_gradient
from parley.learn.observe import observations
from parley.learn.optimizers import LocalOptimizer
from parley.learn.task import Predictor, Task
from parley.learn.transforms import pull

_SLOT = "server-"


@algorithm("local-update")
@dataclass(frozen=True)
class LocalUpdate(OneExchange):
    """The whole family: any Theta, alpha, gamma and server optimizer."""

    stackable: ClassVar[bool] = True

    lr: float = 0.1
    """Local step size (gamma); 0 is allowed in the form "gradients"."""
    steps: int | None = None
    """Local steps per round (K); without steps and epochs, one epoch."""
    epochs: int | None = None
    """Local passes over the client's data per round, in place of steps."""
    batch: int | None = 32
    """Samples per step; 0 takes all of a client's samples (its exact gradient)."""
    theta: Literal["all", "last"] | tuple[float, ...] = "all"
    """Weights of the gradients sent: all (Theta_1:K), last (Theta_K) or a list of K numbers."""
    alpha: float = 0.0
    """Strength of the proximal pull towards the server's model."""
    server: ServerOptimizer = field(default_factory=Descent)
    """What the server does with the average: sgd, heavy-ball, nesterov, adam, yogi or adagrad."""
    form: Literal["gradients", "delta"] = "gradients"
    """Send sum_k theta_k g_k, or the change of the model x - x_{K+1}."""
    order: Order = "shuffle"
    """Batches from shuffled passes, or drawn independently for each step."""
    optimizer: str = "sgd"
    """Local optimizer: sgd or any of torch.optim (form "delta" only)."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the local optimizer, such as momentum."""

    def __post_init__(self) -> None:
        if self.batch == 0:
            object.__setattr__(self, "batch", None)
        if self.steps is None and self.epochs is None:
            object.__setattr__(self, "epochs", 1)
        if not self.alpha >= 0:
            raise InputError(f"alpha must be at least 0, not {self.alpha}.")
        if not isinstance(self.theta, str):
            object.__setattr__(self, "theta", tuple(float(weight) for weight in self.theta))
            if not any(self.theta) or any(not w >= 0 for w in self.theta):
                raise InputError("theta must be a list of numbers that are not negative and not all zero.")
            if self.steps is None or self.epochs is not None or len(self.theta) != self.steps:
                raise InputError(f"theta has {len(self.theta)} weights, so steps must be {len(self.theta)}.")
        plain = LocalOptimizer(self.optimizer, self.lr, self.options).plain
        if self.form == "gradients" and not plain:
            raise InputError('form = "gradients" is defined for plain local SGD; use form = "delta".')
        if self.form == "delta" and (self.lr == 0 or self.theta != "all"):
            raise InputError('form = "delta" needs lr > 0 and theta = "all"; use form = "gradients".')
        self.work()

    def work(self) -> Work:
        """How much a client does in a round."""
        return Work(self.steps, self.epochs, self.batch, self.order)

    def init(self, task: Task, key: Key) -> State:
        x = task.initial()
        return self._state(x, self.server.start(x), task.initial_buffers() if task.buffers == "average" else {})

    def broadcast(self, task: Task, state: State, number: int) -> Message:
        return Message.of(model=state["model"], buffers=state["buffers"])

    def client(self, task: Task, message: Message, memory: Memory, data: Data, key: Keys) -> Reply:
        x = message["model"]
        buffers = memory["buffers"] or message["buffers"] or task.initial_buffers()
        local = self.local(task, x, buffers, data, key)
        update = local.gradients if self.form == "gradients" else subtract(x, local.parameters)
        return answer(task, local, Message.of(update=update), observations(task, x, local, data, key, local.buffers))

    def local(self, task: Task, x: Tree, buffers: Tree, data: Data, key: Keys) -> Trained:
        """The client's K steps."""
        return train(
            task, x, data, key, buffers=buffers, work=self.work(),
            optimizer=LocalOptimizer(self.optimizer, self.lr, self.options),
            transform=pull(x, self.alpha) if self.alpha else None,
            theta=self.theta if self.form == "gradients" else None,
        )  # fmt: skip

    def aggregate(self, task: Task, state: State, replies: Replies, number: int, key: Key) -> State:
        q = replies.average("update")
        x, slots = self.server.step(state["model"], q, _slots(state))
        averaged = task.traits.has_batchnorm and task.buffers == "average"
        return self._state(x, slots, replies.average("buffers") if averaged else state["buffers"])

    def predictor(self, task: Task, state: State, memory: Memory | None = None) -> Predictor:
        x = self.server.iterate(state["model"], _slots(state))
        own = memory["buffers"] if memory is not None else {}
        return task.predictor(x, own or ({} if task.buffers == "local" else state["buffers"]))

    def weights(self, task: Task, state: State) -> Tree:
        return {**self.server.iterate(state["model"], _slots(state)), **state["buffers"]}

    def expected(self, task: Task) -> Schema:
        buffers = task.initial_buffers() if task.buffers == "average" else {}
        return schema(Message.of(update=task.initial(), buffers=buffers).tensors)

    @staticmethod
    def _state(x: Tree, slots: Slots, buffers: Tree) -> State:
        return State.of(model=x, buffers=buffers, **{_SLOT + name: tree for name, tree in slots.items()})


def answer(
    task: Task, local: Trained, message: Message, observed: dict[str, Tensor], memory: Memory | None = None
) -> Reply:
    """The reply; the client's buffers go into the message or into its memory, as the task's policy says."""
    if task.buffers == "local":
        own = memory or Memory()
        return Reply(message, Memory(own.tensors | Memory.of(buffers=local.buffers).tensors, own.scalars), observed)
    sent = Message(message.tensors | Message.of(buffers=local.buffers).tensors, message.scalars)
    return Reply(sent, memory, observed)


def _slots(state: State) -> Slots:
    names = {name.split("/", 1)[0] for name in state.tensors if name.startswith(_SLOT)}
    return {name.removeprefix(_SLOT): state[name] for name in sorted(names)}


@algorithm("fedavg")
@dataclass(frozen=True)
class FedAvg(LocalUpdate):
    """Federated averaging (McMahan et al., 2017): local SGD, then the mean of the models."""

    form: Literal["gradients", "delta"] = "delta"
    """Send the change of the model; a server step of 1 is plain averaging."""


@algorithm("reptile")
@dataclass(frozen=True)
class Reptile(FedAvg):
    """Reptile (Nichol et al., 2018): FedAvg seen as meta-learning, with a server step below 1."""

    server: ServerOptimizer = field(default_factory=lambda: Descent(lr=0.5))
    """The outer step (epsilon) is server.lr."""


@algorithm("fedprox")
@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedProx (Li et al., 2020): FedAvg with a pull alpha/2 ||y - x||^2 (squared) towards the server's model."""

    alpha: float = 0.1
    """Strength of the proximal pull (mu in Li et al.)."""


@algorithm("metaminibatchprox")
@dataclass(frozen=True)
class MetaMinibatchProx(FedProx):
    """MetaMinibatchProx (Zhou et al., 2019): FedProx seen as meta-learning."""


@algorithm("fedsgd")
@dataclass(frozen=True)
class FedSGD(LocalUpdate):
    """FedSGD (McMahan et al., 2017): gamma = 0, the clients' gradients at the server's model are averaged."""

    lr: float = 0.0
    """Local step size; 0, the clients do not move."""
    steps: int | None = 1
    """Gradients per client and round."""
    batch: int | None = None
    """Samples per gradient; 0 takes all of a client's samples."""
    server: ServerOptimizer = field(default_factory=lambda: Descent(lr=0.1))
    """The server's optimizer; its learning rate is the only one."""


@algorithm("fomaml")
@dataclass(frozen=True)
class FOMAML(LocalUpdate):
    """First-order MAML (Finn et al., 2017): the gradient after K - 1 local steps, Theta_K."""

    theta: Literal["all", "last"] | tuple[float, ...] = "last"
    """Only the last gradient is sent."""
    server: ServerOptimizer = field(default_factory=lambda: Descent(lr=0.1))
    """What the server does with the average."""


@algorithm("maml")
@dataclass(frozen=True)
class MAML(LocalUpdate):
    """MAML (Finn et al., 2017) with true second-order gradients through the K local steps."""

    server: ServerOptimizer = field(default_factory=lambda: Descent(lr=0.1))
    """What the server does with the average."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form != "gradients" or self.theta != "all":
            raise InputError("MAML sends the gradient through all its local steps; leave form and theta as they are.")

    def local(self, task: Task, x: Tree, buffers: Tree, data: Data, key: Keys) -> Trained:
        return meta_gradient(task, x, data, key, work=self.work(), lr=self.lr, alpha=self.alpha)


@algorithm("fedavgm")
@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """FedAvgM (Hsu et al., 2019): FedAvg with heavy-ball momentum on the server."""

    server: ServerOptimizer = field(default_factory=HeavyBall)
    """Heavy ball: server.lr and server.momentum."""


@algorithm("fedadam")
@dataclass(frozen=True)
class FedAdam(FedAvg):
    """FedAdam (Reddi et al., 2021): Adam on the server."""

    server: ServerOptimizer = field(default_factory=Adam)
    """Adam: server.lr, server.beta1, server.beta2, server.epsilon."""


@algorithm("fedyogi")
@dataclass(frozen=True)
class FedYogi(FedAvg):
    """FedYogi (Reddi et al., 2021): Yogi on the server."""

    server: ServerOptimizer = field(default_factory=Yogi)
    """Yogi: server.lr, server.beta1, server.beta2, server.epsilon."""


@algorithm("fedadagrad")
@dataclass(frozen=True)
class FedAdagrad(FedAvg):
    """FedAdagrad (Reddi et al., 2021): Adagrad on the server."""

    server: ServerOptimizer = field(default_factory=Adagrad)
    """Adagrad: server.lr and server.epsilon."""
