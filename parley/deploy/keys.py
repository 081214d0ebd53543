"""The keys of nodes: the private half never leaves the node, the public half is registered at the server."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

from parley.core.errors import InputError
from parley.core.files import regular_file, write_atomically
from parley.core.text import shown
from parley.deploy.extra import cryptography

_LARGEST = 8192
"""Bytes of a file with a key."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def check_name(name: str) -> str:
    """The name of a node, which names files too."""
    if NAME.fullmatch(name) is None:
        raise InputError(
            f"'{shown(name)}' is not a node's name: use 1 to 63 letters, digits, dots, dashes and underscores, "
            "the first one a letter or a digit."
        )
    return name


def make_key(private: Path, public: Path, comment: str) -> None:
    """A new pair of keys (ECDSA, P-384) in OpenSSH's format."""
    ec, serialization = cryptography("hazmat.primitives.asymmetric.ec"), _serialization()
    if private.exists():
        raise InputError(f"there is a key at {private} already; it is the node's identity and is not replaced.")
    key = ec.generate_private_key(ec.SECP384R1())
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    write_atomically(public, f"{text_of(key.public_key())} {comment}\n".encode())
    write_atomically(private, secret, private=True)


def private_key(path: Path) -> Any:
    """The private key of a node; a file without a key, or readable by others, is refused."""
    try:
        key = _serialization().load_ssh_private_key(read(path), None)
    except (ValueError, TypeError):
        raise InputError(f"'{shown(path)}' is not a private key of a node; make one: parley node init.") from None
    check_curve(key, path)
    if path.stat().st_mode & 0o077:
        raise InputError(f"'{shown(path)}' can be read by others; run 'chmod 600 {path}'.")
    return key


def secret(path: Path, label: str) -> bytes:
    """A secret of the node's for one purpose, as lasting as its private key."""
    private_key(path)
    return blake2b(read(path), digest_size=32, person=label.encode()).digest()


def public_text(path: Path) -> str:
    """The public key in a file, without its comment; a private one is refused before anything is copied."""
    data = read(path)
    if b"PRIVATE KEY" in data:
        raise InputError(f"'{shown(path)}' is a private key, which must stay at its node; hand over the .pub file.")
    try:
        key = _serialization().load_ssh_public_key(data)
    except Exception:  # ValueError and cryptography's own
        raise InputError(
            f"'{shown(path)}' is not a public key of a node (a line that begins with ecdsa-sha2-)."
        ) from None
    check_curve(key, path)
    return text_of(key)


def text_of(public: Any) -> str:
    """A public key as a line of OpenSSH's, without a comment."""
    form = _serialization()
    return str(public.public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH).decode())


def fingerprint(public: str) -> str:
    """What two people compare on the telephone; the same as ssh-keygen prints."""
    try:
        blob = text_of(_serialization().load_ssh_public_key(public.encode())).split()[1]
    except Exception:  # ValueError and cryptography's own
        raise InputError(f"'{shown(public)}' is not a public key of a node.") from None
    return "SHA256:" + b64encode(sha256(b64decode(blob)).digest()).decode().rstrip("=")


def header_value(public: str) -> str:
    """The key as a node's requests carry it."""
    form = _serialization()
    key = form.load_ssh_public_key(public.encode())
    return b64encode(key.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)).decode()


def read(path: Path) -> bytes:
    """What is in a file with a key, which is not large."""
    with regular_file(path, "key").open("rb") as file:
        return file.read(_LARGEST)


def check_curve(key: Any, path: Path) -> None:
    """Refuse keys that Flower's nodes cannot have."""
    ec = cryptography("hazmat.primitives.asymmetric.ec")
    curve = getattr(key, "curve", None)
    if not isinstance(curve, ec.SECP256R1 | ec.SECP384R1 | ec.SECP521R1):
        raise InputError(f"'{shown(path)}' is a key of another kind; nodes have ECDSA keys: parley node init.")


def _serialization() -> Any:
    return cryptography("hazmat.primitives.serialization")
