"""One round: ask, receive, leave out who failed, fold. Counts every byte on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from parley.algorithms.exchange import Exchange, Party, Question, Reply
from parley.algorithms.protocol import Questions, Replies
from parley.algorithms.summed import SingleReplyError
from parley.channels.base import MIRROR
from parley.core.context import Context, Position
from parley.core.errors import InputError, ParleyError, QuorumError, UnsupportedError, WireError, user_line
from parley.core.failure import Failure
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.tree import Tree, is_finite
from parley.core.wire import wire_size
from parley.engine.forms import Forms, check_trees
from parley.engine.listeners import Listener
from parley.engine.reading import Collected, Reading, Stage, Stages
from parley.engine.settings import Faults
from parley.runtimes.protocol import Call, Job, Runtime, Stamp, version_held
from parley.store.memories import Memories

_PARTY_TRIES = 3
"""How often a party is asked before the run stops."""


@dataclass
class Round:
    """One round: what was sent, what came back, who failed, what recipients will remember."""

    job: Job
    runtime: Runtime
    memories: Memories
    faults: Faults
    key: Key
    reading: Reading
    """What the method may read of the replies, and the cohort."""
    absent: Callable[[str], str | None]
    """Why a client will not answer in this round (simulated); None if it will."""
    stamp: Stamp
    listeners: Sequence[Listener] = ()
    up: dict[str, int] = field(default_factory=dict)
    raw: dict[str, int] = field(default_factory=dict)
    """What would have come up without channels, where there are any."""
    down: dict[str, int] = field(default_factory=dict)
    remembered: dict[str, Memory] = field(default_factory=dict)
    observed: dict[str, Mapping[str, Tensor]] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    """The server's own."""

    def __post_init__(self) -> None:
        self.cohort, self.reading.failures = self.reading.cohort, self.failures
        self._asked = _Asked(self.job, self.stamp.round, set(self.cohort.ids))
        self._sizes: dict[int, int] = {}
        self._held: list[Message] = []
        """The messages whose sizes are known, so that their ids stay their own."""

    def play(self, state: State) -> State:
        """The state after the round; raises QuorumError if too few clients answered.

        A round with no client to ask, or without any answer where the quorum is 0, changes nothing.
        """
        title, reading = self.job.algorithm.title, self.reading
        seen, cohort = reading.open(state)
        if not cohort.ids:
            return reading.close(seen)
        self._asked.drawn, before = set(cohort.ids), _versions(seen)
        questions = self.job.algorithm.round(self.job.server, seen, cohort, self.stamp.round, self.key)
        replies, position = None, 0
        try:
            while True:
                question = self._next(questions, replies)
                replies, position = self._exchange(question, position), position + 1
        except _NobodyAnswered:
            self.remembered.clear()
            return reading.close(seen)
        except SingleReplyError as error:
            where = f"{title} cannot go on with {reading.about} in round {self.stamp.round}"
            raise UnsupportedError(f"{where}: {error}") from None
        except StopIteration as end:
            new, self.metrics = _outcome(self.job, end.value)
        for client in self.failures:  # who fails later in a round keeps nothing of what it did before
            self.remembered.pop(client, None)
            self.remembered.pop(MIRROR + client, None)
        if _versions(seen) != before:
            raise UnsupportedError(f"{title} changed the server's state in place; states are values: make new tensors.")
        check_trees(title, seen, new)
        self._check_finite({name: value for name, value in new.tensors.items() if seen.tensors.get(name) is not value})
        return reading.close(new)

    def _next(self, questions: Questions, replies: Replies | None) -> Question:
        """What the method asks now; what is wrong with it is said with the line of the user's own code."""
        try:
            question = next(questions) if replies is None else questions.send(replies)
        except InputError as error:
            if not (where := user_line(error)):
                raise
            title, reason = self.job.algorithm.title, str(error).rstrip(".")
            raise InputError(f"round {self.stamp.round} of {title}: {reason}{where}.") from error
        if not isinstance(question, Question):
            raise InputError(
                f"a round of {self.job.algorithm.title} yields {type(question).__name__} where "
                "`yield ask(self.client, messages)` was expected."
            )
        return question

    def _exchange(self, question: Question, position: int) -> Replies:
        """The question's stages, and what the method may read then."""
        declared = self._asked.declared(question)
        stages, received = self.reading.stages(question, declared, position), None
        while True:
            stage = self._stage(stages, received)
            if isinstance(stage, Collected):
                return self.reading.replies(stage)
            at = position if stage.number is None else stage.number
            received = self._played(declared, stage, at)
            if stage.asked == question.asked:
                shown = (stage.messages, received) if stage.form is None else (question.messages, {})
                for listener in self.listeners:
                    listener.exchange(self.stamp.round, position, question.asked, *shown)

    def _stage(self, stages: Stages, received: Mapping[Any, Message] | None) -> Stage | Collected:
        try:
            return next(stages) if received is None else stages.send(received)
        except StopIteration as end:
            collected: Collected = end.value
            return collected
        except UnsupportedError as error:
            raise SingleReplyError(str(error)) from None
        except QuorumError as error:
            failed = next(iter(self.failures.values()), None)
            why = "" if failed is None else f" (client '{failed.client}' {failed.reason.rstrip('.')})"
            raise QuorumError(f"{str(error).rstrip('.')}{why}.") from None

    def _played(self, declared: Exchange, stage: Stage, at: int) -> dict[Any, Message]:
        """What came back of one stage. Who only does not help has its part in the round all the same."""
        if any(isinstance(recipient, Party) for recipient in stage.messages):
            return self._parties(stage.asked, stage.messages, at)
        if not stage.messages:
            return {}
        before = set(self.failures)
        answers = self._clients(stage.asked, stage.messages, at)
        received = self._received(declared, stage, answers, at)
        self._asked.everyone |= stage.messages.keys()
        if stage.helps:
            for client in self.failures.keys() - before:
                reason = self.failures.pop(client).reason
                for listener in self.listeners:
                    listener.note(f"round {self.stamp.round}: '{client}' did not help to unmask a sum: {reason}")
        if not check_quorum(self.faults, self.stamp.round, self._asked.everyone, self.failures) and (
            self.reading.needs_someone
        ):
            raise _NobodyAnswered
        return received

    def _received(self, declared: Exchange, stage: Stage, answers: Mapping[str, Reply], at: int) -> dict[Any, Message]:
        """What the server has of the clients' answers; those of a wrong form are noted as failures."""
        forms = Forms(self.job, declared, answers)
        through, context = bool(self.job.channels.up), self._position(stage.asked, at)
        received: dict[Any, Message] = {}
        for client, answer in answers.items():
            try:
                if stage.form is not None:
                    stage.form.check(answer.message.tensors)
                    size, received[client] = wire_size(answer.message), answer.message
                elif through:
                    size = wire_size(answer.message)
                    received[client] = self._arrived(forms, stage.messages[client], answer, context.context(client))
                else:
                    size = forms.size(stage.messages[client], answer.message)
                    received[client] = answer.message
            except WireError as error:
                self._fail(Failure(client, f"sent a reply of the wrong form: {error}"))
                continue
            self._accepted(client, answer, size)
            if stage.raw is not None:
                self.raw[client] = self.raw.get(client, 0) + stage.raw
            if stage.record is not None:
                stage.record(client, answer.message)
        return received

    def _accepted(self, name: str, answer: Reply, size: int) -> None:
        self.up[name] = self.up.get(name, 0) + size
        if answer.memory is not None:
            self.remembered[name] = answer.memory
        if answer.observed:
            self.observed[name] = answer.observed

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
        context, calls, failures, down = self._position(asked, exchange), [], self.failures, self.down
        for client, message in messages.items():
            if client in failures:  # it keeps nothing of this round, so it cannot have a part in it either
                continue
            down[client] = down.get(client, 0) + (self._sizes.get(id(message)) or self._weighed(message))
            reason = self.absent(client)
            if reason is not None:
                self._fail(Failure(client, reason))
            else:
                calls.append(Call(client, message, self._memory(client), context.context(client)))
        return self._answered(calls, exchange)

    def _parties(self, asked: str, messages: Mapping[Party, Message], exchange: int) -> dict[Any, Message]:
        context, received = self._position(asked, exchange), dict[Any, Message]()
        for party, message in messages.items():
            name = f"party:{party.name}"  # which no client's id can be
            self.down[name] = self.down.get(name, 0) + self._weighed(message)
            call = Call(name, message, self._memory(name), context.context(name), party=True)
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

    def _position(self, asked: str, exchange: int) -> Position:
        return Position(self.stamp.round, asked, exchange, self.key, self.job.secrets)

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

    def _check_finite(self, fresh: Tree) -> None:
        """`fresh`: what the round has put into the state."""
        if not is_finite(fresh):
            name = next(name for name, value in fresh.items() if not is_finite({name: value}))
            raise ParleyError(
                f"round {self.stamp.round}: the server's state is no longer finite ('{name}'); the run stopped at its "
                "last checkpoint. Lower the step sizes, or clip (algorithm.clip)."
            )

    def _weighed(self, message: Message) -> int:
        """The bytes of a message that is sent."""
        if id(message) not in self._sizes:
            self._sizes[id(message)] = wire_size(message)
            self._held.append(message)
        return self._sizes[id(message)]

    def _stamped(self, exchange: int) -> Stamp:
        return replace(self.stamp, exchange=exchange)


