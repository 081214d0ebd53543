"""FedALS: parts of a model averaged at their own pace (Gholami and Seferoglu, Algorithm 1).

    client k, round r (tau local steps):   theta_k <- theta_k - eta g_k, the optimizer's state running through
    after round r:   h <- sum_k w_k h_k;   phi <- sum_k w_k phi_k if alpha divides r

(After step n = r tau the head is averaged if tau | n, the representation if alpha tau | n; the printed conditions would
average at t = 0 and overwrite.) A part that is not averaged stays in the client's memory and does not travel.

Under partial participation a part is averaged over the clients of that round, and a client that has missed an average
of a part receives the current one. The reported model is the last one in which all parts were averaged; a part with the
period "never" is each client's own: FedPer (a personal head), LG-FedAvg (a representation), FedBN (normalisations).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from parley.algorithms.averaging.local_sgd import Local, LocalSGD
from parley.algorithms.exchange import Reply, ask, exchange
from parley.algorithms.parts.parts import NEVER, Part, Period, buffers_of, chosen_parts, merged, parameters_of
from parley.algorithms.parts.periods import Adaptive, Fixed, listed, numbered
from parley.algorithms.protocol import Cohort, Contexts, Learned, Questions, Replies, algorithm
from parley.core.errors import InputError, WireError
from parley.core.form import Accepted, Form, Number
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.tree import Tree
from parley.training.stack import Data
from parley.training.task import Task

Trees = dict[str, Tree]


@algorithm("fedals")
@dataclass(frozen=True)
class FedALS(LocalSGD):
    """FedALS (Gholami and Seferoglu): the head is averaged every round, the representation only every alpha rounds.

    alpha = 1 is FedAvg with tau steps, all layers in phi is FedAvg with alpha tau steps. With `budget` the periods of
    parts are chosen from how fast clients' copies move apart.
    """

    usual_steps: ClassVar[int | None] = 5

    travels: ClassVar[tuple[str, ...]] = ("model",)
    """Trees of the server's state that clients receive, part by part."""

    steps: int | None = None
    """Local steps per round (tau); without steps and epochs, 5 steps."""
    batch: int | None = 64
    """Samples per step; 0 takes all of a client's samples."""
    keep: bool = True
    """Clients keep the optimizer's state from round to round instead of resetting it."""
    alpha: Period = 10
    """Rounds between two averages of the representation phi, or "never"."""
    layers: int | None = None
    """Number of first layers in phi (L); by default all but the last."""
    periods: dict[str, Period] = field(default_factory=dict)
    """In place of layers: rounds between averages, or "never", by shell pattern of parameter names, such as
    "blocks.*"; other parameters are averaged every round."""
    split: Callable[[str], int] | None = None
    """In place of layers, from Python only: a function from a parameter's name to its rounds between averages."""
    budget: float | None = None
    """Choose the periods of all parts, by default every layer, for at most this share of FedAvg's traffic; replaces
    alpha. The first round averages everything to measure."""
    longest: int = 32
    """With budget: no period is longer than this, a power of two."""
    report: int | None = None
    """Rounds between sending all parts for the reported model only (counted as traffic); by default the reported
    model changes when all parts are averaged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("alpha", self.alpha), ("report", self.report), *self.periods.items()):
            if isinstance(value, int) and value < 1:
                raise InputError(f"{name} counts rounds and must be at least 1, not {value}.")
        if [self.layers is not None, bool(self.periods), self.split is not None].count(True) > 1:
            raise InputError("say what the parts are in one way: layers, periods or split.")
        if self.longest < 1 or self.longest & (self.longest - 1):
            raise InputError(f"longest must be a power of two, not {self.longest}.")
        if self._pace().reads == "each" and self._personal():
            raise InputError('budget chooses the periods of all parts; leave out "never", or the budget.')
        if not self.lr > 0:
            raise InputError(f"lr must be above 0, not {self.lr}.")

    def _pace(self) -> Fixed:
        return Fixed() if self.budget is None else Adaptive(self.budget, self.longest)

    def _personal(self) -> bool:
        """Some part is never averaged."""
        by_layers = not self.periods and self.split is None and self.budget is None
        return "never" in ([self.alpha] if by_layers else self.periods.values())

    def parts(self, task: Task) -> tuple[Part, ...]:
        """The parts, with the periods they have without a budget."""
        each = self.budget is not None and self.layers is None
        return chosen_parts(task.network, tuple(self.periods.items()), self.split, each, self.layers, self.alpha)

    def private(self, task: Task) -> list[Part]:
        """The parts that each client keeps to itself, from the model's own beginning on; they never travel."""
        return [part for part in self.parts(task) if part.period == NEVER]

    def init(self, task: Task, key: Key) -> State:
        x, buffers, parts = task.initial(), task.initial_buffers(), self.parts(task)
        return State.of(
            model=x,
            buffers=buffers,
            shown=x,
            statistics=buffers,
            periods=torch.tensor(self._pace().begin(parts)),
            averaged=torch.zeros(len(parts), dtype=torch.int64),
        )

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Questions:
        parts = self.parts(task)
        periods, averaged = state.tensor("periods").tolist(), state.tensor("averaged").tolist()
        shared = [q for q, period in enumerate(periods) if period != NEVER]
        due = [q for q in shared if number % periods[q] == 0]
        reported = due == shared or (self.report is not None and number % self.report == 0)
        asks = {"due": listed(due), "send": listed(shared if reported else due)}
        # A client has the parts that were not averaged since it last took part; those that lack the same get the same.
        lacking = {i: tuple(q for q in shared if (cohort.since.get(i) or 0) <= averaged[q]) for i in cohort.ids}
        made = {want: self._message(task, state, [parts[q] for q in want], asks) for want in set(lacking.values())}
        replies = yield ask(self.client, {i: made[want] for i, want in lacking.items()})
        mean = {
            name: state["model"][name] - moved for name, moved in replies.mean_change("update", optional=True).items()
        }
        sent, now = replies.mean("buffers", optional=True), [parts[q] for q in due]
        new = state.replace(
            model=state["model"] | parameters_of(mean, now),
            buffers=state.get("buffers") | buffers_of(sent, now),
            averaged=torch.tensor([number if q in due else r for q, r in enumerate(averaged)]),
        )
        if reported:
            new = new.replace(shown=state["model"] | mean, statistics=state.get("statistics") | sent)
        if due == shared:
            new = new.replace(periods=torch.tensor(self._pace().after(replies, now, periods)))
        return self.folded(task, new, replies, now)

    def folded(self, task: Task, state: State, replies: Replies, due: Sequence[Part]) -> State:
        """What else the server keeps of the parts that were averaged."""
        return state

    def _message(self, task: Task, state: State, parts: Sequence[Part], asks: dict[str, str]) -> Message:
        trees = {name: parameters_of(state.get(name), parts) for name in self.travels}
        buffers = buffers_of(state.get("buffers"), parts) if task.sent_buffers else {}
        return Message.of(**trees, buffers=buffers, **asks)

    @exchange(
        form=lambda self, task, message: self._form(task, message),
        accepts=lambda self, task, message: self._accepted(task, message),
        reads=lambda self: self._pace().reads,
        compress=("update",),
    )
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        visit = self.visit(task, message, memory)
        local = self.train(task, visit.x, message, memory, data, context)
        return self.answer(task, visit, local)

    def visit(self, task: Task, message: Message, memory: Memory) -> Visit:
        """What a client begins with: the parts it has received, and those it keeps."""
        parts, received, private = self.parts(task), message.get("model"), self.private(task)
        due, send = numbered(parts, message, "due"), numbered(parts, message, "send")
        x = merged(task.form, parameters_of(task.initial(), private) | memory.get("model"), received)
        fresh = [part for part in parts if part in private or part.parameters[0] in received]
        rest = [part for part in parts if part not in due]
        return Visit(x, memory.get("start") | received, due, send, rest, fresh)

    def answer(
        self, task: Task, visit: Visit, local: Local, sent: Trees | None = None, kept: Trees | None = None
    ) -> Reply:
        """The parts asked for, as updates since their last average; those not averaged stay in memory."""
        travels, stays = {}, local.buffers
        if task.sent_buffers:
            travels, stays = (buffers_of(local.buffers, parts) for parts in (visit.send, visit.rest))
        model, start = (parameters_of(tree, visit.rest) for tree in (local.parameters, visit.start))
        return Reply(
            Message.of(update=visit.moved(local), **(sent or {}), buffers=travels),
            Memory.of(model=model, start=start, **(kept or {}), buffers=stays, **local.kept),
            local.observed,
        )

    def _accepted(self, task: Task, message: Message) -> Accepted:
        """Whole parts that are shared, and nothing asked of those that are not."""
        parts = [part for part in self.parts(task) if part not in self.private(task)]
        due, send = (numbered(self.parts(task), message, name) for name in ("due", "send"))
        if any(part not in parts for part in (*due, *send)):
            raise WireError("it asks for a part that clients keep to themselves.")
        if any(part not in send for part in due):
            raise WireError("it averages a part that it does not ask for.")
        sent = [part for part in parts if f"model/{part.parameters[0]}" in message.tensors]
        model = parameters_of(task.form, sent)
        form = Form.of(**dict.fromkeys(self.travels, model), buffers=buffers_of(task.sent_buffers, sent))
        return form.with_scalars(due=Number(str), send=Number(str))

    def _form(self, task: Task, message: Message, **more: Form) -> Form:
        send = numbered(self.parts(task), message, "send")
        return Form.of(update=parameters_of(task.form, send), **more, buffers=buffers_of(task.sent_buffers, send))

    def learned(self, task: Task) -> Learned:
        def shown(state: State, since: int | None) -> Message:
            return Message.of(model=state["shown"], buffers=state.get("statistics") if task.sent_buffers else {})

        return WithOwnParts(task, personal=self._personal(), read=shown, parts=tuple(self.private(task)))


@dataclass(frozen=True)
class WithOwnParts(Learned):
    """The shared parts, and those that a client keeps to itself."""

    parts: tuple[Part, ...] = ()

    def weights(self, message: Message, memory: Memory | None = None) -> Tree:
        shared, kept = super().weights(message, memory) or {}, memory or Memory()
        return {**shared, **parameters_of(kept.get("model"), self.parts), **buffers_of(kept.get("buffers"), self.parts)}


@dataclass(frozen=True, slots=True)
class Visit:
    """What a client begins a round with."""

    x: Tree
    """Its model: parts it has received, and those it keeps."""
    start: Tree
    """Each part as it was after its last average."""
    due: list[Part]
    """To be averaged."""
    send: list[Part]
    rest: list[Part]
    """Not to be averaged."""
    fresh: list[Part]
    """Averaged since the client last took part, or its own."""

    def moved(self, local: Local) -> Tree:
        """The update of every part asked for."""
        return {name: self.start[name] - local.parameters[name] for part in self.send for name in part.parameters}
