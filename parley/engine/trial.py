"""A method tried out before training: two rounds, and those in which it changes, with one client and few samples.

What of the replies can be read decides whether the method gets along with it; it raises what it cannot do without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from parley.algorithms.base.protocol import Cohort, Question, Replies
from parley.algorithms.base.summed import SingleReplyError
from parley.core.context import Context, Secrets
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.data import ClientData
from parley.runtimes.protocol import Job

_ROUNDS = (1, 2)
_SAMPLES = 8


class Readable(Protocol):
    """A round in which not everything can be asked and read."""

    def open(self, state: State) -> tuple[State, Cohort]: ...

    def close(self, state: State) -> State: ...

    def messages(self, asked: str, messages: Mapping[Any, Message], seen: Cohort) -> Mapping[Any, Message]: ...

    def note(self, client: str, transmitted: Message) -> None: ...

    def replies(self, received: Mapping[Any, Message]) -> Replies: ...


def try_rounds(job: Job, readable: Callable[[int], Readable], state: State) -> None:
    """Play the rounds; whatever they raise is raised."""
    memories: dict[str, Memory] = {}
    with torch.random.fork_rng(devices=[]):
        for number in (*_ROUNDS, *job.algorithm.turning_points):
            state = _round(job, readable(number), state, number, memories)


def _round(job: Job, readable: Readable, state: State, number: int, memories: dict[str, Memory]) -> State:
    inner, cohort = readable.open(state)
    course = job.algorithm.round(job.server, inner, cohort, number, Key())
    try:
        question, exchange = next(course), 0
        while True:
            asked = Question.of(question)
            sent = readable.messages(asked.asked, asked.messages, cohort)
            answers: dict[str, Message] = {}
            for client in cohort.ids:
                context = Context(client, number, asked.asked, exchange, Key(), Secrets(bytes(16), (number,), client))
                answer = _answer(job, readable, sent[client], context, memories) if client in sent else None
                if answer is not None:
                    answers[client] = answer
            question, exchange = course.send(readable.replies(answers)), exchange + 1
    except StopIteration as end:
        new = end.value[0] if isinstance(end.value, tuple) else end.value
        return readable.close(new)


def _answer(
    job: Job, readable: Readable, message: Message, context: Context, memories: dict[str, Memory]
) -> Message | None:
    """The client's reply through both halves of the channels; None if it fails, as it may in earnest."""
    try:
        data = job.federation.client(context.id)
        few = ClientData(data.x[:_SAMPLES], data.y[:_SAMPLES])
        memory = memories.get(context.id) or Memory()
        reply = job.algorithm.answers(context.asked)(job.server, message, memory, few, context)
    except Exception:
        return None
    if reply.message.scalars:
        raise SingleReplyError(f"it sends the scalar '{next(iter(reply.message.scalars))}', which is no part of a sum.")
    memories[context.id] = reply.memory or memory
    channels = job.channels.unclosed.told(message)
    sent = channels.send(reply, Memory(), context)
    readable.note(context.id, sent.message)
    form = job.algorithm.reply_form(job.server, context.asked, message)
    return channels.receive(sent.message, form, context).message if form else Message()