class _NobodyAnswered(Exception):
    pass


class _Asked:
    """What a round has asked so far: every question must keep to its declaration."""

    def __init__(self, job: Job, number: int, drawn: set[str]) -> None:
        self.job, self.number, self.drawn = job, number, drawn
        self.everyone = set(drawn)
        """The cohort, and who else was asked."""
        self._times: dict[str, Counter[Any]] = {}

    def declared(self, question: Question) -> Exchange:
        """The declaration of what is asked."""
        title, asked = self.job.algorithm.title, question.asked
        declared = self.job.exchanges.get(asked)
        if declared is None:
            raise InputError(f"{title} asks '{asked}', which its exchanges do not declare with these settings.")
        first, last = declared.rounds
        if self.number < first or (last is not None and self.number > last):
            raise InputError(f"{title} asks '{asked}' in round {self.number}, outside of the rounds it declares.")
        recipients, times = question.messages.keys(), self._times.setdefault(asked, Counter())
        times.update(recipients)
        if times and max(times.values()) > declared.times:
            raise InputError(
                f"{title} asks '{asked}' more often in a round than the {declared.times} times it declares."
            )
        parties = {recipient for recipient in recipients if isinstance(recipient, Party)}
        if parties and len(parties) < len(recipients):
            raise InputError(f"{title} asks clients and parties in one exchange; make it two.")
        if isinstance(declared.asks, Party):
            kept = recipients <= {declared.asks}
        else:
            kept = not parties and (declared.asks == "everyone" or recipients <= self.drawn)
        if not kept:
            raise InputError(f"{title} asks '{asked}' of others than it declares (asks).")
        return declared


def check_quorum(faults: Faults, number: int, asked: set[str], failures: Mapping[str, Failure]) -> int:
    """How many of those asked are still there; a QuorumError if they are too few."""
    present = len(asked - failures.keys())
    rule = ""
    if present < faults.quorum * len(asked):
        rule = f"the quorum is {faults.quorum:.0%}"
    elif faults.at_least is not None and present < faults.at_least:
        rule = f"faults.at_least is {faults.at_least}"
    if rule and not failures:
        raise QuorumError(
            f"round {number}: only {len(asked)} clients were asked, but {rule}; the run stopped at its last "
            "checkpoint; ask more (cohort.size)."
        )
    if rule:
        client, failure = next(iter(failures.items()))
        raise QuorumError(
            f"round {number}: only {present} of {len(asked)} clients answered, {rule} (client '{client}' "
            f"{failure.reason.rstrip('.')}); the run stopped at its last checkpoint; {_again(failure)}."
        )
    if (missing := next((client for client in faults.require if client in failures), None)) is not None:
        raise QuorumError(
            f"round {number}: client '{missing}', which faults.require names, "
            f"{failures[missing].reason.rstrip('.')}; the run stopped at its last checkpoint; "
            f"{_again(failures[missing])}."
        )
    return present


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
