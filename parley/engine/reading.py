"""Readings: what the server may read of the replies to a question, and in how many stages they are asked for.

Without anything else it reads every reply (`Reading`). Under secure sums it reads their sum, which takes four stages;
under differential privacy a noisy sum of whatever the reading below it leaves to read. The round loop knows none of
this: it plays stages until the reading says what the method gets.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from parley.algorithms.exchange import Exchange, Question
from parley.algorithms.protocol import Cohort, Replies
from parley.core.failure import Failure
from parley.core.form import Form
from parley.core.message import Message, State
from parley.core.tree import Tree
from parley.runtimes.protocol import Job
from parley.store.records import Metric


@dataclass(frozen=True)
class Stage:
    """Messages of one step of an exchange."""

    asked: str
    messages: Mapping[Any, Message]
    number: int | None = None
    """The number of the exchange under which it is asked; None: that of the question."""
    form: Form | None = None
    """Of what comes back; None: what the exchange declares, through the channels."""
    helps: bool = False
    """Who does not answer is not missing from the round: it only did not help."""
    raw: int | None = None
    """Bytes that each reply would have without channels, where the reading knows and nobody else does."""
    record: Callable[[str, Message], None] | None = None
    """Is given what each client transmitted."""


@dataclass(frozen=True)
class Collected:
    """What the stages have brought: replies one by one, or nothing but their sum."""

    replies: Mapping[Any, Message]
    total: Tree | None = None
    clients: tuple[str, ...] = ()
    """Whose replies are in the total."""


Stages = Generator[Stage, Mapping[Any, Message], Collected]


class Reading:
    """Every reply can be read."""

    needs_someone = True
    """A round in which nobody answers changes nothing."""

    def __init__(self, job: Job, cohort: Cohort, number: int) -> None:
        self.job, self.cohort, self.number = job, cohort, number
        self.failures: Mapping[str, Failure] = {}
        """Who has failed in this round so far; the round sees to it."""

    def open(self, state: State) -> tuple[State, Cohort]:
        """The state and the cohort as the method sees them."""
        return state, self.cohort

    def close(self, state: State) -> State:
        """The state after the round, from the method's."""
        return state

    def stages(self, question: Question, declared: Exchange, position: int) -> Stages:
        """What is asked; `place`: the number of the exchange in the round. An UnsupportedError says what cannot be."""
        received = yield Stage(question.asked, question.messages)
        return Collected(received)

    def replies(self, collected: Collected) -> Replies:
        """What the method may read."""
        shares = self.cohort.shares([i for i in self.cohort.ids if i in collected.replies])
        return Replies(dict(collected.replies), shares, self.cohort.expected)

    @property
    def about(self) -> str:
        """What it is, in a sentence that says why a method cannot go on."""
        return ""


class Readings:
    """The readings of a run's rounds: here, every reply of every round."""

    shows_clients: ClassVar[bool] = True
    """What single clients sent and saw may be recorded."""

    def of(self, job: Job, cohort: Cohort, number: int) -> Reading:
        """What the method may read of the replies of a round."""
        return Reading(job, cohort, number)

    def exhausted(self, number: int) -> str | None:
        """Why round `number` must not begin, as the end of a sentence."""
        return None

    def charged(self, number: int) -> dict[str, Metric]:
        """What all rounds up to this one have cost."""
        return {}
