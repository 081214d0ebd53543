"""Where a recipient stands when it is asked: who it is, which round it is, its random numbers and its secrets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import shake_256

from parley.core.key import Key


@dataclass(frozen=True, slots=True)
class Secrets:
    """Randomness of a recipient's own, which no key that the server knows leads to.

    Its root is drawn from the operating system: when a run begins, and then stored apart from the run's seed, or by a
    node itself at its start. It is never part of a message. The same path gives the same bytes.
    """

    root: bytes
    path: tuple[str | int, ...] = ()
    owner: str | None = None
    """In a simulation: whose, `root` being that of all recipients."""

    def at(self, *path: str | int) -> Secrets:
        """The secrets at a path below."""
        return replace(self, path=self.path + path)

    @property
    def lasting(self) -> Secrets:
        """Those that are the same in every round and exchange of the run, for a private key."""
        return Secrets(self.root, (), self.owner)

    def bytes(self, label: str, count: int) -> bytes:
        """So many bytes for one purpose, such as a private key."""
        root = self.root if self.owner is None else recipient_root(self.root, self.owner)
        return shake_256(Key(digest=root).fold(*self.path, label).digest).digest(count)

    def key(self, label: str) -> Key:
        """A key for random numbers that only this recipient can repeat."""
        return Key(digest=self.bytes(label, 16))


def recipient_root(root: bytes, recipient: str) -> bytes:
    """The root that a recipient of a simulation has, and that a node is given at its start."""
    return Key(digest=root).fold("recipient", recipient).digest


class Position:
    """Where in a run recipients are asked: what the contexts of all of them have in common, and follow from."""

    __slots__ = ("asked", "exchange", "root", "round", "round_key")

    round_key: Callable[[str], Key]
    """A recipient's."""

    def __init__(self, round: int, asked: str, exchange: int, key: Key, root: bytes) -> None:
        """`key`: of the round. `root`: of all recipients' secrets."""
        self.round, self.asked, self.exchange, self.root = round, asked, exchange, root
        self.round_key = key.children("recipient")

    def context(self, recipient: str) -> Context:
        """Of one recipient; its key and its secrets are derived when they are asked for."""
        return Context(recipient, self.round, self.asked, self.exchange, None, None, self)

    def secrets(self, recipient: str) -> Secrets:
        return Secrets(self.root, (self.round, self.asked, self.exchange), recipient)


class Context:
    """What a recipient knows besides the message, its memory and its data."""

    __slots__ = ("_position", "_round_key", "_secrets", "asked", "exchange", "id", "round")

    id: str
    """The client's id, or the party's name."""
    round: int
    """The number of the round, from 1."""
    asked: str
    """The function that is to answer."""
    exchange: int
    """The number of the exchange in its round, from 0."""

    def __init__(
        self,
        id: str,
        round: int,
        asked: str,
        exchange: int,
        round_key: Key | None,
        secrets: Secrets | None,
        position: Position | None = None,
    ) -> None:
        """A key or secrets that are not given are those of the `position`."""
        self.id, self.round, self.asked, self.exchange = id, round, asked, exchange
        self._round_key, self._secrets, self._position = round_key, secrets, position

    @classmethod
    def alone(cls, key: Key, id: str = "client", round: int = 1, asked: str = "client", exchange: int = 0) -> Context:
        """For calling a client's function by hand."""
        return cls(id, round, asked, exchange, key, Secrets(bytes(16), (), id))

    @property
    def round_key(self) -> Key:
        """The same in all exchanges of a round, for a subsample that two questions share."""
        if self._round_key is None:
            assert self._position is not None
            self._round_key = self._position.round_key(self.id)
        return self._round_key

    @staticmethod
    def round_keys(contexts: Sequence[Context]) -> tuple[Key, ...]:
        """The `round_key` of each."""
        position = contexts[0]._position
        if position is None or any(
            context._position is not position or context._round_key is not None for context in contexts
        ):
            return tuple([context.round_key for context in contexts])
        child = position.round_key
        return tuple([child(context.id) for context in contexts])

    @property
    def secrets(self) -> Secrets:
        """The recipient's own randomness, at this position in the run."""
        if self._secrets is None:
            assert self._position is not None
            self._secrets = self._position.secrets(self.id)
        return self._secrets

    @property
    def key(self) -> Key:
        """For random numbers: another one for every recipient, round, function and exchange."""
        return self.round_key.fold(self.asked, self.exchange)

    def below(self, *path: str | int) -> Context:
        """The same with randomness of its own, which nobody else draws from."""
        key, secrets = self.round_key.fold(*path), self.secrets.at(*path)
        return Context(self.id, self.round, self.asked, self.exchange, key, secrets)

    def __reduce__(self) -> tuple[type[Context], tuple[object, ...]]:
        """To another process goes the recipient's key, not the round's, which all contexts follow from."""
        return Context, (self.id, self.round, self.asked, self.exchange, self.round_key, self.secrets)

    def __repr__(self) -> str:
        return f"Context(id={self.id!r}, round={self.round}, asked={self.asked!r}, exchange={self.exchange})"
