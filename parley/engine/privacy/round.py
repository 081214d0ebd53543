"""One private round: who may be asked what, and what the method may read of the answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from parley.algorithms.base.private import PrivateReplies, real
from parley.algorithms.base.protocol import Cohort, Replies
from parley.algorithms.base.summed import SummedReplies
from parley.channels.adaptive_clip import BOUND, WITHIN
from parley.core.errors import UnsupportedError
from parley.core.form import Form
from parley.core.message import Message, State
from parley.core.tree import Tree
from parley.engine.privacy.plan import PrivacyPlan
from parley.runtimes.protocol import Job


@dataclass
class PrivateRound:
    """What differs from a round without privacy. A round is one release: one exchange in which something is sent."""

    plan: PrivacyPlan
    job: Job
    cohort: Cohort
    number: int
    _bound: float = 0.0
    _next: float = 0.0
    _form: Form | None = None
    """Of the replies under way; None if nothing is sent in them."""
    _released: bool = False
    _within: dict[str, float] = field(default_factory=dict)
    """What clients within the bound and beyond it have told, +-1/2 each, or the sum of that."""

    def open(self, state: State) -> tuple[State, Cohort]:
        """The method's own state, and the cohort as it sees it: where nobody was drawn, one who will not answer.

        A round without clients releases noise like any other, or it would tell that nobody was there.
        """
        self._bound = self._next = self.plan.bound(state)
        cohort = self.cohort
        if not cohort.ids and self.plan.central:
            cohort = replace(cohort, ids=(cohort.everyone[0],), weights=(1 / self.plan.size,))
        return self.plan.without(state), cohort

    def close(self, state: State) -> State:
        """The state after the round."""
        return self.plan.after(state, self._next)

    def messages(self, asked: str, messages: Mapping[Any, Message], seen: Cohort) -> dict[Any, Message]:
        """What is really sent, with the clipping norm where it adapts; refuses what the accounting does not cover."""
        if any(not isinstance(recipient, str) for recipient in messages):
            raise UnsupportedError("it asks parties, whose part in the accounting is not known.")
        self._form = self._released_form(asked, messages, seen)
        known: dict[int, Message] = {}
        for message in messages.values():
            if self.plan.settings.quantile is not None and id(message) not in known:
                known[id(message)] = message.replace(**{BOUND: self._bound})
        really = {recipient for recipient in messages if recipient in self.cohort.ids or recipient not in seen.ids}
        return {i: known.get(id(message), message) for i, message in messages.items() if i in really}

    def _released_form(self, asked: str, messages: Mapping[Any, Message], seen: Cohort) -> Form | None:
        if not messages:
            return None
        form = self.job.algorithm.reply_form(self.job.server, asked, next(iter(messages.values())))
        if form is None:
            raise UnsupportedError("it does not state the form of its replies (reply_form).")
        if not form:
            return None
        if self.plan.central and not set(messages) <= set(seen.ids):
            raise UnsupportedError("it asks clients that were not drawn for the round.")
        for name, spec in form.items():
            real(name, spec)
        if self._released:
            raise UnsupportedError("it asks clients for something more than once a round, but one release is charged.")
        self._released = True
        return form

    def note(self, client: str, transmitted: Message) -> None:
        """A reply was accepted."""
        sign: Tensor | None = transmitted.tensors.get(WITHIN)
        if sign is not None:
            self._within[client] = 0.5 if bool(sign > 0) else -0.5

    def replies(self, received: Mapping[Any, Message]) -> Replies:
        """What the method may read."""
        if not self.plan.central:
            drawn = [client for client in self.cohort.ids if client in received]
            return Replies(dict(received), dict.fromkeys(drawn, 1 / self.plan.size), float(self.plan.size))
        form = self._form or Form()
        if self._form is not None:
            self._next = self.plan.next_bound(self._bound, math.fsum(self._within.values()), self.number)
        told = {client: message for client, message in received.items() if form}
        return PrivateReplies(told, form, self.plan.release(self._bound, self.number))

    def summed(self, total: Tree, clients: Sequence[str]) -> Replies:
        """What the method may read of a secure sum, whose clients have clipped their replies themselves."""
        form = self._form or Form()
        if not self.plan.central:
            shares = dict.fromkeys(clients, 1 / self.plan.size)
            return SummedReplies(total, form, 1 / self.plan.size, shares, float(self.plan.size))
        if WITHIN in total:
            self._within = {"all": float(total[WITHIN])}
        self._next = self.plan.next_bound(self._bound, math.fsum(self._within.values()), self.number)
        return PrivateReplies({}, form, self.plan.release(self._bound, self.number), total)
