"""Signing requests: a node's public key and name, signed with its private key (PKCS #10, as OpenSSL writes them).

Who registers a request knows that its sender has the private key, and that the name was not put to it by somebody else.
It does not say who the sender is: for that the fingerprint is compared, as it is with a bare public key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from parley.core.errors import InputError
from parley.core.files import write_atomically
from parley.core.text import shown
from parley.deploy import keys
from parley.deploy.extra import cryptography

_MARK = b"CERTIFICATE REQUEST-----"


def make_request(private: Path, request: Path, name: str) -> None:
    """Write a request for the key at `private` to be registered as `name`."""
    x509, oids = cryptography("x509"), cryptography("x509.oid")
    subject = x509.Name([x509.NameAttribute(oids.NameOID.COMMON_NAME, keys.check_name(name))])
    signed = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(keys.private_key(private), _hashes()[1])
    write_atomically(request, signed.public_bytes(cryptography("hazmat.primitives.serialization").Encoding.PEM))


def handed_over(path: Path) -> tuple[str, str | None]:
    """The public key in what a node handed over, a request or the key alone, and the name that the request is signed
    for; an InputError for a request that is not what its key has signed."""
    data = keys.read(path)
    if _MARK not in data or b"PRIVATE KEY" in data:
        return keys.public_text(path), None
    x509 = cryptography("x509")
    try:
        request = x509.load_pem_x509_csr(data)
        key, named = request.public_key(), [str(value.value) for value in request.subject]
        signed = request.is_signature_valid and isinstance(
            request.signature_hash_algorithm, tuple(map(type, _hashes()))
        )
    except Exception:  # cryptography raises several kinds
        raise InputError(f"'{shown(path)}' is not a signing request that can be read; ask for another one.") from None
    if not signed:
        raise InputError(
            f"'{shown(path)}' is not signed with the key that it is for, or was changed since; ask for another one."
        )
    keys.check_curve(key, path)
    if len(named) != 1:
        raise InputError(f"'{shown(path)}' is a request of another kind: it has to name one node, and nothing else.")
    return keys.text_of(key), keys.check_name(named[0])


def _hashes() -> tuple[Any, ...]:
    """Those that a request may be signed with."""
    hashes = cryptography("hazmat.primitives.hashes")
    return hashes.SHA256(), hashes.SHA384(), hashes.SHA512()
