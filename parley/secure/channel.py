"""The channel `secure-sum`: what a client sends is masked, and it answers the three exchanges around that.

    secure-sum-keys      nothing                                        -> its keys
    secure-sum-shares    everybody's keys and weights                   -> shares for everybody, a ticket
    (the method's own)   the method's message, all that, the tickets    -> its reply, masked, a ticket
    secure-sum-unmask    all that, its boxes, who is in the sum         -> one share for each client

The masked reply is asked for at the method's own exchange k, the others at k + 2^20, k + 2 2^20 and k + 3 2^20, so
that the method draws the random numbers that it would draw without; each is answered at its place alone, which a node
answers once. The engine's half is `engine.secure`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from parley.channels.base import Channel, channel
from parley.core.context import Context
from parley.core.errors import InputError, UnsupportedError, WireError
from parley.core.form import Form
from parley.core.message import Message
from parley.secure.fixed_point import FixedPoint, Layout, Vector
from parley.secure.masks import BOX, TICKET, TOLD, ClientKeys, Terms

GROUP = "secure-sum"
"""The tree of a message that is the protocol's."""
KEYS, SHARES, UNMASK = "secure-sum-keys", "secure-sum-shares", "secure-sum-unmask"
_STAGES = {KEYS: 1, SHARES: 2, UNMASK: 3}
_APART = 2**20
_MOST_BITS = 48


