"""Federated functional gradient boosting (Shen, Hassani, Kale and Karbasi, AISTATS 2022; Shen et al., Algorithms 1-3).

    server   f <- sum_i w_i g_i^{K+1}                                                        (Algorithm 1)
    client   Delta = 0, g = f; K times                                                       (Algorithm 2)
                 h     <- Oracle(Delta + grad R_i[g])
                 Delta <- Delta + grad R_i[g] - h
                 g     <- g - eta (h + mu g)

The residual Delta carries over what a weak learner h has missed; the regulariser mu/2 ||f||^2 needs no learner. With
oracle = "lipschitz" (square loss) grad R_i[g] = g - u_i, where u_i is the Lipschitz extension of the labels (13):

    client   Delta = 0, g = f; K times                                                       (Algorithm 3)
                 h     <- Oracle(u_i - Delta)
                 Delta <- Delta - u_i + h
                 g     <- g - eta (g - h + mu g)

Functions are sums of weak learners. A step is g <- a_k g + b_k h with the same a_k, b_k for all clients, so a round
multiplies the function by one number and adds the K learners of each client, which are all that travels: clients send
their new learners, receive those of the rounds they missed, and keep f at their own samples. Theorem 4.3's steps are
lr = 2/mu, those of Theorems 4.1 and 4.4 are lr = 4/mu, both with the schedule "inverse", every = 1, offset = 2;
whatever they are, mu eta never exceeds 1, without which Lemma D.1 does not hold.

A client whose samples are all of one class has a gradient that does not depend on its inputs, so its learners are
constants. If that is all clients the ensemble says the same of every input: boost histograms instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import fsum

import torch
from torch import Tensor

from parley.algorithms.boosting.weak import Increment, Learner, Norm, RegressionTree
from parley.algorithms.boosting.weak.gradient import functional_gradient
from parley.algorithms.boosting.weak.lipschitz import Extension
from parley.algorithms.boosting.weak.oracle import Answer, LipschitzOracle, Oracle, size
from parley.algorithms.exchange import Reply, ask, exchange
from parley.algorithms.protocol import Algorithm, Cohort, Contexts, Learned, Needs, Questions, algorithm
from parley.algorithms.trees.ensemble import Trees, stacked
from parley.algorithms.trees.tree_module import TreeModule
from parley.core.context import Context
from parley.core.errors import InputError, WireError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message, Payload, State
from parley.core.tree import Tree
from parley.training.devices import wide
from parley.training.losses import half_squares
from parley.training.schedules import Constant, Schedule
from parley.training.stack import Data
from parley.training.task import Task


@algorithm("ffgb")
@dataclass(frozen=True)
class FFGB(Algorithm):
    """Functional gradient boosting (Shen et al.): clients fit learners to functional gradients, the server adds."""

    lr: float = 0.3
    """Step size eta; mu times it never exceeds 1."""
    steps: int = 1
    """Learners that a client fits in a round, one after the other (K)."""
    mu: float = 0.0
    """Strength of the regulariser mu/2 ||f||^2."""
    schedule: Schedule = field(default_factory=Constant)
    """How the step size changes, by rounds or by the steps taken in all rounds (t K + k - 1)."""
    learner: Learner = field(default_factory=RegressionTree)
    """Weak learner: tree, network, linear or kernel-ridge."""
    oracle: Norm = "l2"
    """Norm in which learners are fitted: l2, l-infinity or lipschitz."""
    residual: bool = True
    """What a learner has missed is handed to the next one of the round (Delta)."""
    constant: float | None = None
    """Lipschitz constant L of the extension (13); by default the smallest that each client's labels allow."""

    def __post_init__(self) -> None:
        if self.steps < 1 or not self.lr > 0 or not self.mu >= 0:
            raise InputError(
                f"steps must be at least 1, lr above 0 and mu at least 0, not {self.steps}, {self.lr} and {self.mu}."
            )
        if self.constant is not None and not self.constant > 0:
            raise InputError(f"constant must be above 0, not {self.constant}.")

    @property
    def needs(self) -> Needs:
        return Needs(network=self.learner.needs_model)  # networks are those of the study's model

    def init(self, task: Task, key: Key) -> State:
        if self.oracle == "lipschitz" and task.loss is not half_squares:
            raise InputError('oracle = "lipschitz" is for the square loss; set loss = "half-squares".')
        self.learner.check(task, self.oracle)
        return State()

    # --- the server (Algorithm 1) ---

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Questions:
        lacks = {i: cohort.since.get(i) for i in cohort.ids}
        # Who answered in round r then held the function of the rounds before it.
        messages = {since: _since(state, None if since is None else since - 1) for since in set(lacks.values())}
        replies = yield ask(self.client, {i: messages[since] for i, since in lacks.items()})
        sound = [i for i in replies.weights if self.learner.sound(task, replies[i]["learners"])]
        if not sound:
            return state
        shares = cohort.shares(sound)
        decay, coefficients = self.recursion(number)
        added = Increment(
            self.learner.joined([replies[i]["learners"] for i in shares]),
            torch.tensor([share * c for share in shares.values() for c in coefficients], dtype=torch.float64),
            torch.tensor(1 + fsum(shares.values()) * (decay - 1), dtype=torch.float64),
        )
        left_out = {"unsound": len(replies) - len(sound)} if len(sound) < len(replies) else {}
        return State.of(learners=state.get("learners") | _named(number, added)), left_out

    def recursion(self, number: int) -> tuple[float, list[float]]:
        """g^{K+1} = decay f + sum_k c_k h^k in this round."""
        decay, coefficients = 1.0, list[float]()
        for k in range(self.steps):
            a, b = self._local.step(self.eta(number, k), self.mu)
            decay, coefficients = a * decay, [*[a * c for c in coefficients], b]
        return decay, coefficients

    def eta(self, number: int, k: int) -> float:
        """The size of step k (from 0) of a round (from 1), at most what shrinks g to nothing."""
        taken = (number - 1) * self.steps + k if self.schedule.by == "step" else number - 1
        eta = self.lr * self.schedule.factor(taken)
        most = self._local.shrinkage(self.mu)
        return min(eta, 1 / most) if most else eta

    @property
    def _local(self) -> type[Gradients]:
        return Extensions if self.oracle == "lipschitz" else Gradients

    # --- the client (Algorithm 2, or 3: `_local`) ---

    @exchange(
        form=lambda self, task, message: self._learners_form(task),
        accepts=lambda self, task, message: _received(self.learner, task, message),
        discloses=lambda self: self.learner.discloses,
        stack=False,
    )
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        x, y = data.x, _targets(task, data.y)
        assert isinstance(context, Context)
        f = self.learner.fold(task, _rounds(message), x, memory.tensors.get("f"))
        local = self._local(self, task, x, y, context.key)
        g, delta, learners, seen = f, torch.zeros_like(f), [], _Seen(self.oracle)
        for k in range(self.steps):
            gradient = functional_gradient(task, g, y)
            phi = delta + gradient
            answer, h = local.learner(g, phi, context.key.fold("learner", k))
            seen.note(
                {"gamma": answer.gamma, **{f"gamma/{name}": gamma for name, gamma in answer.parts.items()}},
                gradient=gradient,
                query=phi,
                learner=h,
                residual=phi - h,
                function=g,
            )
            g = g - self.eta(context.round, k) * (h + self.mu * g)
            delta = phi - h if self.residual else delta
            learners.append(answer.learner)
        observed = seen.tensors() | {"loss": task.loss(f, y).mean()} | local.observed()
        return Reply(Message.of(learners=self.learner.joined(learners)), Memory.of(f=f), observed)

    def _learners_form(self, task: Task) -> Form | None:
        form = self.learner.form(task, self.steps)
        return None if form is None else Form.of(learners=form)

    # --- the function learned ---

    def learned(self, task: Task) -> Learned:
        return SumOfLearners(task, incremental=True, read=_since, learner=self.learner)


