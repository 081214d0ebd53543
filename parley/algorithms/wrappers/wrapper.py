"""Methods around other methods: each inner one has its own names in state, memory and exchanges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from parley.algorithms.exchange import Exchange, Question, Reply
from parley.algorithms.protocol import Algorithm, Learned, Needs, Questions
from parley.core.message import Memory, Message, Payload
from parley.training.task import Task

P = TypeVar("P", bound=Payload)


class Wrapper(Algorithm):
    """A method around one other, `of`: what it does not change is the other's own, exchanges and keys included."""

    of: Algorithm

    @property
    def needs(self) -> Needs:
        return self.of.needs

    def exchanges(self) -> tuple[Exchange, ...]:
        return self.of.exchanges()

    def learned(self, task: Task) -> Learned:
        of = self.of.learned(task)
        return replace(of, read=lambda state, since: of.message(self.inner(state), since))

    def inner(self, state: P) -> P:
        """The inner method's state within this one's."""
        return inner(state, "of")

    def outer(self, state: P) -> P:
        """This method's state, holding only the inner one's; `replace` adds to it."""
        return outer("of", state)


def inner(payload: P, name: str) -> P:
    """The state or memory of the inner method of this name."""
    scalars = {key.removeprefix(f"{name}/"): v for key, v in payload.scalars.items() if key.startswith(f"{name}/")}
    return payload.holding(payload.get(name), scalars)


def outer(name: str, payload: P) -> P:
    """The state or memory of the inner method of this name, as the outer one has it."""
    tensors = {f"{name}/{key}": value for key, value in payload.tensors.items()}
    return payload.holding(tensors, {f"{name}/{key}": value for key, value in payload.scalars.items()})


def translated(questions: Questions, change: Callable[[Question], Question]) -> Questions:
    """The round of an inner method, each of whose questions is changed on its way out."""
    question = next(questions, None)
    while question is not None:
        replies = yield change(question)
        try:
            question = questions.send(replies)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
    raise AssertionError("a round asks something or returns a state")


def nested(each: Exchange, path: str, rounds: tuple[int, int | None]) -> Exchange:
    """An inner method's exchange in the rounds in which it is at work, with a memory of its own."""

    def answer(task: Task, message: Message, memory: Memory, *rest: Any) -> Reply:  # a party has no data
        reply = each.answer(task, message, inner(memory, path), *rest)
        return reply if reply.memory is None else replace(reply, memory=outer(path, reply.memory))

    first, last = each.rounds
    ends = [end for end in (last, rounds[1]) if end is not None]
    return replace(
        each,
        name=f"{path}.{each.name}",
        answer=answer,
        joins={},  # of the inner method's memory
        rounds=(max(first, rounds[0]), min(ends) if ends else None),
    )
