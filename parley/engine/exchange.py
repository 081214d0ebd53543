"""One round: send, receive, leave out who failed, fold. Counts every byte on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from parley.algorithms.protocol import Cohort, Method, Replies, Reply
from parley.core.errors import InputError, QuorumError, WireError
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.tree import Schema, schema
from parley.core.wire import check_schema, wire_size
from parley.engine.settings import Faults
from parley.runtimes.execute import describe, examine
from parley.runtimes.protocol import Call, Job, Runtime
from parley.store.memories import Memories
from parley.store.records import Failure


@dataclass
class Round:
    """The course of one round: what was sent, what came back, who failed, what clients will remember."""

    job: Job
    runtime: Runtime
    memories: Memories
    faults: Faults
    number: int
    key: Key
    cohort: Cohort
    absent: Mapping[str, str]
    up: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)
    remembered: dict[str, Memory] = field(default_factory=dict)
    observed: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes of the replies of the current exchange."""

    def play(self, state: State) -> State:
        """The state after the round; raises QuorumError if too few clients answered.

        A round with no client to ask, or without any answer where the quorum is 0, changes nothing.
        """
        algorithm = self.job.algorithm
        if not self.cohort.ids:
            return state
        course = algorithm.round(self.job.task, state, self.cohort, self.number, self.key)
        parties = algorithm.parties() if isinstance(algorithm, Method) else ()
        try:
            messages = next(course)
            exchange = 0
            while True:
                replies = self._exchange(messages, exchange, set(parties))
                messages = course.send(replies)
                exchange += 1
        except _NobodyAnswered:
            self.remembered.clear()
            return state
        except StopIteration as end:
            new: State = end.value
            return new

    @property
    def failed(self) -> tuple[Failure, ...]:
        return tuple(Failure(client, reason) for client, reason in self.failures.items())

    def _exchange(self, messages: Mapping[str, Message], exchange: int, parties: set[str]) -> Replies:
        sizes: dict[int, int] = {}
        calls: list[Call] = []
        outcomes: dict[str, Reply] = {}
        down, base, memories = self.down, self.key, self.memories
        for recipient, message in messages.items():
            size = sizes.get(id(message))
            if size is None:
                size = sizes[id(message)] = wire_size(message)
            down[recipient] = down.get(recipient, 0) + size
            if recipient in parties:
                outcomes[recipient] = self._ask_party(recipient, message, exchange)
            elif recipient in self.absent:
                self.failures[recipient] = self.absent[recipient]
            else:
                memory = self.remembered.get(recipient) or memories[recipient]
                calls.append(Call(recipient, message, memory, base.fold("client", recipient, exchange)))
        answered = self._answered(calls)
        outcomes.update(answered)
        asked = sum(1 for recipient in messages if recipient not in parties)
        if asked and len(answered) < self.faults.quorum * asked:
            raise QuorumError(self._too_few(len(answered), asked))
        if asked and not answered:
            raise _NobodyAnswered
        up = self.up
        for sender, reply in outcomes.items():
            size = self.sizes[sender] if sender in answered else wire_size(reply.message)
            up[sender] = up.get(sender, 0) + size
            if reply.memory is not None:
                self.remembered[sender] = reply.memory
            if reply.observed:
                self.observed[sender] = reply.observed
        replies = {recipient: outcomes[recipient].message for recipient in messages if recipient in outcomes}
        return Replies(replies, self.cohort.shares([i for i in self.cohort.ids if i in answered]))

    def _answered(self, calls: list[Call]) -> dict[str, Reply]:
        """The replies that can be used; the rest are noted as failures."""
        replies: dict[str, Reply] = {}
        for call, outcome in zip(calls, self.runtime.run(calls, self.faults.deadline), strict=True):
            if isinstance(outcome, Failure):
                self.failures[call.client] = outcome.reason
            else:
                replies[call.client] = outcome
        algorithm = self.job.algorithm
        forms = {client: schema(reply.message.tensors) for client, reply in replies.items()}
        method = algorithm if isinstance(algorithm, Method) else Method()
        like = method.expected(self.job.task)
        if like is None and method.alike:
            like = _majority(forms)
        sent = {call.client: call.message for call in calls}
        for client, form in forms.items():
            message = replies[client].message
            try:
                if like is not None and form != like:
                    check_schema(message.tensors, like)
                if not method.alike:
                    method.inspect(self.job.task, sent[client], message)
                self.sizes[client] = wire_size(message, form)
            except WireError as error:
                self.failures[client] = f"sent a reply of the wrong form: {error}"
                del replies[client]
        return replies

    def _ask_party(self, name: str, message: Message, exchange: int) -> Reply:
        algorithm = self.job.algorithm
        assert isinstance(algorithm, Method)
        memory = self.remembered.get(name) or self.memories[name]
        try:
            reply = algorithm.party(self.job.task, name, message, memory, self.key.fold("party", name, exchange))
        except Exception as error:
            raise QuorumError(f"party '{name}' failed in round {self.number}: {describe(error)}") from error
        outcome = examine(name, reply)
        if isinstance(outcome, Failure):
            raise InputError(f"party '{name}' {outcome.reason}")
        return outcome

    def _too_few(self, answered: int, asked: int) -> str:
        client, reason = next(iter(self.failures.items()))
        return (
            f"round {self.number}: only {answered} of {asked} clients answered, the quorum is {self.faults.quorum:.0%} "
            f"(client '{client}' {reason}); the run stopped at its last checkpoint and can be resumed."
        )


class _NobodyAnswered(Exception):
    pass


def _majority(forms: Mapping[str, Schema]) -> Schema | None:
    """The form most replies have; None if there is none that more than half share."""
    if not forms:
        return None
    form, count = Counter(forms.values()).most_common(1)[0]
    return form if 2 * count > len(forms) else None
