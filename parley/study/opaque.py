"""What a stored run keeps of objects that only Python can make: what they are called and a digest of what they hold.

It cannot be turned back into the object, but tells whether another one is the same:

    {"python": "Net", "digest": "5f0c..."}

A module's digest covers its layers and weights, a function's its code, any other object's its attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from hashlib import blake2b
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from parley.data import Federation

MARK = "python"
"""The key by which such a description is known."""


def opaque(value: object) -> dict[str, Any]:
    """The description of an object."""
    digest = blake2b(digest_size=12)
    _feed(digest, value, 0)
    return {MARK: called(value), "digest": digest.hexdigest()}


def called(value: object) -> str:
    """The name of a class or function, or of an object's class; modules are left out, a script has none."""
    return getattr(value, "__qualname__", None) or type(value).__qualname__


def is_opaque(described: Any) -> bool:
    """Whether a description, or any part of one, names an object that only Python can make."""
    if isinstance(described, Mapping):
        return MARK in described or any(map(is_opaque, described.values()))
    return isinstance(described, list) and any(map(is_opaque, described))


def _feed(digest: Any, value: Any, depth: int) -> None:
    digest.update(f"{type(value).__qualname__}\0".encode())
    if depth > 8:
        return
    if isinstance(value, Tensor):
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    elif isinstance(value, np.ndarray):
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes() if value.dtype != object else repr(value).encode())
    elif isinstance(value, nn.Module):
        digest.update(repr(value).encode())
        for name, tensor in value.state_dict().items():
            digest.update(name.encode())
            _feed(digest, tensor, depth + 1) if isinstance(tensor, Tensor) else None
    elif isinstance(value, FunctionType):
        _feed_code(digest, value.__code__)
        _feed(digest, [value.__defaults__, value.__kwdefaults__], depth + 1)
        for cell in value.__closure__ or ():
            with suppress(ValueError):  # not filled yet: a function that calls itself
                _feed(digest, cell.cell_contents, depth + 1)
    elif isinstance(value, partial):
        _feed(digest, [value.func, value.args, value.keywords], depth + 1)
    elif isinstance(value, str | bytes | bool | int | float | type(None)):
        digest.update(repr(value).encode())
    elif isinstance(value, type):
        digest.update(value.__qualname__.encode())
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            _feed(digest, key, depth + 1)
            _feed(digest, inner, depth + 1)
    elif isinstance(value, tuple | list | set | frozenset):
        for inner in sorted(value, key=repr) if isinstance(value, set | frozenset) else value:
            _feed(digest, inner, depth + 1)
    elif is_dataclass(value):
        for field in fields(value):
            _feed(digest, field.name, depth + 1)
            _feed(digest, getattr(value, field.name), depth + 1)
    else:
        _feed(digest, getattr(value, "__dict__", {}), depth + 1)


def _feed_code(digest: Any, code: CodeType) -> None:
    digest.update(code.co_code)
    digest.update(repr(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _feed_code(digest, constant)
        else:  # a set is written in another order each time Python starts
            digest.update(repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant).encode())


def fingerprint_of(federation: Federation) -> str:
    """The same for two federations exactly if they hold the same samples at the same clients."""
    fingerprint = getattr(federation, "fingerprint", None)
    if fingerprint is not None:
        return str(fingerprint())
    digest = blake2b(digest_size=16)
    tests = [("test", federation.test), ("public", federation.public)]
    step = max(1, len(federation) // 1000)
    for name in federation.ids[::step]:
        tests.append((name, federation.client(name)))
    digest.update(f"{len(federation)}{federation.info}".encode())
    for name, data in tests:
        digest.update(f"{name}{opaque(data)['digest']}".encode())
    return digest.hexdigest()
