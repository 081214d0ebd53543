"""Keys: seed paths. The same path gives the same random numbers in every process and runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b

import numpy as np
import torch

_ESCAPES = str.maketrans({"\x1d": "\x1d\x1d", "\x1e": "\x1d0", "\x1f": "\x1d1"})
"""Texts must not contain the marks that tell steps and numbers apart."""


class Key:
    """A place in a tree of seeds; `fold` walks down, `numpy`/`torch` make a generator at that place.

    >>> Key(0).fold("round", 3).seed == Key(0).fold("round", 3).seed
    True
    >>> Key(0).fold("round", 3).seed == Key(0).fold("round", 4).seed
    False
    """

    __slots__ = ("digest",)

    def __init__(self, seed: int = 0, *, digest: bytes | None = None) -> None:
        self.digest = digest if digest is not None else blake2b(b"parley %d" % seed, digest_size=16).digest()

    def fold(self, *path: str | int) -> Key:
        """The key below this one at `path`; an int and a string that print alike lead to different places."""
        return Key(digest=blake2b(_part(path), digest_size=16, key=self.digest).digest())

    def children(self, *path: str | int) -> Callable[[str], Key]:
        """`key.children("a")(name)` is `key.fold("a", name)`: quicker where there are many names."""
        begin = blake2b(_part((*path, "")), digest_size=16, key=self.digest).copy

        def child(name: str) -> Key:
            hasher = begin()
            hasher.update((name if name.isprintable() else _text(name)).encode())
            return Key(digest=hasher.digest())

        return child

    @property
    def seed(self) -> int:
        """63 bits for libraries that want a number."""
        return int.from_bytes(self.digest[:8], "little") >> 1

    def numpy(self) -> np.random.Generator:
        """A fresh NumPy generator; two calls give the same stream."""
        return np.random.Generator(np.random.PCG64(int.from_bytes(self.digest, "little")))

    def torch(self) -> torch.Generator:
        """A fresh CPU torch generator; two calls give the same stream."""
        return torch.Generator().manual_seed(self.seed)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Key({self.digest.hex()[:8]})"


def fold_all(keys: Iterable[Key], *path: str | int) -> tuple[Key, ...]:
    """`key.fold(*path)` of each."""
    part = _part(path)
    return tuple([Key(digest=blake2b(part, digest_size=16, key=key.digest).digest()) for key in keys])


def _part(path: Iterable[str | int]) -> bytes:
    """What a path is hashed as; it is the path's alone."""
    return "\x1f".join([_text(p) if isinstance(p, str) else f"\x1e{p}" for p in path]).encode()


def _text(step: str) -> str:
    return step if step.isprintable() else step.translate(_ESCAPES)
