"""Masks that cancel in the sum (Bonawitz et al., CCS 2017, Figure 4), for one sum of clients u = 0 ... n - 1.

    keys       u draws two X25519 keys (c_u, s_u) and a seed b_u, tells both public halves and a digest of b_u
    shares     u splits s_u and b_u among all n, any t of whom are enough, and encrypts v's shares under c_u c_v
    masked     y_u = x_u + G(b_u) + sum_{v > u} G(s_u s_v) - sum_{v < u} G(s_u s_v), v of those that shared
    unmask     the server names who is in the sum and who is missing; everybody left tells its shares of b_u of the
               former and of s_u of the latter, never both; at least t must be in the sum
    sum        sum_u y_u - sum_u G(b_u) - what the missing have left: sum_u x_u

G is ChaCha20's stream, and all sums are those of a ring. Keys come from the client's secrets at this round and
exchange, so none serves twice. Nothing is remembered between the exchanges: what a client agreed to (`Terms`: the keys
and weights of all) comes back with a ticket that only it can have made, and shares of other terms cannot be opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from hmac import compare_digest

import numpy as np

from parley.channels.secure.fixed_point import Vector
from parley.core.context import Secrets
from parley.core.errors import InputError, WireError
from parley.core.sealed import KEY, LOCK, KeyPair, about, decrypted, derived, encrypted, keystream
from parley.core.shamir import SHARE, combine, random_bytes, split

ROW, BOX, TICKET = 3 * KEY, 2 * SHARE + LOCK, 32
"""Bytes of what a client tells at first, of the shares for one other client, and of a ticket."""
Shape = Sequence[tuple[int, np.dtype]]
"""Numbers and types of the vectors that are masked."""


@dataclass(frozen=True)
class Terms:
    """What all clients of a sum must agree on."""

    place: tuple[int, int]
    """The round, and the exchange of the method."""
    rows: tuple[bytes, ...]
    """What each told at first."""
    factors: tuple[float, ...]
    """What each multiplies its reply with."""
    threshold: int

    @cached_property
    def digest(self) -> str:
        told = about("secure sum", *self.place, self.threshold, *map(repr, self.factors)) + b"".join(self.rows)
        return blake2b(told, digest_size=KEY).hexdigest()

    def public(self, client: int) -> tuple[bytes, bytes, bytes]:
        """c_u, s_u and the digest of b_u."""
        row = self.rows[client]
        return row[:KEY], row[KEY : 2 * KEY], row[2 * KEY :]

    def check(self) -> None:
        """Refuse terms under which a sum could show a single reply."""
        if len(set(self.rows)) < len(self.rows):
            raise WireError("two clients have the same keys.")
        if any(not 0 < factor <= 1 for factor in self.factors):
            raise WireError("a weight is not above 0 and at most 1.")


@dataclass(frozen=True)
class Own:
    """What one client has drawn for one sum."""

    lock: KeyPair = field(repr=False)
    mask: KeyPair = field(repr=False)
    seed: bytes = field(repr=False)
    secrets: Secrets = field(repr=False)

    @classmethod
    def of(cls, secrets: Secrets, place: tuple[int, int]) -> Own:
        """From a client's secrets of all rounds; another place gives other keys."""
        here = secrets.at("secure sum", *place)
        lock, mask = (KeyPair.of(here.bytes(name, KEY)) for name in ("lock", "mask"))
        return cls(lock, mask, here.bytes("seed", KEY), here)

    @property
    def row(self) -> bytes:
        return self.lock.public + self.mask.public + committed(self.seed)

    def number(self, terms: Terms) -> int:
        """Which client of the sum this is."""
        if self.row not in terms.rows:
            raise WireError("this client's own keys are not among those of the sum.")
        return terms.rows.index(self.row)

    def ticket(self, terms: Terms) -> bytes:
        """By which the client knows terms that it has agreed to."""
        return blake2b(terms.digest.encode(), key=self.secrets.bytes("ticket", KEY), digest_size=TICKET).digest()

    def check_ticket(self, terms: Terms, ticket: bytes) -> None:
        if not compare_digest(ticket, self.ticket(terms)):
            raise WireError("the keys or weights of the sum are not those that it began with.")

    def shares(self, terms: Terms) -> list[bytes]:
        """For each client its shares of s_u and of b_u."""
        count, wanted = len(terms.rows), random_bytes(terms.threshold)
        halves = [
            split(secret, count, terms.threshold, self.secrets.bytes(f"shares of {name} {terms.digest}", wanted))
            for name, secret in (("mask", self.mask.private), ("seed", self.seed))
        ]
        return [mask + seed for mask, seed in zip(*halves, strict=True)]

    def boxes(self, terms: Terms) -> list[bytes]:
        """The same, encrypted; nothing for the client itself."""
        me = self.number(terms)
        return [
            bytes(BOX) if other == me else encrypted(share, self._box_key(terms, me, other, other))
            for other, share in enumerate(self.shares(terms))
        ]

    def opened(self, terms: Terms, sender: int, box: bytes) -> bytes:
        """The shares that another client has for this one."""
        me = self.number(terms)
        return self.shares(terms)[me] if sender == me else decrypted(box, self._box_key(terms, sender, me, sender))

    def _box_key(self, terms: Terms, sender: int, receiver: int, other: int) -> bytes:
        return derived(self.lock.shared(terms.public(other)[0]), "shares", terms.digest, sender, receiver)

    def masked(self, terms: Terms, there: Iterable[int], vectors: Sequence[Vector]) -> list[Vector]:
        """The vectors under all masks, with those of the other clients that shared theirs."""
        me, shape = self.number(terms), [(len(vector), vector.dtype) for vector in vectors]
        found = [vector.copy() for vector in vectors]
        add(found, expanded(self.seed, shape))
        for other in there:
            if other != me:
                add(found, pairwise(self.mask, terms, me, other, shape), subtract=other < me)
        return found

    def told_shares(
        self, terms: Terms, there: set[int], summed: set[int], boxes: Mapping[int, bytes]
    ) -> dict[int, bytes]:
        """The share of b_u for whom is in the sum, of s_u for whom is missing; refuses what would give away more."""
        me = self.number(terms)
        if not summed <= there:
            raise WireError("the sum is to be of clients that shared no keys.")
        if me not in summed:
            raise WireError("the sum is to be unmasked without this client's reply.")
        if len(summed) < terms.threshold:
            raise WireError(f"the sum is to be of {len(summed)} clients, but fewer than {terms.threshold} are too few.")
        told = {}
        for client in sorted(there):
            both = self.opened(terms, client, boxes[client])
            told[client] = both[SHARE:] if client in summed else both[:SHARE]
        return told


