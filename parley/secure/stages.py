"""One secure sum from the server's side: a generator that says what to ask and is given what came back.

Who does not answer is missing from then on, at whatever stage: before the shares it has no part in the sum, after them
its masks are rebuilt from the others' shares, and once its masked reply is there it is in the sum, helping or not. Too
few at any stage, and nothing is asked any more: a QuorumError, and masked vectors that say nothing.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from parley.core.errors import QuorumError, WireError
from parley.core.form import Form
from parley.core.message import Message
from parley.core.tree import Tree
from parley.engine.reading import Stage
from parley.secure.channel import GROUP, KEYS, SHARES, UNMASK, SecureSum, exchange_of, masked_form, raw, received, rows
from parley.secure.fixed_point import Layout
from parley.secure.masks import BOX, ROW, TICKET, TOLD, Terms, unmasked


@dataclass(frozen=True)
class Total:
    """A sum and whose replies are in it."""

    tensors: Tree
    clients: tuple[str, ...]


Stages = Generator[Stage, Mapping[str, Message], Total]


def secure_sum(
    channel: SecureSum,
    asked: str,
    messages: Mapping[str, Message],
    factors: Mapping[str, float],
    layout: Layout,
    position: tuple[int, int],
    raw_size: int,
) -> Stages:
    """The sum of factors[i] reply_i over all that give the method's function `asked` an answer.

    `position`: the round and the method's exchange. `raw_size`: bytes that a reply would have by itself.
    """
    key_replies = yield Stage(
        KEYS, dict.fromkeys(messages, Message()), exchange_of(KEYS, position[1]), Form.of(keys=(torch.uint8, (ROW,)))
    )
    clients = [client for client in messages if client in key_replies]
    count = len(clients)
    threshold = channel.needed(count)
    _check(position, channel.least, count, len(messages), "told their keys")
    keys = torch.stack([key_replies[client].tensor("keys") for client in clients])
    weights = torch.tensor([factors[client] for client in clients], dtype=torch.float64)
    terms = Terms(position, tuple(rows(keys, count, ROW)), tuple(weights.tolist()), threshold)
    common: Tree = {"keys": keys, "factors": weights}

    form = Form.of(boxes=(torch.uint8, (count, BOX)), ticket=(torch.uint8, (TICKET,)))
    shared = yield Stage(
        SHARES, dict.fromkeys(clients, Message.of(**{GROUP: common})), exchange_of(SHARES, position[1]), form
    )
    present = {number for number, client in enumerate(clients) if client in shared}
    _check(position, threshold, len(present), count, "shared their keys")
    common["there"] = _chosen(present, count)

    tickets = torch.zeros(count, TICKET, dtype=torch.uint8)
    for number in present:
        tickets[number] = shared[clients[number]].tensor("ticket")
    asking = _with(messages, {**common, "tickets": tickets})
    asked_of = {clients[i]: asking[clients[i]] for i in sorted(present)}
    answers = yield Stage(asked, asked_of, form=masked_form(layout, count), raw=raw_size)
    masked = {i: received(answers[clients[i]], layout, count) for i in sorted(present) if clients[i] in answers}
    _check(position, threshold, len(masked), count, "sent their masked replies")

    common["summed"] = _chosen(set(masked), count)
    boxes = {i: _boxes_for(i, clients, shared) for i in masked}
    private = {i: {"boxes": boxes[i], "ticket": answers[clients[i]].tensor("ticket")} for i in masked}
    last = {clients[i]: Message.of(**{GROUP: {**common, **private[i]}}) for i in masked}
    given = yield Stage(
        UNMASK, last, exchange_of(UNMASK, position[1]), Form.of(shares=(torch.uint8, (count, TOLD))), helps=True
    )
    shares = {
        i: dict(enumerate(raw(row) for row in given[clients[i]].tensor("shares")))
        for i in masked
        if clients[i] in given
    }
    _check(position, threshold, len(shares), count, "sent their shares")
    try:
        total = unmasked(terms, present, masked, shares)
    except WireError as error:
        raise QuorumError(
            f"round {position[0]}: a client sent an invalid share ({str(error).rstrip('.')}); {_END}"
        ) from None
    return Total(layout.decode(total), tuple(clients[i] for i in masked))


_END = "nothing can be read of what was sent; the run stopped at its last checkpoint; it can be resumed."


def _check(position: tuple[int, int], needed: int, answered: int, asked: int, what: str) -> None:
    if answered < needed:
        raise QuorumError(
            f"round {position[0]}: only {answered} of {asked} clients {what}, but a secure sum needs {needed}; {_END}"
        )


def _with(messages: Mapping[str, Message], common: Tree) -> dict[str, Message]:
    """The method's messages with what the sum needs; those that are the same stay one object."""
    made: dict[int, Message] = {}
    for message in messages.values():
        if id(message) not in made:
            made[id(message)] = message.replace(**{GROUP: common})
    return {client: made[id(message)] for client, message in messages.items()}


def _chosen(numbers: set[int], count: int) -> Tensor:
    chosen = torch.zeros(count, dtype=torch.bool)
    chosen[sorted(numbers)] = True
    return chosen


def _boxes_for(number: int, clients: Sequence[str], shared: Mapping[str, Message]) -> Tensor:
    """What each client has encrypted for this one."""
    nothing = torch.zeros(BOX, dtype=torch.uint8)
    return torch.stack([shared[i].tensor("boxes")[number] if i in shared else nothing for i in clients])
