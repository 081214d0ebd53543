"""FedALS: parts of a model averaged at their own pace (paper 004, Algorithm 1), with control variates (Algorithm 4).

    client k, round r (tau local steps):   theta_k <- theta_k - eta g_k, the optimizer's state running through
    after round r:   h <- sum_k w_k h_k;   phi <- sum_k w_k phi_k if alpha divides r

(After step n = r tau the head is averaged if tau | n, the representation if alpha tau | n; the printed conditions would
average at t = 0 and overwrite.) A part that is not averaged stays in the client's memory and does not travel. With
variates every part has its own c and c_i, which change when it is averaged and travel with it:

    theta_k <- theta_k - eta (g_k - c_k + c);   c_k <- c_k - c + (start - theta_k) / (eta * steps since its average)

Under partial participation a part is averaged over the clients of that round, and a client that has missed an average
of a part receives the current one. The reported model is the last one in which all parts were averaged; a part with the
period "never" is each client's own: FedPer (a personal head), LG-FedAvg (a representation), FedBN (normalisations).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from parley.algorithms.averaging.local_sgd import LocalSGD
from parley.algorithms.exchange import Reply, ask, exchange
from parley.algorithms.parts.parts import NEVER, Part, Period, buffers_of, chosen_parts, merged, parameters_of
from parley.algorithms.parts.periods import drift_rates, listed, numbered, plan_periods
from parley.algorithms.protocol import Cohort, Contexts, Learned, Needs, Questions, algorithm
from parley.core.errors import InputError, WireError
from parley.core.form import Accepted, Form, Number
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.tree import Tree, add, scale, zeros_like
from parley.training import transforms
from parley.training.stack import Data
from parley.training.task import Task


@algorithm("fedals")
@dataclass(frozen=True)
class FedALS(LocalSGD):
    """FedALS (Gholami and Seferoglu): the head is averaged every round, the representation only every alpha rounds.

    alpha = 1 is FedAvg with tau steps, all layers in phi is FedAvg with alpha tau steps. With `budget` the periods of
    parts are chosen from how fast clients' copies move apart.
    """

    usual_steps: ClassVar[int | None] = 5
    variates: ClassVar[bool] = False

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
        if self.budget is not None and not 1 / self.longest <= self.budget <= 1:
            raise InputError(f"budget must lie between 1/longest = {1 / self.longest:.3g} and 1, not {self.budget}.")
        if self.budget is not None and self._personal():
            raise InputError('budget chooses the periods of all parts; leave out "never", or the budget.')
        if self.variates and (self.optimizer != "sgd" or self.schedule.by == "step"):
            raise InputError("control variates are read off SGD steps of one size; take sgd and leave out schedule.")
        if not self.lr > 0:
            raise InputError(f"lr must be above 0, not {self.lr}.")

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
            c=zeros_like(x) if self.variates else {},
            periods=torch.tensor([1 if self.budget is not None else part.period for part in parts]),
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
        if self.variates:
            share, moved = replies.count / task.population, replies.mean_change("c", optional=True)
            new = new.replace(c=state["c"] | add(parameters_of(state["c"], now), moved, share))
        if self.budget is not None and due == shared:
            planned = plan_periods(*drift_rates(replies, now, periods), self.budget, self.longest)
            new = new.replace(periods=torch.tensor(planned))
        return new

    def _message(self, task: Task, state: State, parts: Sequence[Part], asks: dict[str, str]) -> Message:
        model, c = (parameters_of(state.get(group), parts) for group in ("model", "c"))
        buffers = buffers_of(state.get("buffers"), parts) if task.sent_buffers else {}
        return Message.of(model=model, c=c, buffers=buffers, **asks)

    @exchange(
        form=lambda self, task, message: self._form(task, message),
        accepts=lambda self, task, message: self._accepted(task, message),
        reads=lambda self: "mean" if self.budget is None else "each",
        compress=("update",),
    )
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        parts, received = self.parts(task), message.get("model")
        due, send = numbered(parts, message, "due"), numbered(parts, message, "send")
        rest = [part for part in parts if part not in due]
        own = self.private(task)
        x = merged(task.form, parameters_of(task.initial(), own) | memory.get("model"), received)
        transform = transforms.GradientTransform()
        if self.variates:
            c = merged(task.form, zeros_like(parameters_of(x, own)) | memory.get("c"), message.get("c"))
            c_i = memory.get("c_i") or zeros_like(c)
            transform = transforms.add(c) | transforms.add(c_i, -1.0)
        local = self.train(task, x, message, memory, data, context, transform=transform)
        y, start = local.parameters, memory.get("start") | received
        sent = {"update": {name: start[name] - y[name] for part in send for name in part.parameters}}
        kept = {"model": parameters_of(y, rest), "start": parameters_of(start, rest)}
        if self.variates:
            # How far each part has come since its last average, in units of gradients.
            before = {part.label: 0 for part in parts if part in own or part.parameters[0] in received}
            steps = {label: local.step_sum + past for label, past in (memory.get("steps") | before).items()}
            mean = {n: v for p in due for n, v in scale(parameters_of(sent["update"], [p]), 1 / steps[p.label]).items()}
            sent["c"] = {name: gradient - c[name] for name, gradient in mean.items()}
            kept |= {"c_i": c_i | add(parameters_of(c_i, due), sent["c"]), "c": parameters_of(c, rest)}
            kept["steps"] = {part.label: steps[part.label] for part in rest}
        sent["buffers"] = buffers_of(local.buffers, send) if task.sent_buffers else {}
        kept["buffers"] = buffers_of(local.buffers, rest) if task.sent_buffers else local.buffers
        return Reply(Message.of(**sent), Memory.of(**kept, **local.kept), local.observed)

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
        form = Form.of(model=model, c=model if self.variates else {}, buffers=buffers_of(task.sent_buffers, sent))
        return form.with_scalars(due=Number(str), send=Number(str))

    def _form(self, task: Task, message: Message) -> Form:
        parts = self.parts(task)
        due, send = numbered(parts, message, "due"), numbered(parts, message, "send")
        update, c = parameters_of(task.form, send), parameters_of(task.form, due) if self.variates else {}
        return Form.of(update=update, c=c, buffers=buffers_of(task.sent_buffers, send))

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


@algorithm("fedals-scaffold")
@dataclass(frozen=True)
class FedALSScaffold(FedALS):
    """FedALS with SCAFFOLD (Gholami and Seferoglu, Algorithm 4): control variates per part, at the part's own pace."""

    variates: ClassVar[bool] = True

    @property
    def needs(self) -> Needs:
        return Needs(cohorts="unbiased")
