"""The roster of a study: the names and public keys of its nodes, which owners approve with it.

What nodes tell each other through the server is signed with these keys: the keys of a secure sum. A server that puts
one of its own in place of a node's is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from parley.core.errors import InputError, WireError
from parley.core.message import Message
from parley.core.wire import decode
from parley.deploy import keys
from parley.deploy.extra import cryptography
from parley.runtimes.frame import pack, unpack
from parley.secure.channel import GROUP, KEYS, exchange_of

MOST = 10_000
"""Nodes of a roster."""
_SIGNATURE = "signature"


def check_roster(roster: Mapping[str, Any]) -> dict[str, str]:
    """A roster that anybody may have sent, if it is one: names of nodes, and different keys."""
    for name, key in roster.items():
        if keys.NAME.fullmatch(str(name)) is None or not isinstance(key, str) or len(key) > 1000:
            raise WireError("its roster names nodes in a way that cannot be.")
    if len(set(roster.values())) < len(roster) or len(roster) > MOST:
        raise WireError("its roster has a key twice, or too many of them.")
    return dict(roster)


def problem(roster: Mapping[str, str], name: str, public: str) -> str | None:
    """Why a node cannot be in it, as the end of a sentence about the node; None if it is, with its own key."""
    if roster.get(name) != public:
        return "is not in the roster of the study with the key that it has."
    return None


def signed_reply(reply: bytes, inner: Mapping[str, Any], about: tuple[str, str], name: str, key: Any) -> bytes:
    """An answer with the node's signature, if it has keys for a secure sum; `about`: the study and the run."""
    head, parts = unpack(reply)
    if inner.get("asked") != KEYS or head.get("kind") != "reply":
        return reply
    row = decode(parts[0], Message).tensor("keys").contiguous().numpy().tobytes()
    ec, hashes = cryptography("hazmat.primitives.asymmetric.ec"), cryptography("hazmat.primitives.hashes")
    signature = key.sign(_statement(row, inner, about, name), ec.ECDSA(hashes.SHA384()))
    return pack(head | {_SIGNATURE: [_digest(row), signature.hex()]}, *parts)


def signature_of(reply: bytes) -> Any:
    """What came with an answer, for the other nodes to check; None if nothing did."""
    try:
        return unpack(reply)[0].get(_SIGNATURE)
    except WireError:
        return None


def check_signed(frame: bytes, signed: Any, roster: Mapping[str, str], about: tuple[str, str]) -> str | None:
    """Why the keys of the secure sum in a call are not those of nodes of the roster, by name; None if they are.

    `signed`: name -> digest and signature, as the server passed them on.
    """
    inner, parts = unpack(frame)
    if inner.get("kind") != "call" or len(parts) != 1:
        return None
    group = decode(parts[0], Message).get(GROUP) or {}
    if "keys" not in group:
        return None
    entries = signed if isinstance(signed, dict) else {}
    owners: dict[str, tuple[str, str]] = {}
    for name, both in entries.items():
        if name in roster and isinstance(both, list) and len(both) == 2 and all(isinstance(text, str) for text in both):
            owners[both[0]] = (name, both[1])
    for row in group["keys"]:
        data = row.contiguous().numpy().tobytes()
        if (owner := owners.pop(_digest(data), None)) is None:
            return "refused a secure sum with keys that no node of the roster has signed."
        name, signature = owner
        if not _verified(roster[name], signature, _statement(data, inner, about, name)):
            return f"refused a secure sum with keys that '{name}' has not signed."
    return None


def _statement(row: bytes, inner: Mapping[str, Any], about: tuple[str, str], name: str) -> bytes:
    """What is signed: whose keys they are, and for which sum of which run."""
    exchange = int(inner["exchange"]) - exchange_of(str(inner["asked"]), 0)
    return pack({"kind": "keys of a secure sum", "about": about, "sum": [inner["round"], exchange], "of": name}, row)


def _verified(public: str, signature: str, statement: bytes) -> bool:
    ec, hashes = cryptography("hazmat.primitives.asymmetric.ec"), cryptography("hazmat.primitives.hashes")
    form = cryptography("hazmat.primitives.serialization")
    try:
        key = form.load_ssh_public_key(public.encode())
        key.verify(bytes.fromhex(signature), statement, ec.ECDSA(hashes.SHA384()))
    except InputError:
        raise
    except Exception:  # cryptography raises several kinds
        return False
    return True


def _digest(row: bytes) -> str:
    return blake2b(row, digest_size=16).hexdigest()
