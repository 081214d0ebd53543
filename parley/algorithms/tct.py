"""TCT: train, convexify, train (Yu et al., NeurIPS 2022): SCAFFOLD on the tangent features of a trained network.

    rounds 1 ... R     FedAvg trains the network: w
    after round R      phi(x) = d g(w; x) / d w, where g is the network with one random output in place of its last
                       layer, on p coordinates drawn at random; the cohort's sums of phi and phi^2 standardise it
    rounds R + 1 ...   SCAFFOLD on the linear model V phi(x) + b, with squared errors of one-hot classes: convex, so it
                       settles at the pooled solution whatever the clients' data are

A client receives w and the moments of phi once, with its first message after round R, and keeps them.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from parley.algorithms.base.protocol import (
    Algorithm,
    Cohort,
    Contexts,
    Exchange,
    Question,
    Reply,
    Scheme,
    algorithm,
    as_algorithm,
    ask,
)
from parley.algorithms.local_update import FedAvg
from parley.algorithms.ridge import targets
from parley.algorithms.scaffold import Scaffold
from parley.core.errors import InputError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.tree import Tree
from parley.data import ClientData, Federation
from parley.learn.jacobian import jacobian
from parley.learn.last_layer import last_layer
from parley.learn.losses import half_squares
from parley.learn.stack import ClientStack, Data, Unstackable
from parley.learn.task import Predictor, Task

CHUNK = 128
"""Samples whose features are computed at once."""


@algorithm("tct")
@dataclass(frozen=True)
class TCT(Algorithm):
    """TCT (Yu et al., 2022): FedAvg first, then SCAFFOLD on the tangent features of the network it has come to.

    In a study: [algorithm] name = "tct", the two methods in [algorithm.first] and [algorithm.second].
    """

    compressible: ClassVar[tuple[str, ...]] = ("update",)
    scheme: ClassVar[Scheme] = "unbiased"

    first: Algorithm = field(default_factory=FedAvg)
    """The method that trains the network."""
    rounds: int = 20
    """Rounds of it (R); those after them train on features."""
    second: Scaffold = field(default_factory=lambda: Scaffold(lr=0.5, steps=50, batch=None))
    """SCAFFOLD on features. Their squared norm is about 1, so steps up to 1 are stable with squared errors."""
    features: int = 10_000
    """Coordinates of the gradient that are drawn (p), at most all of them."""
    loss: Literal["squares", "task"] = "squares"
    """Squared errors of one-hot classes or values, as published, or the study's own loss."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", as_algorithm(self.first))
        if self.rounds < 1 or self.features < 1:
            raise InputError("tct: rounds and features must be at least 1.")
        if self.first.personal or self.first.pooled or self.first.incremental:
            raise InputError(f"tct: {self.first.title} does not train one network on clients' data; choose another.")
        for name in ("parties", "summed", "exchangeable", "on_cpu"):
            object.__setattr__(self, name, getattr(self.first, name))

    @property
    def discloses(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.first.discloses, *self.second.discloses)))

    def prepare(self, federation: Federation, key: Key) -> Federation:
        return self.first.prepare(federation, key)

    @property
    def turning_points(self) -> tuple[int, ...]:
        return (self.rounds + 1,)

    def init(self, task: Task, key: Key) -> State:
        last_layer(task.network)
        return self.first.init(task, key)

    # --- the server ---

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Exchange:
        if number <= self.rounds:
            return (yield from self.first.round(task, state, cohort, number, key))
        if "network" not in state:
            network = self.convexified(task, state, key)
            replies = yield ask("moments", dict.fromkeys(cohort.ids, Message.of(network=network, seed=key.seed)))
            state = self._begun(task, network, replies.mean("moments"), key)
        common = {"network": state["network"], "moments": state["moments"], "seed": state.scalars["seed"]}
        course = self.second.round(self.linear_task(task), state, cohort, number, key)
        asked = Question.of(next(course)).messages
        first = {i: (cohort.since.get(i) or 0) <= self.rounds for i in asked}
        replies = yield ask("linear", {i: m.replace(**common) if first[i] else m for i, m in asked.items()})
        try:
            course.send(replies)
        except StopIteration as end:
            done: State = end.value
            return done.replace(**common)
        raise InputError("tct: the second method must have one exchange a round.")

    def convexified(self, task: Task, state: State, key: Key) -> Tree:
        """The trained network's weights and buffers, with one random output in place of its last layer."""
        trained = self.first.weights(task, self.first.model(task, state)) or {}
        head = last_layer(task.network)
        random = torch.from_numpy(key.fold("tct").numpy().standard_normal((1, head.inputs)) / head.inputs**0.5)
        own = {head.weight: random.to(trained[head.weight].dtype)}
        if head.bias is not None:
            own[head.bias] = torch.zeros(1, dtype=trained[head.bias].dtype)
        return {**trained, **own}

    def _begun(self, task: Task, network: Tree, moments: Tree, key: Key) -> State:
        spread = (moments["squares"] - moments["mean"].square()).clamp(min=0).sqrt()
        spread = torch.where(spread > 1e-6 * spread.max(), spread, torch.inf)  # what is alike everywhere says nothing
        scale = 1 / (spread * len(spread) ** 0.5)
        begin = self.second.init(self.linear_task(task), key)
        return begin.replace(network=network, moments={"mean": moments["mean"], "scale": scale}, seed=key.seed)

    # --- the client ---

    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        if isinstance(data, ClientStack):  # said at once, not only when the second method begins
            raise Unstackable("computes features of a client's samples after its first rounds")
        return self.first.client(task, message, memory, data, context)

    def moments(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """The means of phi and phi^2 over the client's samples."""
        parts = [phi.double() for phi in self._phi(task, message["network"], message, data.x)]
        total = torch.stack([part.sum(0) for part in parts]).sum(0)
        squares = torch.stack([part.square().sum(0) for part in parts]).sum(0)
        return Reply(Message.of(moments={"mean": total / len(data), "squares": squares / len(data)}))

    def linear(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """The second method's client, on features."""
        known: Message | Memory = message if "network" in message else memory
        own = memory if "network" in memory else Memory()
        phi = self.standardised(task, known, data.x).to(_dtype(known["network"]))
        y = data.y if self.loss == "task" else targets(task, data.y).to(phi)
        reply = self.second.client(self.linear_task(task), message, own, ClientData(phi, y), context)
        kept = {"network": known["network"], "moments": known["moments"], "seed": known.scalars["seed"]}
        return replace(reply, memory=(reply.memory or Memory()).replace(**kept))

    def answers(self, asked: str) -> Callable[..., Reply]:
        return super().answers(asked) if asked in ("client", "moments", "linear") else self.first.answers(asked)

    def reply_form(self, task: Task, asked: str, message: Message) -> Form | None:
        if asked == "moments":
            spec = (torch.float64, (self._width(task),))
            return Form.of(moments={"mean": spec, "squares": spec})
        if asked == "linear":
            return self.second.reply_form(self.linear_task(task), "client", message)
        return self.first.reply_form(task, asked, message)

    # --- the features and the linear model ---

    def _width(self, task: Task) -> int:
        return min(self.features, sum(p.numel() for p in _one_output(task.network).parameters() if p.requires_grad))

    def _phi(self, task: Task, network: Tree, given: Message | Memory, x: Tensor) -> list[Tensor]:
        """d g / d w at the coordinates drawn, [n, p] in parts."""
        module = _one_output(task.network).eval()
        sizes = [p.numel() for p in module.parameters() if p.requires_grad]
        key = Key(int(given.scalars["seed"])).fold("coordinates")
        drawn = torch.from_numpy(key.numpy().permutation(sum(sizes))[: self._width(task)]).sort().values
        names = [name for name, p in module.named_parameters() if p.requires_grad]
        parts = []
        for some in x.split(CHUNK):
            with torch.enable_grad():  # evaluation is done without
                rows = jacobian(module, network, some).rows()
            parts.append(torch.cat([rows[name].flatten(1) for name in names], 1)[:, drawn])
        return parts

    def standardised(self, task: Task, given: Message | Memory, x: Tensor) -> Tensor:
        """phi(x) with mean 0 and variance 1/p in every coordinate, over the first cohort's samples."""
        moments = given["moments"]
        parts = self._phi(task, given["network"], given, x)
        return torch.cat([(phi.double() - moments["mean"]) * moments["scale"] for phi in parts])

    def linear_task(self, task: Task) -> Task:
        """V phi + b from zero, and its loss."""
        dtype = next(iter(task.initial().values())).dtype
        module = nn.Linear(self._width(task), task.info.outputs, dtype=dtype)
        for parameter in module.parameters():
            nn.init.zeros_(parameter)
        return replace(task, module=module, loss=half_squares if self.loss == "squares" else task.loss)

    # --- the model ---

    def model(self, task: Task, state: State, since: int | None = None) -> Message:
        if "network" not in state:
            return self.first.model(task, state)
        second = self.second.model(self.linear_task(task), state)
        return second.replace(network=state["network"], moments=state["moments"], seed=state.scalars["seed"])

    def weights(self, task: Task, model: Message, memory: Memory | None = None) -> Tree | None:
        return None if "network" in model else self.first.weights(task, model, memory)

    def predictor(self, task: Task, model: Message, memory: Memory | None = None) -> Predictor:
        if "network" not in model:
            return self.first.predictor(task, model, memory)
        V = model["model"]

        def predict(x: Tensor) -> Tensor:
            return nn.functional.linear(self.standardised(task, model, x).to(V["weight"]), V["weight"], V["bias"])

        return predict


def _one_output(module: nn.Module) -> nn.Module:
    """The network with one output in place of its last layer's."""
    one, head = deepcopy(module), last_layer(module)
    owner, _, name = head.path.rpartition(".")
    layer = nn.Linear(head.inputs, 1, bias=head.bias is not None, dtype=one.get_parameter(head.weight).dtype)
    if not head.path:
        return layer
    setattr(one.get_submodule(owner), name, layer)
    return one


def _dtype(tree: Tree) -> torch.dtype:
    return next(value.dtype for value in tree.values() if value.is_floating_point())
