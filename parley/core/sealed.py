"""Sealed messages: bytes that only the holder of one private key can open, bound to what they are about.

    seal     e = a fresh key pair;  k = HKDF(X25519(e, to) | X25519(sender, to))
             send e.public | ChaCha20-Poly1305_k(data; about)
    open     the same k from the other side; anything that was changed, is about something else, or comes from another
             sender than was expected is refused with one sentence

Without a sender the box is anonymous, as libsodium's sealed boxes are. `about` is not hidden and not sent: both sides
know it (who, to whom, which round), so that a message cannot be taken for another one. Private keys come from a
recipient's secrets; the one of a box is derived from a secret *and* its contents, so that a secret that comes twice
(a round that is repeated) never encrypts two things with one key. The cryptography is that of the package
`cryptography` (extra `parties`). Its HPKE does not serve: it draws the box's key itself, so that a repeated round would
have other bytes, and knows no sender.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from parley.core.errors import InputError, WireError
from parley.core.extras import how_to_install

KEY = 32
"""Bytes of a key."""
LOCK = 16
"""Bytes that encryption adds."""
OVERHEAD = KEY + LOCK
"""Bytes that sealing adds."""
_ANYONE = bytes(KEY)
_NONCE = bytes(12)  # every box has a key of its own


@dataclass(frozen=True)
class KeyPair:
    """An X25519 key; `public` may be told to everybody."""

    private: bytes = field(repr=False)
    public: bytes

    @classmethod
    def of(cls, secret: bytes) -> KeyPair:
        """From 32 secret bytes."""
        private = _x25519().X25519PrivateKey.from_private_bytes(secret)
        return cls(secret, bytes(private.public_key().public_bytes_raw()))

    def shared(self, public: bytes) -> bytes:
        """What both have in common and nobody else."""
        private = _x25519().X25519PrivateKey.from_private_bytes(self.private)
        try:
            return bytes(private.exchange(_x25519().X25519PublicKey.from_public_bytes(public)))
        except ValueError:
            raise WireError("the public key is none.") from None


def seal(data: bytes, to: bytes, about: bytes, secret: bytes, sender: KeyPair | None = None) -> bytes:
    """`data` for the holder of the public key `to`; `secret`: 32 bytes of the sender's own for the box's key."""
    fresh = KeyPair.of(blake2b(about + data, key=secret, digest_size=KEY).digest())
    shared = fresh.shared(to) + (sender.shared(to) if sender is not None else _ANYONE)
    whose = sender.public if sender is not None else _ANYONE
    return fresh.public + bytes(_cipher(shared, fresh.public, to, whose).encrypt(_NONCE, data, about))


def open_sealed(box: bytes, pair: KeyPair, about: bytes, sender: bytes | None = None) -> bytes:
    """What is in it; a WireError if it was not made for this key, about this, by this sender, or was changed."""
    if len(box) < OVERHEAD:
        raise WireError(f"a sealed message has at least {OVERHEAD} bytes, not {len(box)}.")
    fresh, body = box[:KEY], box[KEY:]
    shared = pair.shared(fresh) + (pair.shared(sender) if sender is not None else _ANYONE)
    try:
        return bytes(_cipher(shared, fresh, pair.public, sender or _ANYONE).decrypt(_NONCE, body, about))
    except _invalid():
        raise WireError(
            "a sealed message cannot be opened: it was sealed for another key or another round, by somebody else, or "
            "changed on the way."
        ) from None


def about(*parts: str | int) -> bytes:
    """What a message is about, so that no two lists of parts look alike."""
    return b"".join(b"%d:%b" % (len(text := str(part).encode()), text) for part in parts)


def derived(key: bytes, *path: str | int) -> bytes:
    """A key of 32 bytes for one purpose, from which the one it came from cannot be found."""
    return blake2b(about(*path), key=key, digest_size=KEY, person=b"parley derived").digest()


def keystream(key: bytes, count: int) -> bytes:
    """So many bytes of ChaCha20 under this key, which must serve for nothing else."""
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    except ModuleNotFoundError:
        raise _missing() from None
    return bytes(Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(count)))


def encrypted(data: bytes, key: bytes) -> bytes:
    """`data` under a key that two share and use once; `LOCK` bytes longer."""
    return bytes(_aead(key).encrypt(_NONCE, data, None))


def decrypted(data: bytes, key: bytes) -> bytes:
    """What `encrypted` was given; a WireError if it was another key, or something was changed."""
    try:
        return bytes(_aead(key).decrypt(_NONCE, data, None))
    except _invalid():
        raise WireError(
            "an encrypted message cannot be opened: it is another's or of another time, or changed."
        ) from None


def _aead(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    except ModuleNotFoundError:
        raise _missing() from None
    return ChaCha20Poly1305(key)


def _cipher(shared: bytes, fresh: bytes, to: bytes, sender: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ModuleNotFoundError:
        raise _missing() from None
    return _aead(HKDF(SHA256(), KEY, salt=None, info=b"parley sealed 1" + fresh + to + sender).derive(shared))


def _x25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import x25519
    except ModuleNotFoundError:
        raise _missing() from None
    return x25519


def _invalid() -> type[Exception]:
    from cryptography.exceptions import InvalidTag

    return InvalidTag


def _missing() -> InputError:
    return InputError(f"sealed messages and secure sums need the package cryptography: {how_to_install('parties')}.")
