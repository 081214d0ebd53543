"""One round: send, receive, leave out who failed, fold. Counts every byte on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from parley.algorithms.base.protocol import Cohort, Exchange, Party, Question, Replies, Reply
from parley.algorithms.base.summed import SingleReplyError
from parley.channels.base import MIRROR
from parley.channels.secure.channel import UNMASK, exchange_of
from parley.core.context import Context, Place
from parley.core.errors import InputError, ParleyError, QuorumError, UnsupportedError, WireError, own_line
from parley.core.failure import Failure
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.tree import Tree, is_finite
from parley.core.wire import wire_size
from parley.engine.forms import Forms, check_trees
from parley.engine.listeners import Listener
from parley.engine.privacy.round import PrivateRound
from parley.engine.secure.course import Stage, Total, secure_sum
from parley.engine.secure.round import SummedRound
from parley.engine.settings import Faults
from parley.runtimes.protocol import Call, Job, Runtime, Stamp, version_held
from parley.store.memories import Memories

_PARTY_TRIES = 3
"""How often a party is asked before the run stops."""


@dataclass
class Round:
    """The course of one round: what was sent, what came back, who failed, what recipients will remember."""

    job: Job
    runtime: Runtime
    memories: Memories
    faults: Faults
    key: Key
    cohort: Cohort
    absent: Callable[[str], str | None]
    """Why a client will not answer in this round (simulated); None if it will."""
    stamp: Stamp
    listeners: Sequence[Listener] = ()
    private: PrivateRound | None = None
    """Differential privacy, which decides what the method may read."""
    summing: SummedRound | None = None
    """Secure sums, which do too."""
    up: dict[str, int] = field(default_factory=dict)
    raw: dict[str, int] = field(default_factory=dict)
    """What would have come up without channels, where there are any."""
    down: dict[str, int] = field(default_factory=dict)
    remembered: dict[str, Memory] = field(default_factory=dict)
    observed: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    """The server's own."""

    def play(self, state: State) -> State:
        """The state after the round; raises QuorumError if too few clients answered.

        A round with no client to ask, or without any answer where the quorum is 0, changes nothing.
        """
        cohort = self.cohort
        if self.private is not None:
            state, cohort = self.private.open(state)
        if not cohort.ids:
            return self._closed(state)
        before = _versions(state)
        course = self.job.algorithm.round(self.job.server, state, cohort, self.stamp.round, self.key)
        try:
            question = self._asked_next(course, None)
            exchange = 0
            while True:
                replies = self._exchange(Question.of(question), exchange, cohort)
                question = self._asked_next(course, replies)
                exchange += 1
        except _NobodyAnswered:
            self.remembered.clear()
            return self._closed(state)
        except SingleReplyError as error:
            where = f"{self.job.algorithm.title} cannot go on with secure sums in round {self.stamp.round}"
            raise UnsupportedError(f"{where}: {error}") from None
        except StopIteration as end:
            new, self.metrics = _outcome(self.job, end.value)
        for client in self.failures:  # who fails later in a round keeps nothing of what it did before
            self.remembered.pop(client, None)
            self.remembered.pop(MIRROR + client, None)
        if _versions(state) != before:
            raise UnsupportedError(
                f"{self.job.algorithm.title} changed the server's state in place; states are values: make new tensors."
            )
        check_trees(self.job.algorithm.title, state, new)
        self._check_finite({name: value for name, value in new.tensors.items() if state.tensors.get(name) is not value})
        return self._closed(new)

    def _asked_next(self, course: Exchange, replies: Replies | None) -> Question | Mapping[Any, Message]:
        """What the method asks now; what is wrong with it is told with the line of the user's own code."""
        try:
            return next(course) if replies is None else course.send(replies)
        except InputError as error:
            if not (place := own_line(error)):
                raise
            title, said = self.job.algorithm.title, str(error).rstrip(".")
            raise InputError(f"round {self.stamp.round} of {title}: {said}{place}.") from error

    def _closed(self, state: State) -> State:
        return state if self.private is None else self.private.close(state)

    def _exchange(self, question: Question, exchange: int, seen: Cohort) -> Replies:
        asked, messages = question.asked, question.messages
        if self.private is not None:
            messages = self._private_messages(self.private, asked, messages, seen)
        if self.summing is not None:
            self.summing.messages(asked, messages, seen)
        clients = {recipient: message for recipient, message in messages.items() if isinstance(recipient, str)}
        if clients and len(clients) < len(messages):
            raise InputError(f"{self.job.algorithm.title} asks clients and parties in one exchange; make it two.")
        received: dict[Any, Message] = {}
        if clients and self.summing is not None and not self.summing.empty:
            return self._summed(self.summing, asked, clients, exchange)
        if clients:
            received |= self._received(clients, self._clients(asked, clients, exchange), asked, exchange)
            self._asked |= clients.keys()
            self._check_quorum()
        else:
            received |= self._parties(asked, messages, exchange)
        for listener in self.listeners:
            listener.exchange(self.stamp.round, exchange, asked, messages, received)
        if self.private is not None:
            return self.private.replies(received)
        if self.summing is not None:
            return self.summing.summed({}, tuple(received))
        shares = self.cohort.shares([i for i in self.cohort.ids if i in received])
        return Replies(received, shares, self.cohort.expected)

    def _summed(self, summing: SummedRound, asked: str, messages: Mapping[str, Message], exchange: int) -> Replies:
        """The sum of the clients' replies, in the exchanges that it takes."""
        course = secure_sum(
            summing.channel, asked, messages, summing.factors, summing.layout, (self.stamp.round, exchange)
        )
        raw = wire_size(summing.raw)
        try:
            stage = next(course)
            while True:
                found = self._stage(stage, exchange)
                if stage.asked == asked:
                    self.raw.update({client: self.raw.get(client, 0) + raw for client in found})
                stage = course.send(found)
        except StopIteration as end:
            total: Total = end.value
        except QuorumError as error:
            failed = next(iter(self.failures.values()), None)
            why = "" if failed is None else f" (client '{failed.client}' {failed.reason.rstrip('.')})"
            raise QuorumError(f"{str(error).rstrip('.')}{why}.") from None
        for listener in self.listeners:
            listener.exchange(self.stamp.round, exchange, asked, messages, {})
        if self.private is not None:
            return self.private.summed(total.tensors, total.clients)
        return summing.summed(total.tensors, total.clients)

    def _stage(self, stage: Stage, exchange: int) -> dict[str, Message]:
        """What came back in one of them. Who only does not help to unmask a sum has its part in it all the same."""
        before, found = dict(self.failures), {}
        answers = self._clients(stage.asked, stage.messages, exchange_of(stage.asked, exchange))
        for client, answer in answers.items():
            try:
                stage.form.check(answer.message.tensors)
            except WireError as error:
                self._fail(Failure(client, f"sent a reply of the wrong form: {error}"))
                continue
            self._accepted(client, answer, wire_size(answer.message))
            found[client] = answer.message
        if stage.asked == UNMASK:
            for client in self.failures.keys() - before.keys():
                reason = self.failures.pop(client).reason
                for listener in self.listeners:
                    listener.note(f"round {self.stamp.round}: '{client}' did not help to unmask a sum: {reason}")
        self._check_quorum()
        return found

    def _received(
        self, messages: Mapping[str, Message], answers: Mapping[str, Reply], asked: str, exchange: int
    ) -> dict[str, Message]:
        """What the server has of the clients' answers; those of a wrong form are noted as failures."""
        forms, through, private = Forms(self.job, asked, answers), bool(self.job.channels.up), self.private
        place = self._place(asked, exchange)
        received: dict[str, Message] = {}
        for client, answer in answers.items():
            try:
                if through:
                    size = wire_size(answer.message)
                    received[client] = self._arrived(forms, messages[client], answer, place.context(client))
                else:
                    size = forms.size(messages[client], answer.message)
                    received[client] = answer.message
            except WireError as error:
                self._fail(Failure(client, f"sent a reply of the wrong form: {error}"))
                continue
            self._accepted(client, answer, size)
            if private is not None:
                private.note(client, answer.message)
        return received

    def _accepted(self, name: str, answer: Reply, size: int) -> None:
        self.up[name] = self.up.get(name, 0) + size
        if answer.memory is not None:
            self.remembered[name] = answer.memory
        if answer.observed:
            self.observed[name] = answer.observed

    def _private_messages(
        self, private: PrivateRound, asked: str, messages: Mapping[Any, Message], seen: Cohort
    ) -> Mapping[Any, Message]:
        try:
            return private.messages(asked, messages, seen)
        except UnsupportedError as error:
            title, number = self.job.algorithm.title, self.stamp.round
            raise UnsupportedError(
                f"{title} cannot go on with differential privacy in round {number}: {error}"
            ) from None

    def _arrived(self, forms: Forms, message: Message, answer: Reply, context: Context) -> Message:
        """Through the server's half of the channels; what that keeps of it waits for the round's end."""
        name, mirror = context.id, None
        if self.job.channels.mirrored:
            mirror = self.remembered.get(MIRROR + name) or self.memories[MIRROR + name]
        arrival = forms.arrival(message, answer.message, context, mirror)
        if arrival.mirror is not None:
            self.remembered[MIRROR + name] = arrival.mirror
        self.raw[name] = self.raw.get(name, 0) + wire_size(arrival.message)
        return arrival.message

    def _clients(self, asked: str, messages: Mapping[str, Message], exchange: int) -> dict[str, Reply]:
        place, calls = self._place(asked, exchange), []
        for client, message in messages.items():
            if client in self.failures:  # it keeps nothing of this round, so it cannot have a part in it either
                continue
            self._count_down(client, message)
            reason = self.absent(client)
            if reason is not None:
                self._fail(Failure(client, reason))
            else:
                calls.append(Call(client, message, self._memory(client), place.context(client)))
        return self._answered(calls, exchange)

    def _parties(self, asked: str, messages: Mapping[Party, Message], exchange: int) -> dict[Party, Message]:
        place, received = self._place(asked, exchange), {}
        for party, message in messages.items():
            name = f"party:{party.name}"  # which no client's id can be
            self._count_down(name, message)
            call = Call(name, message, self._memory(name), place.context(name), party=True)
            for attempt in range(1, _PARTY_TRIES + 1):
                (answer,) = self.runtime.run([call], self._stamped(exchange), self.faults.deadline)
                if not isinstance(answer, Failure):
                    self._accepted(name, answer, wire_size(answer.message))
                    received[party] = answer.message
                    break
                if attempt == _PARTY_TRIES:
                    raise QuorumError(
                        f"round {self.stamp.round}: {party} {answer.reason} It was asked {attempt} times; the run "
                        "stopped at its last checkpoint."
                    )
        return received

    def _memory(self, name: str) -> Memory:
        memory = self.remembered.get(name) or self.memories[name]
        if memory.scalars and version_held(memory) is not None and not self.runtime.holds_memories:
            raise UnsupportedError(
                "the memories of this run are on the disks of its nodes, where the runtime "
                f"'{self.runtime.name}' cannot read them; resume it with runtime = \"wire\"."
            )
        return memory

    def _place(self, asked: str, exchange: int) -> Place:
        return Place(self.stamp.round, asked, exchange, self.key, self.job.secrets)

    def _answered(self, calls: list[Call], exchange: int) -> dict[str, Reply]:
        """The replies that came; the rest are noted as failures."""
        answers = self.runtime.run(calls, self._stamped(exchange), self.faults.deadline)
        replies = {}
        for call, answer in zip(calls, answers, strict=True):
            if isinstance(answer, Failure):
                self._fail(answer)
            else:
                replies[call.recipient] = answer
        return replies

    def _fail(self, failure: Failure) -> None:
        if failure.fatal:
            raise UnsupportedError(f"client '{failure.client}' {failure.reason}")
        if self.faults.strict and failure.trace:
            raise ParleyError(f"client '{failure.client}' {failure.reason}\n\n{failure.trace}")
        if failure.lost:
            self.memories.forget(failure.client)
            self.memories.forget(MIRROR + failure.client)
        self.failures[failure.client] = failure

    def _check_quorum(self) -> None:
        """Of the cohort and whoever else was asked in this round, enough must still be there."""
        asked = len(self._asked)
        there = asked - len(self._asked & self.failures.keys())
        if there < self.faults.quorum * asked:
            raise QuorumError(self._too_few(there, asked))
        if self.faults.at_least is not None and there < self.faults.at_least:
            raise QuorumError(self._too_few(there, asked, f"faults.at_least is {self.faults.at_least}"))
        if (missing := next((client for client in self.faults.require if client in self.failures), None)) is not None:
            raise QuorumError(
                f"round {self.stamp.round}: client '{missing}', which faults.require names, "
                f"{self.failures[missing].reason.rstrip('.')}; the run stopped at its last checkpoint; "
                f"{_again(self.failures[missing])}."
            )
        if not there and (self.private is None or not self.private.plan.central):
            raise _NobodyAnswered

    def _check_finite(self, fresh: Tree) -> None:
        """`fresh`: what the round has put into the state."""
        if not is_finite(fresh):
            name = next(name for name, value in fresh.items() if not is_finite({name: value}))
            raise ParleyError(
                f"round {self.stamp.round}: the server's state is no longer finite ('{name}'); the run stopped at its "
                "last checkpoint. Lower the step sizes, or clip (algorithm.clip)."
            )

    def _count_down(self, name: str, message: Message) -> None:
        size = self._sizes.get(id(message))
        if size is None:
            size = self._sizes[id(message)] = wire_size(message)
            self._held.append(message)
        self.down[name] = self.down.get(name, 0) + size

    def __post_init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._asked = set(self.cohort.ids)
        self._held: list[Message] = []
        """The messages whose sizes are known, so that their ids stay their own."""

    def _stamped(self, exchange: int) -> Stamp:
        return replace(self.stamp, exchange=exchange)

    def _too_few(self, answered: int, asked: int, rule: str = "") -> str:
        if not self.failures:
            return (
                f"round {self.stamp.round}: only {asked} clients were asked, but {rule}; the run stopped at its last "
                "checkpoint; ask more (cohort.size)."
            )
        client, failure = next(iter(self.failures.items()))
        return (
            f"round {self.stamp.round}: only {answered} of {asked} clients answered, "
            f"{rule or f'the quorum is {self.faults.quorum:.0%}'} (client '{client}' {failure.reason.rstrip('.')}); "
            f"the run stopped at its last checkpoint; {_again(failure)}."
        )


class _NobodyAnswered(Exception):
    pass


def _again(failure: Failure) -> str:
    """Whether it would help to resume a run that stopped for this, as the end of a sentence."""
    if "(simulated)" in failure.reason:
        return "resumed, it would meet the same absences again unless faults.quorum is lowered"
    if "NaN or infinite" in failure.reason:
        return "resumed, it would come to the same: lower the step sizes, or clip (algorithm.clip), and start it anew"
    if failure.reason.startswith("raised "):
        return "it can be resumed if the cause lay outside the code; with changed code or settings, start it anew"
    return "it can be resumed"


def _outcome(job: Job, value: object) -> tuple[State, dict[str, float]]:
    state, metrics = value if isinstance(value, tuple) and len(value) == 2 else (value, {})
    if not isinstance(state, State):
        raise InputError(f"a round of {job.algorithm.title} must return a State, not {type(state).__name__}.")
    return state, {str(name): float(number) for name, number in dict(metrics).items()}


def _versions(state: State) -> list[int]:
    return [value._version for value in state.tensors.values()]
