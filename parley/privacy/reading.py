"""Differential privacy: of a round's replies the server reads one noisy sum, however the reading below brings them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from parley.algorithms.exchange import Exchange, Question
from parley.algorithms.protocol import Algorithm, Cohort, Replies
from parley.algorithms.summed import SummedReplies
from parley.core.errors import InputError, UnsupportedError
from parley.core.form import Form
from parley.core.message import Message, State
from parley.engine.reading import Collected, Reading, Readings, Stages
from parley.privacy.adaptive_clip import BOUND, WITHIN
from parley.privacy.plan import PrivacyPlan
from parley.privacy.replies import PrivateReplies, real
from parley.runtimes.protocol import Job
from parley.store.records import Metric
from parley.training.task import Task

ONCE = "it asks clients for something more than once a round, but one release is charged."
OTHERS = "it asks clients that were not drawn for the round."


def check_private(algorithm: Algorithm, task: Task, plan: PrivacyPlan) -> None:
    """Refuse, before training, a method that declares to send or read what differential privacy does not cover."""
    where = f"{algorithm.title} cannot be trained with differential privacy"
    if algorithm.needs.pooled:
        raise InputError(f"{where}: it trains on data in one place, where no client's part is protected.")
    if task.module is not None and task.sent_buffers:
        raise InputError(
            f'{where}: statistics of BatchNorm would travel with the updates; set buffers = "local", or take a model '
            "without them."
        )
    sending = [each for each in algorithm.exchanges() if each.reads != "nothing"]
    for number, each in enumerate(sending):
        if not isinstance(each.asks, str):
            raise UnsupportedError(f"{where}: it asks parties, whose part in the accounting is not known.")
        if plan.central and each.reads == "each":
            raise UnsupportedError(
                f"{where}: it reads single replies, but under central noise only their mean can be read."
            )
        if plan.central and each.asks == "everyone":
            raise UnsupportedError(f"{where}: {OTHERS}")
        if each.times > 1 or any(each.meets(other) for other in sending[:number]):
            raise UnsupportedError(f"{where}: {ONCE}")


class PrivateReading(Reading):
    """A round is one release: one exchange in which something is sent."""

    about = "differential privacy"

    def __init__(self, plan: PrivacyPlan, below: Reading) -> None:
        """`below`: brings the replies, or their secure sum."""
        super().__init__(below.job, below.cohort, below.number)
        self.plan, self.below, self.needs_someone = plan, below, not plan.central
        self._bound = self._next = 0.0
        self._form: Form | None = None  # of the replies under way; None if nothing is sent in them
        self._seen, self._released = self.cohort, False
        self._within: dict[str, float] = {}
        """What clients within the bound and beyond it have told, +-1/2 each, or the sum of that."""

    def open(self, state: State) -> tuple[State, Cohort]:
        """The method's own state, and the cohort as it sees it: where nobody was drawn, one who will not answer.

        A round without clients releases noise like any other, or it would tell that nobody was there.
        """
        self._bound = self._next = self.plan.bound(state)
        if not self.cohort.ids and self.plan.central:
            everyone = self.cohort.everyone
            self._seen = replace(self.cohort, ids=(everyone[0],), weights=(1 / self.plan.size,))
        return self.plan.without(state), self._seen

    def close(self, state: State) -> State:
        return self.plan.after(state, self._next)

    def stages(self, question: Question, declared: Exchange, position: int) -> Stages:
        self._form = self._released_form(declared, question.messages)
        asked = replace(question, messages=self._sent(question.messages))
        stages = self.below.stages(asked, declared, position)
        received = None
        while True:
            try:
                stage = next(stages) if received is None else stages.send(received)
            except StopIteration as end:
                collected: Collected = end.value
                return collected
            received = yield replace(stage, record=self._record_within)

    def _sent(self, messages: Mapping[Any, Message]) -> dict[Any, Message]:
        """What is really sent, with the clipping norm where it adapts."""
        known: dict[int, Message] = {}
        for message in messages.values():
            if self.plan.settings.quantile is not None and id(message) not in known:
                known[id(message)] = message.replace(**{BOUND: self._bound})
        really = {i for i in messages if i in self.cohort.ids or i not in self._seen.ids}
        return {i: known.get(id(message), message) for i, message in messages.items() if i in really}

    def _released_form(self, declared: Exchange, messages: Mapping[Any, Message]) -> Form | None:
        if any(not isinstance(recipient, str) for recipient in messages):
            raise UnsupportedError("it asks parties, whose part in the accounting is not known.")
        if not messages:
            return None
        form = declared.form(self.job.server, next(iter(messages.values())))
        if form is None:
            raise UnsupportedError("it does not declare the form of its replies (form).")
        if not form:
            return None
        if self.plan.central and not set(messages) <= set(self._seen.ids):
            raise UnsupportedError(OTHERS)
        for name, spec in form.items():
            real(name, spec)
        if self._released:
            raise UnsupportedError(ONCE)
        self._released = True
        return form

    def _record_within(self, client: str, transmitted: Message) -> None:
        sign: Tensor | None = transmitted.tensors.get(WITHIN)
        if sign is not None:
            self._within[client] = 0.5 if bool(sign > 0) else -0.5

    def replies(self, collected: Collected) -> Replies:
        plan, form = self.plan, self._form or Form()
        if not plan.central:
            if collected.total is not None:
                shares = dict.fromkeys(collected.clients, 1 / plan.size)
                return SummedReplies(collected.total, form, 1 / plan.size, shares, float(plan.size))
            drawn = [client for client in self.cohort.ids if client in collected.replies]
            return Replies(dict(collected.replies), dict.fromkeys(drawn, 1 / plan.size), float(plan.size))
        if collected.total is not None and WITHIN in collected.total:
            self._within = {"all": float(collected.total[WITHIN])}
        if self._form is not None:
            self._next = plan.next_bound(self._bound, math.fsum(self._within.values()), self.number)
        release = plan.release(self._bound, self.number)
        return PrivateReplies(collected.replies if form else {}, form, release, collected.total)


@dataclass(frozen=True)
class PrivateReadings(Readings):
    """Each round one noisy release, within the plan's budget."""

    plan: PrivacyPlan
    below: Readings
    shows_clients: ClassVar[bool] = False

    def of(self, job: Job, cohort: Cohort, number: int) -> Reading:
        return PrivateReading(self.plan, self.below.of(job, cohort, number))

    def exhausted(self, number: int) -> str | None:
        return self.plan.exhausted(number)

    def charged(self, number: int) -> dict[str, Metric]:
        return {"privacy/epsilon": Metric(self.plan.epsilon(number))}
