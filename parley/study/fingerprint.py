"""A fingerprint of a federation's data."""

from __future__ import annotations

from hashlib import blake2b

from parley.data import Federation
from parley.study.opaque import opaque


def fingerprint_of(federation: Federation) -> str:
    """The same for two federations exactly if they hold the same samples at the same clients."""
    own = getattr(federation, "fingerprint", None)
    if own is not None:
        return str(own())
    digest = blake2b(digest_size=16)
    tests = [("test", federation.test), ("public", federation.public)]
    step = max(1, len(federation) // 1000)
    for name in federation.ids[::step]:
        tests.append((name, federation.client(name)))
    digest.update(f"{len(federation)}{federation.info}".encode())
    for name, data in tests:
        digest.update(f"{name}{opaque(data)['digest']}".encode())
    return digest.hexdigest()
