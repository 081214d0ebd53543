"""What a method may ask and read in a round whose replies are summed securely."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from parley.algorithms.base.protocol import Cohort, Replies
from parley.algorithms.base.summed import SingleReplyError, SummedReplies
from parley.channels.secure.channel import SecureSum
from parley.channels.secure.fixed_point import Layout
from parley.core.errors import UnsupportedError
from parley.core.form import Form
from parley.core.message import Message, State
from parley.core.tree import Tree, is_finite
from parley.runtimes.protocol import Job


@dataclass
class SummedRound:
    """One round: the form of what is summed, with which weights, and what is made of the sum."""

    job: Job
    cohort: Cohort
    uniform: bool = False
    """Every client counts the same, whatever the cohort says (differential privacy)."""
    _form: Form = field(default_factory=Form)
    _plain: bool = False

    @property
    def channel(self) -> SecureSum:
        closing = self.job.channels.closing
        assert isinstance(closing, SecureSum)
        return closing

    def open(self, state: State) -> tuple[State, Cohort]:
        return state, self.cohort

    def close(self, state: State) -> State:
        return state

    def note(self, client: str, transmitted: Message) -> None:
        """Nothing of a single client is noted."""

    def messages(self, asked: str, messages: Mapping[Any, Message], seen: Cohort) -> Mapping[Any, Message]:
        """The messages of an exchange, whose replies can be summed; a SingleReplyError says why they cannot."""
        try:
            self._form = self._checked(asked, messages)
        except UnsupportedError as error:
            raise SingleReplyError(str(error)) from None
        self._plain = self.uniform or asked in self.job.algorithm.summed
        return messages

    def _checked(self, asked: str, messages: Mapping[Any, Message]) -> Form:
        if any(not isinstance(recipient, str) for recipient in messages):
            raise UnsupportedError("it asks parties, who read single replies.")
        if not messages:
            return Form()
        known = {id(m): self.job.algorithm.reply_form(self.job.server, asked, m) for m in messages.values()}
        forms = list(known.values())
        form = forms[0]
        if form is None:
            raise UnsupportedError("it does not state the form of its replies (reply_form).")
        if any(other != form for other in forms):
            raise UnsupportedError("its replies differ in their form from client to client.")
        if form and not set(messages) <= set(self.cohort.ids):
            raise UnsupportedError("it asks clients that were not drawn for the round.")
        self._layout_of(form)
        if asked not in self.job.algorithm.summed:
            whole = next((name for name, (dtype, _) in form.sizes.items() if not dtype.is_floating_point), None)
            if whole is not None:
                hint = ' (set buffers = "local")' if whole.startswith("buffers/") else ""
                raise UnsupportedError(f"it reads more of the whole numbers '{whole}' than their sum{hint}.")
        return form

    def _layout_of(self, form: Form) -> Layout:
        sent = self.job.channels.unclosed.form(form)
        return Layout(Form(sorted(sent.items())), self.channel.code)

    @property
    def empty(self) -> bool:
        """Nothing is sent in this exchange."""
        return not self._form

    @property
    def layout(self) -> Layout:
        """Of what is transmitted."""
        return self._layout_of(self._form)

    @property
    def raw(self) -> Message:
        """As large as a reply without channels."""
        return Message({name: torch.empty(shape, dtype=dtype) for name, (dtype, shape) in self._form.sizes.items()})

    @cached_property
    def _weights(self) -> dict[str, float]:
        return dict(zip(self.cohort.ids, self.cohort.weights, strict=True))

    @property
    def factors(self) -> dict[str, float]:
        """What each client multiplies its reply with: its weight over the largest, or nothing where plain sums are
        read."""
        most = 1.0 if self._plain else max(self._weights.values(), default=1.0)
        return {i: 1.0 if self._plain else weight / most for i, weight in self._weights.items()}

    def replies(self, received: Mapping[Any, Message]) -> Replies:
        """Of the reply of one client that is at hand, as before training."""
        total = {name: torch.zeros(shape, dtype=_wide(dtype)) for name, (dtype, shape) in self._form.sizes.items()}
        for message in received.values():
            for name, value in total.items():
                value.add_(message.tensors[name].to(value.dtype))
        return self.summed(total, tuple(received))

    def summed(self, total: Tree, clients: tuple[str, ...]) -> SummedReplies:
        """What the method may read."""
        assert is_finite(total)
        shares, factors = self.cohort.shares([i for i in self.cohort.ids if i in clients]), self.factors
        factor = None if self._plain else next((share / factors[client] for client, share in shares.items()), 0.0)
        return SummedReplies(total, self._form, factor, shares, self.cohort.expected)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype.is_floating_point else dtype