class Gradients:
    """A client's steps in Algorithm 2: h stands for phi = Delta + grad R_i[g]."""

    def __init__(self, method: FFGB, task: Task, x: Tensor, y: Tensor, key: Key) -> None:
        self.oracle = Oracle(method.learner, task, x, method.oracle)

    @staticmethod
    def shrinkage(mu: float) -> float:
        """The multiple of g in what a step subtracts."""
        return mu

    @classmethod
    def step(cls, eta: float, mu: float) -> tuple[float, float]:
        """a and b of a step g <- a g + b h."""
        return 1 - eta * cls.shrinkage(mu), -eta

    def learner(self, g: Tensor, phi: Tensor, key: Key) -> tuple[Answer, Tensor]:
        """A learner, and what stands for phi at the samples."""
        answer = self.oracle(phi, key)
        return answer, answer.values

    def observed(self) -> Tree:
        return {}


class Extensions(Gradients):
    """A client's steps in Algorithm 3: h stands for u_i - Delta = g - phi, so g - h for phi."""

    def __init__(self, method: FFGB, task: Task, x: Tensor, y: Tensor, key: Key) -> None:
        self.y, self.extension = y, Extension.of(x, y, method.constant)
        self.oracle = LipschitzOracle(method.learner, task, x, self.extension, key.fold("slopes"), method.residual)

    @staticmethod
    def shrinkage(mu: float) -> float:
        return mu + 1

    @classmethod
    def step(cls, eta: float, mu: float) -> tuple[float, float]:
        return 1 - eta * cls.shrinkage(mu), eta

    def learner(self, g: Tensor, phi: Tensor, key: Key) -> tuple[Answer, Tensor]:
        answer = self.oracle(g - phi, key)
        return answer, g - answer.values

    def observed(self) -> Tree:
        return {"B": self.y.abs().max(), "L": torch.tensor(self.extension.constant)}


