"""LocalUpdate (Charles and Konečný, Algorithms 1 and 2) and its special cases (Table 1).

    server   x_{t+1} = SERVEROPT(x_t, q_t),  q_t = sum_i w_i q_t^i
    client   x_1 = x;  for k = 1 ... K:  g_k = gradient of f_i + alpha/2 ||. - x||^2 at x_k,  x_{k+1} = x_k - gamma g_k
             send q_t^i = sum_k theta_k g_k

FedAvg and its relatives send the change of the model, x - x_{K+1} = gamma sum_k g_k, in place of q: that is the form
"delta", where a server step of 1 is plain averaging. In the form "gradients" the server's learning rate is separate,
and gamma = 0 is FedSGD.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from parley.algorithms.averaging.local_sgd import Local, LocalSGD
from parley.algorithms.averaging.preset import Default, preset
from parley.algorithms.averaging.server import Adagrad, Adam, Descent, HeavyBall, ServerOptimizer, Slots, Yogi
from parley.algorithms.exchange import Reply, exchange
from parley.algorithms.protocol import Contexts, Learned, OneExchange, Replies, algorithm
from parley.core.errors import InputError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.tree import Tree, subtract
from parley.training.meta import meta_gradient
from parley.training.schedules import Constant
from parley.training.stack import Data
from parley.training.task import Task
from parley.training.transforms import GradientTransform, pull

_SLOT = "server-"


Weights = Literal["all", "last"] | tuple[float, ...]
Sent = Literal["gradients", "delta"]


@dataclass(frozen=True)
class Averaging(LocalSGD, OneExchange):
    """What all members of the family have in common; without more, the change of the model is averaged."""

    theta: ClassVar[Weights] = "all"
    form: ClassVar[Sent] = "delta"

    lr: float = 0.1
    """Local step size (gamma)."""
    alpha: float = 0.0
    """Strength of the proximal pull towards the server's model."""
    server: ServerOptimizer = field(default_factory=Descent)
    """What the server does with the average: sgd, heavy-ball, nesterov, adam, yogi or adagrad."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.alpha >= 0:
            raise InputError(f"alpha must be at least 0, not {self.alpha}.")
        if self.lr == 0 and self.schedule != Constant():
            raise InputError("lr is 0, so a schedule of the local step size changes nothing; leave it out.")
        if self.form == "delta" and self.lr == 0:
            raise InputError('lr must be above 0; 0 is for the form "gradients" of local-update.')
        if self.form == "gradients" and not self.local_optimizer().plain:
            raise InputError('form = "gradients" is defined for plain local SGD; use form = "delta".')

    def start(self, task: Task) -> Tree:
        """What the server's model is before the first round: all parameters, or those that clients share."""
        return task.initial()

    def shared(self, task: Task) -> Form:
        """The form of the parameters that clients share."""
        return task.form

    def init(self, task: Task, key: Key) -> State:
        x = self.start(task)
        travelling = self.sent_buffers(task)
        buffers = {name: value for name, value in task.initial_buffers().items() if name in travelling}
        return State.of(model=x, buffers=buffers, **_named(self.server.start(x)))

    def broadcast(self, task: Task, state: State, number: int) -> Message:
        return Message.of(model=state["model"], buffers=state.get("buffers"))

    @exchange(
        form=lambda self, task, message: self.form_of(task, update=self.shared(task)),
        accepts=lambda self, task, message: self.form_of(task, model=self.shared(task)),
        reads="mean",
        compress=("update",),
        bias=lambda self: None if self.needs.pooled else "steps",
    )
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        x = message["model"]
        local = self.steps_from(task, x, message, memory, data, context)
        update = local.gradients if self.form == "gradients" else subtract(x, local.parameters)
        return self.reply(task, local, send={"update": update})

    def steps_from(self, task: Task, x: Tree, message: Message, memory: Memory, data: Data, context: Contexts) -> Local:
        """The client's K steps."""
        theta = self.theta if self.form == "gradients" else None
        return self.train(task, x, message, memory, data, context, transform=self.proximal(x), theta=theta)

    def proximal(self, x: Tree) -> GradientTransform:
        """The proximal term's gradient, if there is one."""
        return pull(x, self.alpha) if self.alpha else GradientTransform()

    def aggregate(self, task: Task, state: State, replies: Replies, number: int, key: Key) -> State:
        q = replies.mean_change("update")
        x, slots = self.server.step(state["model"], q, _slots(state))
        return state.replace(model=x, buffers=self.folded_buffers(task, state, replies), **_named(slots))

    def learned(self, task: Task) -> Learned:
        def reported(state: State, since: int | None) -> Message:
            x = self.server.iterate(state["model"], _slots(state))
            return Message.of(model=x, buffers=state.get("buffers"))

        return Learned(task, read=reported)


def _named(slots: Slots) -> dict[str, Tree]:
    return {_SLOT + name: tree for name, tree in slots.items()}


def _slots(state: State) -> Slots:
    return {name.removeprefix(_SLOT): state[name] for name in sorted(state.groups()) if name.startswith(_SLOT)}


