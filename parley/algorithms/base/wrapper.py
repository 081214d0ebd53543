"""Methods around other methods: each inner one has its own names in state, memory and exchanges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from torch import Tensor, nn

from parley.algorithms.base.exchange import Exchange, Question, Reply
from parley.algorithms.base.protocol import Algorithm, Contexts, Needs, Questions
from parley.core.message import Memory, Message, Payload, State
from parley.core.tree import Tree
from parley.learn.stack import Data
from parley.learn.task import Predictor, Task

P = TypeVar("P", bound=Payload)


class Wrapper(Algorithm):
    """A method around one other, `of`: what it does not change is the other's own, exchanges and keys included."""

    of: Algorithm

    @property
    def needs(self) -> Needs:
        return self.of.needs

    @property
    def personal(self) -> bool:
        return self.of.personal

    @property
    def incremental(self) -> bool:  # type: ignore[override]
        return self.of.incremental

    def exchanges(self) -> tuple[Exchange, ...]:
        return self.of.exchanges()

    def model(self, task: Task, state: State, since: int | None = None) -> Message:
        return self.of.model(task, inner(state, "of"), since)

    def weights(self, task: Task, model: Message, memory: Memory | None = None) -> Tree | None:
        return self.of.weights(task, model, memory)

    def predictor(self, task: Task, model: Message, memory: Memory | None = None) -> Predictor:
        return self.of.predictor(task, model, memory)

    def module(self, task: Task, model: Message) -> nn.Module | None:
        return self.of.module(task, model)

    def outputs(
        self, task: Task, model: Message, memory: Memory | None, x: Tensor, before: Tensor | None = None
    ) -> Tensor:
        return self.of.outputs(task, model, memory, x, before)


def inner(payload: P, name: str) -> P:
    """The state or memory of the inner method of this name."""
    scalars = {key.removeprefix(f"{name}/"): v for key, v in payload.scalars.items() if key.startswith(f"{name}/")}
    return type(payload)(payload.get(name), scalars)


def outer(name: str, payload: P) -> P:
    """The state or memory of the inner method of this name, as the outer one has it."""
    tensors = {f"{name}/{key}": value for key, value in payload.tensors.items()}
    return type(payload)(tensors, {f"{name}/{key}": value for key, value in payload.scalars.items()})


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

    def answer(task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        reply = each.answer(task, message, inner(memory, path), data, context)
        return reply if reply.memory is None else replace(reply, memory=outer(path, reply.memory))

    first, last = each.rounds
    ends = [end for end in (last, rounds[1]) if end is not None]
    return replace(
        each, name=f"{path}.{each.name}", answer=answer, rounds=(max(first, rounds[0]), min(ends) if ends else None)
    )
