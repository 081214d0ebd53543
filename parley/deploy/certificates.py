"""The certificates of a deployment: an authority of its own, and what it signs for the server."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from parley.core.errors import InputError
from parley.core.files import regular_file, write_atomically
from parley.core.text import shown
from parley.deploy.extra import cryptography

AUTHORITY, SERVER, LOOPBACK = "ca", "server", "loopback"
"""The stems of the files `.crt` and `.key`: the authority's, the server's, and that between its own processes."""
AUTHORITY_DAYS = 3650
SOON = 30
"""Days before its end from which a certificate is called about to expire."""
_HOST = re.compile(r"(?=.{1,253}$)(\*\.)?([a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\.)*[a-zA-Z0-9][a-zA-Z0-9-]{0,62}")


def make_authority(folder: Path, days: float = AUTHORITY_DAYS) -> None:
    """A key and a certificate that signs others; who has the certificate can check them."""
    x509, key = _x509(), _new_key()
    name = _name("Parley deployment authority")
    certificate = (
        _begun(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, _sha256())
    )
    _write(folder, AUTHORITY, key, certificate)


def make_certificate(folder: Path, stem: str, names: Sequence[str], days: float) -> None:
    """A key and a certificate for a server of these names and addresses, signed by the authority of the folder.

    Replaces what was there, which is how a certificate is renewed.
    """
    x509, oids, key = _x509(), _oids(), _new_key()
    if not names:
        raise InputError("a server's certificate needs at least one name or address under which nodes reach it.")
    signer, above = _private(folder / f"{AUTHORITY}.key"), read_certificate(folder / f"{AUTHORITY}.crt")
    other = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    certificate = (
        _begun(_name(names[0]), above.subject, key.public_key(), min(days, days_left(above)))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([oids.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(other, critical=False)
        .sign(signer, _sha256())
    )
    _write(folder, stem, key, certificate)


def read_certificate(path: Path) -> Any:
    """The certificate in a file; an InputError says why there is none."""
    try:
        return _x509().load_pem_x509_certificate(regular_file(path, "certificate").read_bytes())
    except ValueError:
        raise InputError(f"'{shown(path)}' is not a certificate (PEM).") from None


def days_left(certificate: Any) -> float:
    """Days until it expires; negative once it has."""
    return float((certificate.not_valid_after_utc - datetime.now(UTC)) / timedelta(days=1))


def names_of(certificate: Any) -> list[str]:
    """The names and addresses it is valid for."""
    try:
        names = certificate.extensions.get_extension_for_class(_x509().SubjectAlternativeName).value
    except _x509().ExtensionNotFound:
        return []
    return [str(name.value) for name in names]


def problem(folder: Path, stem: str) -> str | None:
    """What is wrong with a certificate of the folder, as one sentence; None if nothing is."""
    path = folder / f"{stem}.crt"
    certificate, above = read_certificate(path), read_certificate(folder / f"{AUTHORITY}.crt")
    for which, each in ((path, certificate), (folder / f"{AUTHORITY}.crt", above)):
        if days_left(each) < 0:
            return f"the certificate {which} expired on {each.not_valid_after_utc:%Y-%m-%d}; run 'parley deploy renew'."
        if each.not_valid_before_utc > datetime.now(UTC):
            return f"the certificate {which} begins in the future: the clock of this machine is wrong."
    try:
        certificate.verify_directly_issued_by(above)
    except Exception:  # cryptography raises several kinds
        return f"the certificate {path} was not signed by {folder / f'{AUTHORITY}.crt'}; run 'parley deploy renew'."
    if _private(folder / f"{stem}.key").public_key() != certificate.public_key():
        return f"the key {folder / f'{stem}.key'} does not belong to {path}; run 'parley deploy renew'."
    return None


def news(folder: Path, stem: str) -> str | None:
    """What the operator has to know about a certificate: what is wrong with it, or that it expires soon."""
    left = days_left(read_certificate(folder / f"{stem}.crt"))
    if (wrong := problem(folder, stem)) is not None or left > SOON:
        return wrong
    return f"the certificate {folder / f'{stem}.crt'} expires in {max(0, int(left))} days; run 'parley deploy renew'."


def _begun(subject: Any, issuer: Any, public: Any, days: float) -> Any:
    """A certificate to be signed; it is valid since an hour ago, because clocks differ."""
    x509, now = _x509(), datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + timedelta(days=days)) - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(signs: bool) -> Any:
    return _x509().KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(text: str) -> Any:
    x509 = _x509()
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        if _HOST.fullmatch(text) is None:
            raise InputError(f"'{shown(text)}' is neither a host name nor an IP address.") from None
        return x509.DNSName(text)


def _name(text: str) -> Any:
    oids = _oids()
    return _x509().Name([_x509().NameAttribute(oids.NameOID.COMMON_NAME, text[:64])])


def _write(folder: Path, stem: str, key: Any, certificate: Any) -> None:
    serialization = cryptography("hazmat.primitives.serialization")
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_atomically(folder / f"{stem}.key", secret, private=True)
    write_atomically(folder / f"{stem}.crt", certificate.public_bytes(serialization.Encoding.PEM))


def _private(path: Path) -> Any:
    try:
        data = regular_file(path, "key").read_bytes()
        return cryptography("hazmat.primitives.serialization").load_pem_private_key(data, None)
    except (ValueError, TypeError):
        raise InputError(f"'{shown(path)}' is not a private key (PEM).") from None


def _new_key() -> Any:
    ec = cryptography("hazmat.primitives.asymmetric.ec")
    return ec.generate_private_key(ec.SECP256R1())


def _sha256() -> Any:
    return cryptography("hazmat.primitives.hashes").SHA256()


def _x509() -> Any:
    return cryptography("x509")


def _oids() -> Any:
    return cryptography("x509.oid")