@channel("secure-sum")
@dataclass(frozen=True)
class SecureSum(Channel):
    """The server learns the sum over clients and no single reply; always the last channel, wherever it is named."""

    touches: ClassVar[Literal["compress", "reorder", "everything"]] = "everything"
    summable: ClassVar[bool] = True
    last: ClassVar[bool] = True

    bits: int = 24
    """Bits to which real numbers are rounded, 2 to 48; whole numbers stay exact. Sums of fewer than 2^(32 - bits)
    clients travel as 4 bytes an entry, others as 8."""
    largest: float = 8.0
    """Largest size of a real number in a reply; a client with a larger one is left out and named."""
    threshold: float = 2 / 3
    """Share of a sum's clients, above a half, who must be left at its end, or it is refused."""
    least: int = 2
    """Fewest clients in a sum."""
    smallest: float = 0.01
    """Smallest weight in a sum as a share of the largest one; 1: all must be equal. Near 0 the server, which tells the
    weights, could leave one reply alone in the sum."""

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= _MOST_BITS:
            raise InputError(f"secure-sum rounds to 2 to {_MOST_BITS} bits, not {self.bits}.")
        if not 0 < self.largest < math.inf:
            raise InputError(f"secure-sum: largest must be a positive number, not {self.largest}.")
        if not 0.5 < self.threshold <= 1:
            raise InputError(
                f"secure-sum: threshold must lie above 0.5, or the server could ask half of the clients for one share "
                f"and half for the other, and at most at 1, not {self.threshold}."
            )
        if self.least < 2:
            raise InputError(
                f"secure-sum: a sum of fewer than 2 clients hides nothing, so least cannot be {self.least}."
            )

        if not 0 < self.smallest <= 1:
            raise InputError(f"secure-sum: smallest must be a share above 0 and at most 1, not {self.smallest}.")

    @property
    def nonexpansive(self) -> bool:
        return True

    @property
    def code(self) -> FixedPoint:
        return FixedPoint(self.bits, self.largest)

    def needed(self, clients: int) -> int:
        """How many of so many must be left at the end (t)."""
        return max(self.least, math.ceil(self.threshold * clients), clients // 2 + 1)

    def transmitted(self, form: Form, trees: Sequence[str]) -> Form:
        """As a sum of few clients travels; more may need wider numbers."""
        return masked_form(Layout(form, self.code), self.least) if form else form

    def send(self, message: Message, context: Context, trees: Sequence[str]) -> Message:
        if not message.tensors and not message.scalars:
            return message
        raise InputError("its replies leave it masked for a secure sum, and it was not asked for one.")

    def configured(self, received: Message) -> Channel:
        return Masking(self, received) if GROUP in received else self

    def answers(self, asked: str) -> Callable[[Message, Context], Message] | None:
        return {KEYS: self.keys, SHARES: self.shares, UNMASK: self.unmask}.get(asked)

    # --- what a client answers ---

    def keys(self, message: Message, context: Context) -> Message:
        """Its keys of this sum."""
        return Message.of(keys=tensor(_client_keys(context).row))

    def shares(self, message: Message, context: Context) -> Message:
        """Shares of its keys for everybody."""
        client_keys, terms = _client_keys(context), self.terms(message, context)
        boxes = torch.stack([tensor(box) for box in client_keys.boxes(terms)])
        return Message.of(boxes=boxes, ticket=tensor(client_keys.ticket(terms.digest)))

    def unmask(self, message: Message, context: Context) -> Message:
        """One share for every client that shared its keys."""
        client_keys, terms = _client_keys(context), self.terms(message, context)
        parts, count = message[GROUP], len(terms.rows)
        present, summed = (members(_part(parts, name), count) for name in ("there", "summed"))
        client_keys.check_ticket(terms.among(present), raw(_part(parts, "ticket")))
        boxes = dict(enumerate(rows(_part(parts, "boxes"), count, BOX)))
        given = client_keys.revealed_shares(terms, present, summed, boxes)
        return Message.of(shares=torch.stack([tensor(given.get(i, bytes(TOLD))) for i in range(count)]))

    def terms(self, message: Message, context: Context) -> Terms:
        """What the message says that all have agreed on."""
        parts = message[GROUP]
        keys, factors = _part(parts, "keys"), _part(parts, "factors")
        if keys.ndim != 2 or factors.shape != (len(keys),) or factors.dtype != torch.float64:
            raise WireError("the keys and weights of the sum cannot be read.")
        count = len(keys)
        if count < self.least:
            raise WireError(f"a sum of {count} clients hides too little; it takes part in sums of {self.least}.")
        threshold = self.needed(count)
        agreed = Terms(
            position(context), tuple(rows(keys, count, 96)), tuple(factors.tolist()), threshold, self.smallest
        )
        agreed.check()
        return agreed


@dataclass(frozen=True)
class Masking(Channel):
    """The channel as a message for one sum sets it."""

    settings: SecureSum
    received: Message

    def send(self, message: Message, context: Context, trees: Sequence[str]) -> Message:
        if message.scalars:
            raise InputError(f"the scalar '{next(iter(message.scalars))}' cannot be masked; send it as a tensor.")
        if not message.tensors:
            return message
        terms, client_keys = self.settings.terms(self.received, context), _client_keys(context)
        parts, me, count = self.received[GROUP], client_keys.number(terms), len(terms.rows)
        client_keys.check_ticket(terms.digest, rows(_part(parts, "tickets"), count, TICKET)[me])
        present = members(_part(parts, "there"), count)
        try:
            layout = Layout(Form.like(dict(sorted(message.tensors.items()))), self.settings.code)
        except UnsupportedError as error:
            raise InputError(f"of its reply no sum can be made: {error}") from None
        if me not in present or len(present) < terms.threshold:
            raise WireError("too few clients have shared their keys to hide a reply.")
        masked = client_keys.masked(terms, present, layout.encode(message.tensors, terms.factors[me], count))
        return sent(masked, client_keys.ticket(terms.among(present)))


def masked_form(layout: Layout, clients: int) -> Form:
    """The form of a masked reply to so many clients' sum."""
    return Form({**layout.transmitted(clients), "ticket": (torch.uint8, (TICKET,))})


def sent(vectors: Sequence[Vector], ticket: bytes) -> Message:
    """Masked vectors on their way; those without entries do not travel."""
    named = zip(("reals", "wholes"), vectors, strict=True)
    signed = {name: vector.view(np.dtype(f"<i{vector.itemsize}")) for name, vector in named if len(vector)}
    masked = {name: torch.from_numpy(vector) for name, vector in signed.items()}
    return Message.of(masked=masked, ticket=tensor(ticket))


def received(message: Message, layout: Layout, clients: int) -> list[Vector]:
    """The same at the server, whose form has been checked."""
    vectors, tree = [], message.get("masked")
    for name, kind in zip(("reals", "wholes"), layout.kinds(clients), strict=True):
        vectors.append(tree[name].numpy().view(kind) if name in tree else np.zeros(0, kind))
    return vectors


def exchange_of(stage: str, exchange: int) -> int:
    """The number of the exchange in which a stage of the method's exchange is asked."""
    return exchange + _STAGES.get(stage, 0) * _APART


def position(context: Context) -> tuple[int, int]:
    """The round and the method's exchange; refuses to answer a stage at another place than its own."""
    stage, exchange = divmod(context.exchange, _APART)
    if stage != _STAGES.get(context.asked, 0):
        raise WireError("a stage of a secure sum is asked for at another place than its own.")
    return context.round, exchange


def members(chosen: Tensor, count: int) -> set[int]:
    """Which clients a row of truth values names."""
    if chosen.dtype != torch.bool or chosen.shape != (count,):
        raise WireError("who takes part in the sum cannot be read.")
    return set(chosen.nonzero().flatten().tolist())


def rows(matrix: Tensor, count: int, width: int) -> list[bytes]:
    """Rows of bytes."""
    if matrix.dtype != torch.uint8 or matrix.shape != (count, width):
        raise WireError(f"{list(matrix.shape)} where {count} rows of {width} bytes were expected.")
    return [raw(row) for row in matrix]


def tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def raw(row: Tensor) -> bytes:
    return bytes(row.contiguous().numpy().tobytes())


def secure_sum(
    bits: int = 24, largest: float = 8.0, threshold: float = 2 / 3, least: int = 2, smallest: float = 0.01
) -> SecureSum:
    """See `SecureSum`."""
    return SecureSum(bits, largest, threshold, least, smallest)


def _client_keys(context: Context) -> ClientKeys:
    return ClientKeys.of(context.secrets.lasting, position(context))


def _part(tree: dict[str, Tensor], name: str) -> Tensor:
    if name not in tree:
        raise WireError(f"the secure sum's '{name}' is missing.")
    return tree[name]
