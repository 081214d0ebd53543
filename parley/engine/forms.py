"""The forms that replies must have, what they weigh, and the trees of a state."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cached_property

from parley.algorithms.exchange import Exchange, Reply
from parley.channels.base import Arrival
from parley.core.context import Context
from parley.core.errors import InputError, UnsupportedError
from parley.core.form import Form
from parley.core.message import Memory, Message, Row, State
from parley.core.tree import Schema, schema
from parley.core.wire import wire_size
from parley.runtimes.protocol import Job

_DIGITS = re.compile(r"[0-9]+")


class Forms:
    """The forms that the replies of one exchange must have, each found once."""

    def __init__(self, job: Job, declared: Exchange, replies: Mapping[str, Reply]) -> None:
        self.job, self.declared, self.replies = job, declared, replies
        self._known: dict[int, Form | None] = {}
        self._sizes: dict[tuple[int, Schema], int] = {}
        """Of replies without scalars that have the form they must have."""
        self._rows: dict[tuple[int, int], int] = {}
        """Of all rows of a stack."""

    def of(self, sent: Message) -> Form | None:
        """The form of a reply to this message; None for any."""
        if id(sent) not in self._known:
            form = self.declared.form(self.job.server, sent)
            self._known[id(sent)] = self._usual if form is None else form
        return self._known[id(sent)]

    def size(self, sent: Message, reply: Message) -> int:
        """The bytes of the reply; a WireError if it has not the form it must have."""
        if not isinstance(reply, Row):
            return self._size(sent, reply)
        key = id(sent), id(reply.stack)
        if key not in self._rows:
            self._rows[key] = self._size(sent, reply)
        return self._rows[key]

    def _size(self, sent: Message, reply: Message) -> int:
        schema = reply.schema
        size = None if reply.scalars else self._sizes.get((id(sent), schema))
        if size is None:
            form = self.of(sent)
            if form is not None and not form.fits(schema):
                form.check(reply.tensors)
            size = wire_size(reply, schema)
            if not reply.scalars:
                self._sizes[id(sent), schema] = size
        return size

    def arrival(self, sent: Message, reply: Message, context: Context, mirror: Memory | None) -> Arrival:
        """The reply through the server's half of the channels; a WireError if it has not the form it must have."""
        form = self.of(sent)
        if form is None:
            what = f"{self.job.algorithm.title} does not declare the form of its replies (form)"
            raise UnsupportedError(f"{what}, which channels need.")
        arrival = self.job.channels.receive(reply, form, context, mirror)
        form.check(arrival.message.tensors)
        return arrival

    @cached_property
    def _usual(self) -> Form | None:
        """The form most replies have; None if there is none that more than half share."""
        schemas = Counter(reply.message.schema for reply in self.replies.values())
        most, count = schemas.most_common(1)[0]
        return Form({n: (dtype, tuple(shape)) for n, dtype, shape in most}) if 2 * count > schemas.total() else None


def check_trees(title: str, before: State, after: State) -> None:
    """Refuse a new tree that must have been meant for the one of a similar name: that has the same form and has stayed
    as it was, so that the run would go on untrained. Names that are counted on are no slips."""
    fresh = after.tensors.keys() - before.tensors.keys()
    known = before.groups() if fresh else []
    for name in {tensor.split("/", 1)[0] for tensor in fresh if "/" in tensor}.difference(known):
        meant = next(iter(get_close_matches(name, known, n=1, cutoff=0.75)), name)
        old, new = before.get(meant), after.get(name)
        if _DIGITS.sub("", meant) == _DIGITS.sub("", name) or set(schema(old)) != set(schema(new)):
            continue
        if all(after.tensors.get(f"{meant}/{tensor}") is value for tensor, value in old.items()):
            raise InputError(
                f"a round of {title} put '{name}' into the server's state and left '{meant}' as it was: "
                f"did you mean '{meant}'?"
            )