@algorithm("local-update")
@dataclass(frozen=True)
class LocalUpdate(Averaging):
    """The whole family: any Theta, alpha, gamma and server optimizer."""

    theta: Weights = "all"  # type: ignore[misc]
    """Weights of the gradients sent: all (Theta_1:K), last (Theta_K) or a list of K numbers."""
    form: Sent = "gradients"  # type: ignore[misc]
    """Send sum_k theta_k g_k, for which lr may be 0, or the change of the model x - x_{K+1}."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form == "delta" and self.theta != "all":
            raise InputError('form = "delta" needs theta = "all"; use form = "gradients".')
        if not isinstance(self.theta, str):
            object.__setattr__(self, "theta", tuple(float(weight) for weight in self.theta))
            if not any(self.theta) or any(not w >= 0 for w in self.theta):
                raise InputError("theta must be a list of numbers that are not negative and not all zero.")
            if self.steps is None or self.epochs is not None or len(self.theta) != self.steps:
                raise InputError(f"theta has {len(self.theta)} weights, so steps must be {len(self.theta)}.")


@algorithm("fedavg")
@dataclass(frozen=True)
class FedAvg(Averaging):
    """Federated averaging (McMahan et al., 2017): local SGD, then the mean of the models."""


@algorithm("fedprox")
@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedProx (Li et al., 2020): FedAvg with a pull alpha/2 ||y - x||^2 (squared) towards the server's model."""

    alpha: float = 0.1
    """Strength of the proximal pull (mu in Li et al.)."""


@dataclass(frozen=True)
class AveragedGradients(Averaging):
    """The sum of the K gradients is averaged."""

    form: ClassVar[Sent] = "gradients"


@algorithm("fomaml")
@dataclass(frozen=True)
class FOMAML(AveragedGradients):
    """First-order MAML (Finn et al., 2017): the gradient after K - 1 local steps, Theta_K."""

    theta: ClassVar[Weights] = "last"

    server: ServerOptimizer = field(default_factory=lambda: Descent(lr=0.1))
    """What the server does with the average."""


@algorithm("maml")
@dataclass(frozen=True)
class MAML(AveragedGradients):
    """MAML (Finn et al., 2017) with true second-order gradients through the K local steps."""

    clip: ClassVar[None] = None  # type: ignore[misc] # nothing cuts a gradient through the steps

    server: ServerOptimizer = field(default_factory=lambda: Descent(lr=0.1))
    """What the server does with the average."""

    def steps_from(self, task: Task, x: Tree, message: Message, memory: Memory, data: Data, context: Contexts) -> Local:
        lr = self.local_optimizer(context.round).lr
        adapted = meta_gradient(task, x, data, context.key, work=self.work(), lr=lr, alpha=self.alpha)
        return self.local(task, x, adapted, data, context, {})


# --- other methods that are settings of these (Table 1): the name in a study, in Python, what it is, its defaults ---

FedSGD = preset(
    "fedsgd",
    "FedSGD",
    AveragedGradients,
    "FedSGD (McMahan et al., 2017): gamma = 0, the clients' gradients at the server's model are averaged.",
    lr=Default(0.0, "Local step size; 0, the clients do not move."),
    steps=Default(1, "Gradients per client and round."),
    batch=Default(None, "Samples per gradient; 0 takes all of a client's samples."),
    server=Default(Descent(lr=0.1), "The server's optimizer; its learning rate is the only one."),
)
Reptile = preset(
    "reptile",
    "Reptile",
    FedAvg,
    "Reptile (Nichol et al., 2018): FedAvg seen as meta-learning, with a server step below 1.",
    server=Default(Descent(lr=0.5), "The outer step (epsilon) is server.lr."),
)
MetaMinibatchProx = preset(
    "metaminibatchprox",
    "MetaMinibatchProx",
    FedProx,
    "MetaMinibatchProx (Zhou et al., 2019): FedProx seen as meta-learning.",
)
FedAvgM = preset(
    "fedavgm",
    "FedAvgM",
    FedAvg,
    "FedAvgM (Hsu et al., 2019): FedAvg with heavy-ball momentum on the server.",
    server=Default(HeavyBall(), "Heavy ball: server.lr and server.momentum."),
)
FedAdam = preset(
    "fedadam",
    "FedAdam",
    FedAvg,
    "FedAdam (Reddi et al., 2021): Adam on the server.",
    server=Default(Adam(), "Adam: server.lr, server.beta1, server.beta2, server.epsilon."),
)
FedYogi = preset(
    "fedyogi",
    "FedYogi",
    FedAvg,
    "FedYogi (Reddi et al., 2021): Yogi on the server.",
    server=Default(Yogi(), "Yogi: server.lr, server.beta1, server.beta2, server.epsilon."),
)
FedAdagrad = preset(
    "fedadagrad",
    "FedAdagrad",
    FedAvg,
    "FedAdagrad (Reddi et al., 2021): Adagrad on the server.",
    server=Default(Adagrad(), "Adagrad: server.lr and server.epsilon."),
)