def unmasked(
    terms: Terms, there: set[int], masked: Mapping[int, Sequence[Vector]], shares: Mapping[int, Mapping[int, bytes]]
) -> list[Vector]:
    """The server: the sum of the vectors. `masked` by client, `shares` by who tells and whose they are."""
    if len(masked) < terms.threshold or len(shares) < terms.threshold:
        raise InputError(f"a secure sum needs {terms.threshold} clients.")
    first = next(iter(masked.values()))
    shape = [(len(vector), vector.dtype) for vector in first]
    total = [np.zeros(count, kind) for count, kind in shape]
    for vectors in masked.values():
        add(total, vectors)
    few = sorted(shares)[: terms.threshold]
    for client in sorted(there):
        secret = _rebuilt(terms, client, {teller: shares[teller][client] for teller in few}, client in masked)
        if client in masked:
            add(total, expanded(secret, shape), subtract=True)
            continue
        key = KeyPair.of(secret)
        for other in masked:  # what `other` has added for the missing client
            add(total, pairwise(key, terms, client, other, shape), subtract=other < client)
    return total


def _rebuilt(terms: Terms, client: int, shares: Mapping[int, bytes], seed: bool) -> bytes:
    """b_u or s_u, held against what the client told at first."""
    _, mask, digest = terms.public(client)
    secret = combine(shares)
    if not (committed(secret) == digest if seed else KeyPair.of(secret).public == mask):
        raise WireError("shares do not give the key that was told at first.")
    return secret


def pairwise(own: KeyPair, terms: Terms, me: int, other: int, shape: Shape) -> list[Vector]:
    """G(s_u s_v), which both clients have."""
    key = derived(own.shared(terms.public(other)[1]), "mask", terms.digest, min(me, other), max(me, other))
    return expanded(key, shape)


def expanded(key: bytes, shape: Shape) -> list[Vector]:
    """G: uniform numbers of the ring from a key that is used for nothing else."""
    sizes = [count * kind.itemsize for count, kind in shape]
    data = keystream(derived(key, "stream"), sum(sizes))
    found, place = [], 0
    for size, (_, kind) in zip(sizes, shape, strict=True):
        found.append(np.frombuffer(data, kind, size // kind.itemsize, place))
        place += size
    return found


def add(total: Sequence[Vector], vectors: Sequence[Vector], subtract: bool = False) -> None:
    """In place, modulo the ring's size, which unsigned integers do by themselves."""
    for own, other in zip(total, vectors, strict=True):
        (np.subtract if subtract else np.add)(own, other, out=own)


def committed(seed: bytes) -> bytes:
    """A digest by which a rebuilt seed is known; it says nothing about one that is not known."""
    return derived(seed, "digest")
