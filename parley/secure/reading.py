"""Secure sums: of an exchange's replies the server reads their sum and no single one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from parley.algorithms.exchange import Exchange, Party, Question
from parley.algorithms.protocol import Algorithm, Cohort, Replies
from parley.algorithms.summed import SingleReplyError, SummedReplies
from parley.core.errors import InputError, UnsupportedError
from parley.core.form import Form
from parley.core.message import Message
from parley.core.tree import is_finite
from parley.core.wire import wire_size
from parley.engine.reading import Collected, Reading, Readings, Stage, Stages
from parley.runtimes.protocol import Job
from parley.secure.channel import SecureSum
from parley.secure.fixed_point import Layout
from parley.secure.stages import secure_sum
from parley.training.task import Task


def obstacle(algorithm: Algorithm) -> str | None:
    """Why a method cannot be run with secure sums, as it declares itself; None if it can."""
    if algorithm.needs.pooled:
        return "it trains on data in one place."
    sending = [each for each in algorithm.exchanges() if each.reads != "nothing"]
    for each in sending:
        if isinstance(each.asks, Party):
            return f"it anonymises replies through its own parties ({each.asks.name}), so secure sums do not apply."
    for each in sending:
        if each.reads == "each":
            return f"it reads single replies ('{each.name}'), but of a secure sum only the sum can be read."
        if each.asks == "everyone":
            return "it asks clients that were not drawn for the round."
    return None


def check_summable(algorithm: Algorithm, task: Task) -> None:
    """Refuse, before training, a method that declares to read more than sums, and counters among its statistics."""
    reason = obstacle(algorithm)
    sent = task.sent_buffers if task.module is not None else Form()
    counters = [name for name, spec in sent.items() if spec and spec[0] and not spec[0].is_floating_point]
    if reason is None and counters and any(each.reads == "mean" for each in algorithm.exchanges()):
        reason = f"of counters such as 'buffers/{counters[0]}' there is no mean (set buffers = \"local\")."
    if reason is not None:
        raise UnsupportedError(f"{algorithm.title} cannot be run with secure sums: {reason}")


class SecureReading(Reading):
    """One round: the form of what is summed, with which weights, and what is made of the sum."""

    about = "secure sums"

    def __init__(self, job: Job, cohort: Cohort, number: int, uniform: bool = False) -> None:
        """`uniform`: every client counts the same, whatever the cohort says (differential privacy)."""
        super().__init__(job, cohort, number)
        self._uniform, self._plain, self._form = uniform, False, Form()

    @property
    def channel(self) -> SecureSum:
        closing = self.job.channels.closing
        assert isinstance(closing, SecureSum)
        return closing

    def stages(self, question: Question, declared: Exchange, position: int) -> Stages:
        asked, messages = question.asked, question.messages
        try:
            self._form = self._checked(declared, messages)
        except UnsupportedError as error:
            raise SingleReplyError(str(error)) from None
        self._plain = self._uniform or declared.reads == "sum"
        self._check_weights(messages)
        if not self._form or not messages:
            received = yield Stage(asked, messages)
            return Collected({}, {}, tuple(received))
        raw = wire_size(Message({n: torch.empty(shape, dtype=dtype) for n, (dtype, shape) in self._form.sizes.items()}))
        total = yield from secure_sum(
            self.channel, asked, messages, self.factors, self._layout(self._form, asked), (self.number, position), raw
        )
        return Collected({}, total.tensors, total.clients)

    def _check_weights(self, messages: Mapping[Any, Message]) -> None:
        """What every client would refuse."""
        factors = [self.factors[client] for client in messages if client in self.factors]
        if factors and min(factors) < self.channel.smallest * max(factors):
            raise InputError(
                f"round {self.number}: the smallest weight is {min(factors) / max(factors):.2g} of the largest, whose "
                f"reply the sum would show; secure-sum takes none below {self.channel.smallest:g} (its setting "
                'smallest). Lower that, or weigh clients equally (weights = "uniform").'
            )

    def _checked(self, declared: Exchange, messages: Mapping[Any, Message]) -> Form:
        if any(not isinstance(recipient, str) for recipient in messages):
            raise UnsupportedError("it asks parties, who read single replies.")
        if not messages:
            return Form()
        forms = list({id(m): declared.form(self.job.server, m) for m in messages.values()}.values())
        form = forms[0]
        if form is None:
            raise UnsupportedError("it does not declare the form of its replies (form).")
        if any(other != form for other in forms):
            raise UnsupportedError("its replies differ in their form from client to client.")
        if form and not set(messages) <= set(self.cohort.ids):
            raise UnsupportedError("it asks clients that were not drawn for the round.")
        self._layout(form, declared.name)
        if declared.reads != "sum":
            whole = next((name for name, (dtype, _) in form.sizes.items() if not dtype.is_floating_point), None)
            if whole is not None:
                hint = ' (set buffers = "local")' if whole.startswith("buffers/") else ""
                raise UnsupportedError(f"it reads more of the whole numbers '{whole}' than their sum{hint}.")
        return form

    def _layout(self, form: Form, asked: str) -> Layout:
        """Of what is transmitted."""
        sent = self.job.channels.unclosed.form(form, asked)
        return Layout(Form(sorted(sent.items())), self.channel.code)

    @property
    def factors(self) -> dict[str, float]:
        """What each client multiplies its reply with: its weight over the largest, or nothing where plain sums are
        read."""
        weights = dict(zip(self.cohort.ids, self.cohort.weights, strict=True))
        most = 1.0 if self._plain else max(weights.values(), default=1.0)
        return {i: 1.0 if self._plain else weight / most for i, weight in weights.items()}

    def replies(self, collected: Collected) -> Replies:
        total = collected.total or {}
        assert is_finite(total)
        shares, factors = self.cohort.shares([i for i in self.cohort.ids if i in collected.clients]), self.factors
        factor = None if self._plain else next((share / factors[client] for client, share in shares.items()), 0.0)
        return SummedReplies(total, self._form, factor, shares, self.cohort.expected)


@dataclass(frozen=True)
class SecureReadings(Readings):
    """Each round one sum, which the server learns and nothing else."""

    private: bool = False
    """Noise is added to what is read."""

    def of(self, job: Job, cohort: Cohort, number: int) -> Reading:
        return SecureReading(job, cohort, number, self.private)