@dataclass(frozen=True)
class SumOfLearners(Learned):
    """f, round by round: f <- decay f + sum_j c_j h_j."""

    learner: Learner = field(default_factory=RegressionTree)

    def check(self, message: Message, memory: Memory | None = None) -> None:
        _received(self.learner, self.task, message).check(message.tensors)

    def outputs(self, message: Message, memory: Memory | None, x: Tensor, before: Tensor | None = None) -> Tensor:
        f = self.learner.fold(self.task, _rounds(message), x, None if before is None else before.cpu().double())
        return f.to(x.device, wide(x.device))

    def module(self, message: Message, memory: Memory | None = None) -> TreeModule:
        """One module, where the learners are trees."""
        rounds, factor, parts = _rounds(message), 1.0, list[Trees]()
        if not isinstance(self.learner, RegressionTree) or not rounds:
            raise InputError(
                'what FFGB learns is a sum of weak learners, so there is no module to take out; use "parley predict".'
            )
        for added in reversed(rounds):
            trees = Trees.of(added.learners)
            parts.insert(0, replace(trees, values=trees.values.double() * factor * added.coefficients[:, None, None]))
            factor *= float(added.decay)
        return TreeModule(stacked(parts), torch.zeros(self.task.info.outputs), self.task.info.shape)


def _received(learner: Learner, task: Task, message: Message) -> Form:
    """Learners of some rounds, as many as there are, that can be evaluated."""
    trees: dict[str, Tree] = {}
    for name, value in message.get("learners").items():
        number, _, inner = name.partition("/")
        if not (len(number) == 6 and number.isascii() and number.isdigit()):
            raise WireError(f"'{number[:40]}' is no round of learners.")
        trees.setdefault(number, {})[inner] = value
    form = Form()
    for number, tree in trees.items():
        tensors = {name: value for name, value in tree.items() if name not in ("coefficients", "decay")}
        parts = learner.form(task, None)
        parts = Form(dict.fromkeys(tensors)) if parts is None else parts
        parts.check(tensors)
        many = {len(value) for value in tensors.values() if value.ndim}
        if not learner.sound(task, tensors) or (learner.form(task, None) is not None and len(many) != 1):
            raise WireError(f"the learners of round {number} cannot be evaluated.")
        count = (many.pop() if learner.form(task, None) is not None else None,)
        scales = {"coefficients": (torch.float64, count), "decay": (torch.float64, ())}
        form |= Form.of(**{f"learners/{number}": {**parts, **scales}})
    return Form(form)


def _since(state: State, since: int | None) -> Message:
    """The learners of later rounds."""
    learners = state.get("learners")
    return Message.of(learners={n: v for n, v in learners.items() if since is None or _round_of(n) > since})


class _Seen:
    """What listeners may see of a client's steps: the gamma achieved and norms, one number per step."""

    def __init__(self, norm: Norm) -> None:
        self.norm, self.numbers = norm, dict[str, list[float]]()

    def note(self, gammas: dict[str, float], **values: Tensor) -> None:
        for name, number in {**gammas, **{name: size(value, self.norm) for name, value in values.items()}}.items():
            self.numbers.setdefault(name, []).append(number)

    def tensors(self) -> Tree:
        return {name: torch.tensor(numbers, dtype=torch.float64) for name, numbers in self.numbers.items()}


def _targets(task: Task, y: Tensor) -> Tensor:
    """Class numbers [n], or values [n, outputs] in float64."""
    y = y.cpu()
    if task.info.kind == "regression":
        return y.double().reshape(len(y), task.info.outputs)
    if y.ndim != 1:
        raise InputError("has a label for every position of a sample; FFGB takes one label or target per sample.")
    return y


def _named(number: int, boosted: Increment) -> Tree:
    tensors = {**boosted.learners, "coefficients": boosted.coefficients, "decay": boosted.decay}
    return {f"{number:06d}/{name}": value for name, value in tensors.items()}


def _round_of(name: str) -> int:
    return int(name.partition("/")[0])


def _rounds(payload: Payload) -> list[Increment]:
    """The rounds of a message or a state, in their order."""
    by_round: dict[int, Tree] = {}
    for name, value in payload.get("learners").items():
        by_round.setdefault(_round_of(name), {})[name.partition("/")[2]] = value
    return [
        Increment(
            {name: value for name, value in tree.items() if name not in ("coefficients", "decay")},
            tree["coefficients"],
            tree["decay"],
        )
        for _, tree in sorted(by_round.items())
    ]
