"""Signing requests: accepted as a node or OpenSSL writes them, refused in a sentence once anything is changed."""

from __future__ import annotations

import shutil
import subprocess
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from parley.cli.main import main
from parley.core.errors import InputError
from parley.deploy import keys, signing
from parley.deploy.server_folder import ServerFolder

BEGIN, END = b"-----BEGIN CERTIFICATE REQUEST-----\n", b"-----END CERTIFICATE REQUEST-----\n"


def pem(data: bytes) -> bytes:
    return BEGIN + b64encode(data) + b"\n" + END


def made(path: Path, *names: str, curve: Any = ec.SECP384R1, digest: Any = hashes.SHA384) -> Path:
    """A request of somebody's own making."""
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names]
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(attributes))
    request = builder.sign(ec.generate_private_key(curve()), digest())
    path.write_bytes(request.public_bytes(serialization.Encoding.PEM))
    return path


def test_a_node_is_registered_by_its_request_as_by_its_key(server: ServerFolder, make_node):
    node = make_node("a")
    request, public = node.path / "node.csr", node.path / "node.pub"
    assert b"PRIVATE" not in request.read_bytes()
    assert signing.handed_over(request) == (keys.public_text(public), "a")
    with pytest.raises(InputError, match=r"is signed for 'a'; leave out --name"):
        server.register(request, "b")
    assert server.register(request) == server.register(public) == server.register(request, "a") == "a"
    assert server.nodes() == {"a": keys.public_text(public)}
    server.revoke("a")
    with pytest.raises(InputError, match="was revoked"):
        server.register(request)


def test_no_byte_of_what_is_signed_can_be_changed(server: ServerFolder, make_node, tmp_path: Path):
    """Every byte in turn. Around what is signed one or two may be: a signature can be written in several ways."""
    request = x509.load_pem_x509_csr((make_node("a").path / "node.csr").read_bytes())
    whole, signed = request.public_bytes(serialization.Encoding.DER), request.tbs_certrequest_bytes
    begin, changed, said = whole.index(signed), tmp_path / "changed.csr", set()
    for place in range(begin, begin + len(signed)):
        changed.write_bytes(pem(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]))
        with pytest.raises(InputError) as error:
            server.register(changed)
        said.add(str(error.value).replace(str(changed), "X"))
    assert said == {
        "'X' is not signed with the key that it is for, or was changed since; ask for another one.",
        "'X' is not a signing request that can be read; ask for another one.",
    }
    assert server.nodes() == {}


def test_nobody_registers_the_key_of_somebody_else(server: ServerFolder, make_node, tmp_path: Path):
    """A request for a's key, signed by who does not have it."""
    a, other = make_node("a").path / "node.csr", tmp_path / "other.csr"
    theirs = x509.load_pem_x509_csr(a.read_bytes())
    mine = x509.load_pem_x509_csr(made(other, "a").read_bytes())
    whole = mine.public_bytes(serialization.Encoding.DER)
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    other.write_bytes(
        pem(whole.replace(mine.public_key().public_bytes(*form), theirs.public_key().public_bytes(*form)))
    )
    assert x509.load_pem_x509_csr(other.read_bytes()).public_key() == theirs.public_key()
    with pytest.raises(InputError, match="is not signed with the key that it is for"):
        server.register(other)


def test_requests_of_another_kind_are_refused(server: ServerFolder, make_node, tmp_path: Path):
    place = tmp_path / "request.csr"
    for names in ((), ("a", "b")):
        with pytest.raises(InputError, match="has to name one node, and nothing else"):
            server.register(made(place, *names))
    with pytest.raises(InputError, match="is not a node's name"):
        server.register(made(place, "../a"))
    with pytest.raises(InputError, match="is a key of another kind"):
        server.register(made(place, "a", curve=ec.SECP256K1))
    with pytest.raises(InputError, match="is not signed"):
        server.register(made(place, "a", digest=hashes.SHA224))
    place.write_bytes((make_node("a").path / "node.key").read_bytes() + made(tmp_path / "b.csr", "b").read_bytes())
    with pytest.raises(InputError, match="is a private key, which must stay at its node"):
        server.register(place)
    assert server.nodes() == {}


def test_openssl_reads_ours_and_we_read_its(server: ServerFolder, make_node, tmp_path: Path):
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl")
    ours, theirs = make_node("a").path / "node.csr", tmp_path / "b.csr"
    read = subprocess.run(
        ["openssl", "req", "-verify", "-noout", "-subject", "-in", str(ours)],
        capture_output=True,
        check=True,
        text=True,
    )
    assert "CN = a" in read.stdout + read.stderr or "CN=a" in read.stdout + read.stderr
    subprocess.run(
        [
            "openssl",
            "req",
            "-new",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-384",
            "-nodes",
            "-subj",
            "/CN=b",
            "-keyout",
            str(tmp_path / "b.key"),
            "-out",
            str(theirs),
        ],
        capture_output=True,
        check=True,
    )
    assert server.register(theirs) == "b"


def test_the_command_says_one_sentence(server: ServerFolder, make_node, capsys):
    request = make_node("a").path / "node.csr"
    words = ["deploy", "register", str(request), "-f", str(server.path)]
    with pytest.raises(SystemExit) as ended:
        main(words)
    fingerprint = keys.fingerprint(keys.public_text(request.with_name("node.pub")))
    assert (ended.value.code, capsys.readouterr().out) == (0, f"a {fingerprint}\n")
    server.revoke("a")
    text = request.read_bytes().splitlines()
    request.write_bytes(b"\n".join([*text[:2], *text[3:]]))
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "is not a signing request that can be read; ask for another one." in " ".join(
        capsys.readouterr().err.split()
    )
