"""Certificates and keys, held against OpenSSL as Python has it and against ssh-keygen's fingerprints."""

from __future__ import annotations

import base64
import hashlib
import socket
import ssl
import threading
from pathlib import Path

import pytest

from parley.core.errors import InputError
from parley.deploy import certificates, keys
from parley.deploy.node_folder import NodeFolder
from parley.deploy.server_folder import ServerFolder


def handshake(server: Path, trusted: Path, name: str) -> str:
    """The subject that a client sees, or the error it raises, for a server with the folder's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server / "server.crt", server / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as door:

        def serve() -> None:
            plain, _ = door.accept()
            try:
                with context.wrap_socket(plain, server_side=True) as line:
                    line.recv(1)
            except (ssl.SSLError, OSError):
                plain.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with (
                socket.create_connection(door.getsockname()) as plain,
                ssl.create_default_context(cafile=trusted).wrap_socket(plain, server_hostname=name) as line,
            ):
                return str(line.getpeercert())
        except ssl.SSLError as error:
            return str(error)
        finally:
            thread.join(10)


def test_a_client_with_the_authoritys_certificate_trusts_the_server_under_its_names_only(server: ServerFolder):
    trusted = server.path / "ca.crt"
    assert "localhost" in handshake(server.path, trusted, "localhost")
    assert "localhost" in handshake(server.path, trusted, "127.0.0.1")
    assert "CERTIFICATE_VERIFY_FAILED" in handshake(server.path, trusted, "elsewhere.example")


def test_another_authority_is_not_trusted(server: ServerFolder, tmp_path: Path):
    other = ServerFolder.create(tmp_path / "other", ["localhost"])
    assert "CERTIFICATE_VERIFY_FAILED" in handshake(server.path, other.path / "ca.crt", "localhost")


def test_an_expired_certificate_is_refused_until_it_is_renewed(server: ServerFolder):
    certificates.make_certificate(server.path, certificates.SERVER, ["localhost"], -1)
    assert "expired" in handshake(server.path, server.path / "ca.crt", "localhost")
    assert "expired on" in str(certificates.problem(server.path, certificates.SERVER))
    server.renew()
    assert certificates.problem(server.path, certificates.SERVER) is None
    assert "localhost" in handshake(server.path, server.path / "ca.crt", "localhost")
    left = certificates.days_left(certificates.read_certificate(server.path / "server.crt"))
    assert 364 < left < 365


def test_a_certificate_never_outlives_its_authority(tmp_path: Path):
    certificates.make_authority(tmp_path, days=10)
    certificates.make_certificate(tmp_path, "server", ["localhost"], 365)
    found, above = (certificates.read_certificate(tmp_path / name) for name in ("server.crt", "ca.crt"))
    assert found.not_valid_after_utc <= above.not_valid_after_utc


def test_a_key_that_belongs_to_another_certificate_is_told(server: ServerFolder):
    (server.path / "server.key").write_bytes((server.path / "loopback.key").read_bytes())
    assert "does not belong" in str(certificates.problem(server.path, certificates.SERVER))


def test_private_files_are_for_their_user_alone(server: ServerFolder, make_node):
    node: NodeFolder = make_node("a")
    for path in (server.path / "ca.key", server.path / "server.key", node.path / "node.key"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert node.path.stat().st_mode & 0o077 == 0
    (node.path / "node.key").chmod(0o644)
    with pytest.raises(InputError, match="can be read by others"):
        keys.private_key(node.path / "node.key")


def test_names_that_are_none_are_refused_and_nothing_is_left(tmp_path: Path):
    with pytest.raises(InputError, match="neither a host name nor an IP address"):
        ServerFolder.create(tmp_path / "server", ["not a name"])
    assert not (tmp_path / "server" / "deploy.toml").exists()
    ServerFolder.create(tmp_path / "server", ["fl.example.org", "10.0.0.7", "::1"])
    found = certificates.names_of(certificates.read_certificate(tmp_path / "server" / "server.crt"))
    assert found == ["fl.example.org", "10.0.0.7", "::1"]
    with pytest.raises(InputError, match="already"):
        ServerFolder.create(tmp_path / "server", ["localhost"])


def test_nodes_are_registered_by_their_public_keys_and_revoked_for_good(server: ServerFolder, make_node):
    a, b = make_node("a"), make_node("b")
    assert server.register(a.path / "node.pub") == "a"
    assert server.register(a.path / "node.pub") == "a"
    with pytest.raises(InputError, match="private key, which must stay at its node"):
        server.register(b.path / "node.key")
    with pytest.raises(InputError, match="registered as 'a'"):
        server.register(a.path / "node.pub", "c")
    with pytest.raises(InputError, match="another key is registered as 'a'"):
        server.register(b.path / "node.pub", "a")
    with pytest.raises(InputError, match="is not a node's name"):
        server.register(b.path / "node.pub", "../b")
    assert list(server.nodes()) == ["a"]
    with pytest.raises(InputError, match="no node 'b' is registered"):
        server.revoke("b")
    server.revoke("a")
    assert server.nodes() == {}
    with pytest.raises(InputError, match="was revoked"):
        server.register(a.path / "node.pub")
    assert server.register(b.path / "node.pub", "a") == "a"


def test_fingerprints_are_those_of_ssh_keygen(make_node):
    public = make_node("a").path / "node.pub"
    blob = base64.b64decode(public.read_text().split()[1])
    expected = "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    assert keys.fingerprint(keys.public_text(public)) == expected


def test_settings_are_commented_and_mistakes_in_them_are_sentences(server: ServerFolder, make_node):
    text = (server.path / "deploy.toml").read_text()
    assert "# The one port that nodes need" in text
    assert server.settings.port == 9443
    path = server.path / "deploy.toml"
    for wrong, said in (("prot = 1", "did you mean 'port'"), ("port = 0", "port in .* must be"), ("port =", "TOML")):
        path.write_text('names = ["localhost"]\n' + wrong)
        with pytest.raises(InputError, match=said):
            _ = ServerFolder.open(server.path).settings
    node = make_node("a")
    assert node.settings.test_fraction == 0.2
    assert node.policy.rounds == 0
