"""TCT: train, convexify, train (Yu et al., NeurIPS 2022): SCAFFOLD on the tangent features of a trained network.

    rounds 1 ... R     FedAvg trains the network: w
    after round R      phi(x) = d g(w; x) / d w, where g is the network with one random output in place of its last
                       layer, on p coordinates drawn at random; the cohort's sums of phi and phi^2 standardise it
    rounds R + 1 ...   SCAFFOLD on the linear model V phi(x) + b, with squared errors of one-hot classes: convex, so it
                       settles at the pooled solution whatever the clients' data are

A client receives w and the moments of phi once, with its first message after round R, and keeps them.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.averaging.scaffold import Scaffold
from parley.algorithms.exchange import Exchange, Question, Reply, ask, exchange
from parley.algorithms.kernel.ridge import targets
from parley.algorithms.ntk.jacobian import jacobian
from parley.algorithms.protocol import Algorithm, Cohort, Contexts, Learned, Needs, Questions, algorithm, as_algorithm
from parley.algorithms.wrappers.wrapper import inner, nested, outer, translated
from parley.core.errors import InputError
from parley.core.form import SEED, Accepted, Form, Number
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.tree import Tree
from parley.data import ClientData
from parley.training.last_layer import last_layer
from parley.training.losses import half_squares
from parley.training.stack import Data
from parley.training.task import Task

_NO_NETWORK = "tct: {first} does not train one network on clients' data; choose another."
CHUNK = 128
"""Samples whose features are computed at once."""


@algorithm("tct")
@dataclass(frozen=True)
class TCT(Algorithm):
    """TCT (Yu et al., 2022): FedAvg first, then SCAFFOLD on the tangent features of the trained network.

    In a study: [algorithm] name = "tct", the two methods in [algorithm.first] and [algorithm.second].
    """

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
        if self.first.needs.pooled:
            raise InputError(_NO_NETWORK.format(first=self.first.title))

    @property
    def needs(self) -> Needs:
        return replace(self.second.needs, cpu=self.first.needs.cpu)

    def exchanges(self) -> tuple[Exchange, ...]:
        before, after = (1, self.rounds), (self.rounds + 1, None)
        first = tuple(nested(each, "first", before) for each in self.first.exchanges())
        second = tuple(nested(self._on_features(each), "second", after) for each in self.second.exchanges())
        return (*first, *super().exchanges(), *second)

    def init(self, task: Task, key: Key) -> State:
        last_layer(task.network)
        if task.info.class_weights and self.loss == "squares":
            raise InputError(
                "TCT's squares have no class weights; set another loss or leave out preprocessing.class_weights."
            )
        learned = self.first.learned(task)
        if learned.personal or learned.incremental:
            raise InputError(_NO_NETWORK.format(first=self.first.title))
        return outer("first", self.first.init(task, key))

    # --- the server ---

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Questions:
        if number <= self.rounds:
            asked = self.first.round(task, inner(state, "first"), cohort, number, key)
            outcome = yield from translated(asked, lambda question: question.under("first"))
            new, metrics = outcome if isinstance(outcome, tuple) else (outcome, {})
            return outer("first", new), metrics
        if "network" not in state:
            network = self.convexified(task, inner(state, "first"), key)
            message = Message.of(network=network, seed=key.seed)
            replies = yield ask(self.moments, dict.fromkeys(cohort.ids, message))
            state = self._begun(task, network, replies.mean("moments"), key)
        common = {"network": state["network"], "moments": state["moments"], "seed": state.scalars["seed"]}
        since = {i: held if (held := cohort.since.get(i) or 0) > self.rounds else None for i in cohort.ids}

        def with_features(question: Question) -> Question:
            messages = {i: m.replace(**common) if since[i] is None else m for i, m in question.messages.items()}
            return Question(question.asked, messages).under("second")

        linear, cohort = self.linear_task(task), replace(cohort, since=since)
        trained = yield from translated(
            self.second.round(linear, inner(state, "second"), cohort, number, key), with_features
        )
        assert isinstance(trained, State)
        return outer("second", trained).replace(**common)

    def convexified(self, task: Task, state: State, key: Key) -> Tree:
        """The trained network's weights and buffers, with one random output in place of its last layer."""
        learned = self.first.learned(task)
        trained = learned.weights(learned.message(state)) or {}
        head = last_layer(task.network)
        random = torch.from_numpy(key.fold("tct").numpy().standard_normal((1, head.inputs)) / head.inputs**0.5)
        fresh_head = {head.weight: random.to(trained[head.weight].dtype)}
        if head.bias is not None:
            fresh_head[head.bias] = torch.zeros(1, dtype=trained[head.bias].dtype)
        return {**trained, **fresh_head}

    def _begun(self, task: Task, network: Tree, moments: Tree, key: Key) -> State:
        spread = (moments["squares"] - moments["mean"].square()).clamp(min=0).sqrt()
        spread = torch.where(spread > 1e-6 * spread.max(), spread, torch.inf)  # what is alike everywhere says nothing
        scale = 1 / (spread * len(spread) ** 0.5)
        begin = outer("second", self.second.init(self.linear_task(task), key))
        return begin.replace(network=network, moments={"mean": moments["mean"], "scale": scale}, seed=key.seed)

    # --- the client ---

    @exchange(
        form=lambda self, task, message: self._moments_form(task),
        accepts=lambda self, task, message: Form.of(network=Form.like(self._convex_like(task))).with_scalars(seed=SEED),
        reads="mean",
        rounds=lambda self: (self.rounds + 1, None),
        stack=False,
    )
    def moments(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """The means of phi and phi^2 over the client's samples."""
        parts = [phi.double() for phi in self._phi(task, message["network"], message, data.x)]
        total = torch.stack([part.sum(0) for part in parts]).sum(0)
        squares = torch.stack([part.square().sum(0) for part in parts]).sum(0)
        return Reply(Message.of(moments={"mean": total / len(data), "squares": squares / len(data)}))

    def _on_features(self, each: Exchange) -> Exchange:
        """The second method's exchange, on features; a client keeps how they are made."""

        def answer(task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
            known: Message | Memory = message if "network" in message else inner(memory, "features")
            phi = self.standardised(task, known, data.x).to(_dtype(known["network"]))
            y = data.y if self.loss == "task" else targets(task, data.y).to(phi)
            reply = each.answer(self.linear_task(task), message, memory, ClientData(phi, y), context)
            kept = Memory.of(network=known["network"], moments=known["moments"], seed=known.scalars["seed"])
            made = outer("features", kept)
            before = reply.memory or Memory()
            return replace(reply, memory=Memory(before.tensors | made.tensors, before.scalars | made.scalars))

        return replace(
            each,
            answer=answer,
            form=lambda task, message: each.form(self.linear_task(task), message),
            accepts=lambda task, message: self._with_features(task, message, each),
        )

    def _with_features(self, task: Task, message: Message, each: Exchange) -> Accepted | None:
        """What the second method accepts, and, for clients that have not been told yet, how features are made."""
        plain = message.replace(network={}, moments={})
        plain = Message(plain.tensors, {name: value for name, value in plain.scalars.items() if name != "seed"})
        accepted = each.accepts(self.linear_task(task), plain)
        if accepted is None:
            return None
        form, scalars = (
            (accepted.tensors, dict(accepted.scalars))
            if isinstance(accepted, Accepted)
            else (accepted, dict[str, Number]())
        )
        if "network" in message:
            return Accepted(Form(form | Form.of(**self.common_form(task))), scalars | {"seed": SEED})
        return Accepted(form, scalars)

    def common_form(self, task: Task) -> dict[str, Form]:
        """The forms of the trees that say how features are made."""
        spec = (torch.float64, (self._width(task),))
        return {"network": Form.like(self._convex_like(task)), "moments": Form.of(mean=spec, scale=spec)}

    def _moments_form(self, task: Task) -> Form:
        spec = (torch.float64, (self._width(task),))
        return Form.of(moments={"mean": spec, "squares": spec})

    def _convex_like(self, task: Task) -> Tree:
        """A network like those that are convexified."""
        return dict(_one_output(task.network).state_dict())

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

    def learned(self, task: Task) -> Learned:
        first = self.first.learned(task)

        def reported(state: State, since: int | None) -> Message:
            if "network" not in state:
                return first.message(inner(state, "first"))
            common = {"network": state["network"], "moments": state["moments"], "seed": state.scalars["seed"]}
            second = self.second.learned(self.linear_task(task))
            return second.message(inner(state, "second")).replace(**common)

        return Convexified(task, read=reported, tct=self, first=first)


@dataclass(frozen=True)
class Convexified(Learned):
    """The first method's network, then the linear model of its features."""

    tct: TCT = field(kw_only=True)
    first: Learned = field(kw_only=True)

    def weights(self, message: Message, memory: Memory | None = None) -> Tree | None:
        return None if "network" in message else self.first.weights(message, memory)

    def check(self, message: Message, memory: Memory | None = None) -> None:
        if "network" not in message:
            self.first.check(message, memory)
            return
        form = Form.of(model=self.tct.linear_task(self.task).form, **self.tct.common_form(self.task))
        form.check(message.tensors)

    def outputs(self, message: Message, memory: Memory | None, x: Tensor, before: Tensor | None = None) -> Tensor:
        if "network" not in message:
            return self.first.outputs(message, memory, x)
        V, phi = message["model"], self.tct.standardised(self.task, message, x)
        return nn.functional.linear(phi.to(V["weight"]), V["weight"], V["bias"])


def _one_output(module: nn.Module) -> nn.Module:
    """The network with one output in place of its last layer's."""
    network, head = deepcopy(module), last_layer(module)
    owner, _, name = head.path.rpartition(".")
    layer = nn.Linear(head.inputs, 1, bias=head.bias is not None, dtype=network.get_parameter(head.weight).dtype)
    if not head.path:
        return layer
    setattr(network.get_submodule(owner), name, layer)
    return network


def _dtype(tree: Tree) -> torch.dtype:
    return next(value.dtype for value in tree.values() if value.is_floating_point())
