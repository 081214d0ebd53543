"""Masks that cancel in the sum (Bonawitz et al., CCS 2017, Figure 4), for one sum of clients u = 0 ... n - 1.

    keys       u draws two X25519 keys (c_u, s_u) and a seed b_u, tells both public halves and a digest of b_u
    shares     u splits s_u and b_u among all n, any t of whom are enough, and encrypts v's shares under c_u c_v
    masked     y_u = x_u + G(b_u) + sum_{v > u} G(s_u s_v) - sum_{v < u} G(s_u s_v), v of those that shared (T)
    unmask     the server names who is in the sum (U) and who is missing; everybody left tells its shares of b_u of the
               former and of s_u of the latter, never both; at least t must be in the sum
    sum        sum_u y_u - sum_u G(b_u) - what the missing have left: sum_u x_u

G is ChaCha20's stream, and all sums are those of a ring. Keys come from the client's secrets at this round and
exchange, so none serves twice. Nothing is remembered between the exchanges: what a client agreed to (`Terms`: the keys
and weights of all; then T as well) comes back with a ticket that only it can have made, and shares of other terms
cannot be opened.

A server may name other members to every client. G(s_u s_v) is drawn for one T, and what u tells at the end is encrypted
under a key e_u that is itself split among all: whoever is told the same D = (terms, T, U) tells what opens its share of
e_u, and whoever is told another one tells something else. So nothing can be read unless t clients were told the same,
which two different D cannot have where t > n / 2. That is the consistency check of Bonawitz et al. without a further
exchange; docs/secure-sums.md has the proof.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from hmac import compare_digest

import numpy as np

from parley.core.context import Secrets
from parley.core.errors import InputError, WireError
from parley.core.sealed import KEY, LOCK, KeyPair, about, decrypted, derived, encrypted, keystream
from parley.secure.fixed_point import Vector
from parley.secure.shamir import SHARE, combine, random_bytes, split

ROW, BOX, TICKET, TOLD = 3 * KEY, 2 * SHARE + LOCK, 32, 3 * SHARE
"""Bytes of what a client tells at first, of the shares for one other client, of a ticket, and of what it tells of one
client at the end: its share of b_u or s_u, u's share of e, both encrypted, and what opens its own share of e_u."""
Shape = Sequence[tuple[int, np.dtype]]
"""Numbers and types of the vectors that are masked."""


@dataclass(frozen=True)
class Terms:
    """What all clients of a sum must agree on."""

    position: tuple[int, int]
    """The round, and the exchange of the method."""
    rows: tuple[bytes, ...]
    """What each told at first."""
    factors: tuple[float, ...]
    """What each multiplies its reply with."""
    threshold: int
    smallest: float = 0.0
    """Smallest weight as a share of the largest."""

    @cached_property
    def digest(self) -> str:
        text = about("secure sum", *self.position, self.threshold, *map(repr, self.factors)) + b"".join(self.rows)
        return blake2b(text, digest_size=KEY).hexdigest()

    def among(self, present: Iterable[int]) -> str:
        """A digest of these terms and of who has shared."""
        return _digest("members", self.digest, *sorted(present))

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
        if min(self.factors) < self.smallest * max(self.factors):
            raise WireError(
                f"a weight is below {self.smallest:g} of the largest, which would show the largest's reply."
            )


@dataclass(frozen=True)
class ClientKeys:
    """What one client has drawn for one sum."""

    lock: KeyPair = field(repr=False)
    mask: KeyPair = field(repr=False)
    seed: bytes = field(repr=False)
    secrets: Secrets = field(repr=False)

    @classmethod
    def of(cls, secrets: Secrets, position: tuple[int, int]) -> ClientKeys:
        """From a client's secrets of all rounds; another place gives other keys."""
        here = secrets.at("secure sum", *position)
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

    def ticket(self, agreed: str) -> bytes:
        """By which the client knows the digest of what it has agreed to."""
        return blake2b(agreed.encode(), key=self.secrets.bytes("ticket", KEY), digest_size=TICKET).digest()

    def check_ticket(self, agreed: str, ticket: bytes) -> None:
        if not compare_digest(ticket, self.ticket(agreed)):
            raise WireError("the keys, weights or clients of the sum are not those that it began with.")

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

    def masked(self, terms: Terms, present: Collection[int], vectors: Sequence[Vector]) -> list[Vector]:
        """The vectors under all masks, with those of the other clients that shared theirs."""
        me, shape = self.number(terms), [(len(vector), vector.dtype) for vector in vectors]
        result, agreed = [vector.copy() for vector in vectors], terms.among(present)
        add(result, expanded(self.seed, shape))
        for other in present:
            if other != me:
                add(result, pairwise(self.mask, terms, agreed, me, other, shape), subtract=other < me)
        return result

    def revealed_shares(
        self, terms: Terms, present: set[int], summed: set[int], boxes: Mapping[int, bytes]
    ) -> dict[int, bytes]:
        """Of everybody its share of b_u, or of s_u if missing, to be read where enough are told the same (`TOLD`).

        Refuses what would give away more. That `there` are those it has masked its reply with is the caller's to check.
        """
        me = self.number(terms)
        if not summed <= present:
            raise WireError("the sum is to be of clients that shared no keys.")
        if me not in summed:
            raise WireError("the sum is to be unmasked without this client's reply.")
        if len(summed) < terms.threshold:
            raise WireError(f"the sum is to be of {len(summed)} clients, but fewer than {terms.threshold} are too few.")
        agreed = _digest("sum", terms.among(present), *sorted(summed))
        key, random = (self.secrets.bytes(f"{name} {agreed}", size) for name, size in self._closing(terms))
        locks, stream = split(key, len(terms.rows), terms.threshold, random), _stream(key, len(terms.rows))
        revealed = {}
        for client in sorted(present):
            both = self.opened(terms, client, boxes[client])
            share = _xor(both[SHARE:] if client in summed else both[:SHARE], stream[client])
            lock, opens = locks[client], bytes(SHARE)
            if client != me:
                shared = self.lock.shared(terms.public(client)[0])
                lock = _xor(lock, _pad(shared, agreed, me, client))
                opens = _pad(shared, agreed, client, me)
            revealed[client] = share + lock + opens
        return revealed

    @staticmethod
    def _closing(terms: Terms) -> tuple[tuple[str, int], tuple[str, int]]:
        return ("closing key", KEY), ("shares of closing key", random_bytes(terms.threshold))


def unmasked(
    terms: Terms, present: set[int], masked: Mapping[int, Sequence[Vector]], shares: Mapping[int, Mapping[int, bytes]]
) -> list[Vector]:
    """The server: the sum of the vectors. `masked` by client, `shares` by who tells and whose they are."""
    if len(masked) < terms.threshold or len(shares) < terms.threshold:
        raise InputError(f"a secure sum needs {terms.threshold} clients.")
    first = next(iter(masked.values()))
    shape = [(len(vector), vector.dtype) for vector in first]
    total = [np.zeros(count, kind) for count, kind in shape]
    for vectors in masked.values():
        add(total, vectors)
    readable, agreed = opened_shares(terms, shares), terms.among(present)
    for client in sorted(present):
        secret = _rebuilt(terms, client, {i: shares_of[client] for i, shares_of in readable.items()}, client in masked)
        if client in masked:
            add(total, expanded(secret, shape), subtract=True)
            continue
        key = KeyPair.of(secret)
        for other in masked:  # what `other` has added for the missing client
            add(total, pairwise(key, terms, agreed, client, other, shape), subtract=other < client)
    return total


def opened_shares(terms: Terms, shares: Mapping[int, Mapping[int, bytes]]) -> dict[int, dict[int, bytes]]:
    """The shares of as many tellers as are needed, by teller and whose they are; they must have been told the same."""
    few, opened = sorted(shares)[: terms.threshold], {}
    for teller in few:
        locks = {i: _xor(shares[teller][i][SHARE : 2 * SHARE], shares[i][teller][2 * SHARE :]) for i in few}
        stream = _stream(combine(locks), len(terms.rows))
        opened[teller] = {whose: _xor(row[:SHARE], stream[whose]) for whose, row in shares[teller].items()}
    return opened


def _stream(key: bytes, count: int) -> list[bytes]:
    data = keystream(derived(key, "told"), count * SHARE)
    return [data[SHARE * i : SHARE * (i + 1)] for i in range(count)]


def _pad(shared: bytes, agreed: str, sender: int, receiver: int) -> bytes:
    return keystream(derived(shared, "closing", agreed, sender, receiver), SHARE)


def _xor(a: bytes, b: bytes) -> bytes:
    return (int.from_bytes(a) ^ int.from_bytes(b)).to_bytes(SHARE)


def _digest(*parts: str | int) -> str:
    return blake2b(about(*parts), digest_size=KEY).hexdigest()


def _rebuilt(terms: Terms, client: int, shares: Mapping[int, bytes], seed: bool) -> bytes:
    """b_u or s_u, held against what the client told at first."""
    _, mask, digest = terms.public(client)
    secret = combine(shares)
    if not (committed(secret) == digest if seed else KeyPair.of(secret).public == mask):
        raise WireError("shares do not reproduce the key that was sent first.")
    return secret


def pairwise(pair: KeyPair, terms: Terms, agreed: str, me: int, other: int, shape: Shape) -> list[Vector]:
    """G(s_u s_v), which both clients have that agreed on the same members."""
    key = derived(pair.shared(terms.public(other)[1]), "mask", agreed, min(me, other), max(me, other))
    return expanded(key, shape)


def expanded(key: bytes, shape: Shape) -> list[Vector]:
    """G: uniform numbers of the ring from a key that is used for nothing else."""
    sizes = [count * kind.itemsize for count, kind in shape]
    data = keystream(derived(key, "stream"), sum(sizes))
    vectors, start = [], 0
    for size, (_, kind) in zip(sizes, shape, strict=True):
        vectors.append(np.frombuffer(data, kind, size // kind.itemsize, start))
        start += size
    return vectors


def add(total: Sequence[Vector], vectors: Sequence[Vector], subtract: bool = False) -> None:
    """In place, modulo the ring's size, which unsigned integers do by themselves."""
    for vector, other in zip(total, vectors, strict=True):
        (np.subtract if subtract else np.add)(vector, other, out=vector)


def committed(seed: bytes) -> bytes:
    """A digest by which a rebuilt seed is known; it says nothing about one that is not known."""
    return derived(seed, "digest")
