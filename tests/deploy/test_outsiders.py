"""Who is kept out of a deployment, with real processes over TLS."""

from __future__ import annotations

import http.client
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from parley.cli.main import main
from parley.core.processes import free_port
from parley.deploy import certificates, keys
from parley.deploy.demo import ended_at_last, prepared
from parley.deploy.extra import program
from parley.deploy.flower import Control, surroundings

from .processes import Bench, federation, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A server without nodes."""
    with federation(tmp_path_factory.mktemp("federation"), "server") as made:
        yield made


def trusted(bench: Bench) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=bench.folder.path / "ca.crt")


def test_an_outsider_with_the_authoritys_certificate_gets_nowhere(bench: Bench, tmp_path: Path):
    """With Flower's own command line and by hand: no key registered, no runs listed, no application started."""
    port = bench.folder.settings.port
    until(lambda: "nodes are served" in bench.log(), "the server")
    outside = Control(tmp_path / "home", port, bench.folder.path / "ca.crt")
    outside.prepare()
    keys.make_key(tmp_path / "k", tmp_path / "k.pub", "evil")
    for words in (
        ("supernode", "register", str(tmp_path / "k.pub"), "here"),
        ("list", "here"),
        ("run", str(bench.folder.path / "flower" / "app"), "here"),
    ):
        done = subprocess.run(
            [program("flwr"), *words], env=surroundings(outside.home), capture_output=True, timeout=300, cwd=tmp_path
        )
        assert done.returncode != 0, (words, done.stdout)
    for path in ("/v1/control/list-runs", "/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/x", "/"):
        line = http.client.HTTPSConnection("localhost", port, context=trusted(bench), timeout=30)
        line.request("POST", path, body=b"")
        assert line.getresponse().status == 403
        line.close()
    assert "POST /v1/control/register-node refused with 403" in bench.log()
    assert len(bench.folder.nodes()) == 3


def supernode(bench: Bench, home: Path, *more: str) -> str:
    """What Flower's own node program says when it tries to connect with these options, until it ends."""
    home.mkdir(exist_ok=True)
    with (home / "out").open("wb") as output:
        node = subprocess.Popen(
            [
                program("flower-supernode"),
                "--superlink",
                f"localhost:{bench.folder.settings.port}",
                "--port",
                str(free_port()),
                "--max-retries",
                "1",
                *more,
            ],
            env=surroundings(home),
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    with ended_at_last([node]):
        node.wait(300)
    said = (home / "out").read_text()
    assert "SuperNode ID" not in said
    return said


def test_unknown_and_revoked_keys_plaintext_and_another_authority_are_kept_out(bench: Bench, tmp_path: Path):
    until(lambda: "nodes are served" in bench.log(), "the server")
    ca = ("--root-certificates", str(bench.folder.path / "ca.crt"))
    keys.make_key(tmp_path / "k", tmp_path / "k.pub", "evil")
    own = ("--auth-supernode-private-key", str(tmp_path / "k"))
    supernode(bench, tmp_path / "unknown", *ca, *own)
    refused = "activate-node refused with 401: no registered key"
    assert bench.log().count(refused) == 1
    assert "SuperNode ID" not in supernode(bench, tmp_path / "plain", "--insecure")
    certificates.make_authority(tmp_path)
    other = ("--root-certificates", str(tmp_path / "ca.crt"))
    assert "CERTIFICATE_VERIFY_FAILED" in supernode(bench, tmp_path / "other", *other, *own)
    bench.folder.register(tmp_path / "k.pub", "late")
    until(lambda: "node late is registered" in bench.log(), "the registration")
    bench.folder.revoke("late")
    until(lambda: "a node was revoked" in bench.log(), "the revocation")
    supernode(bench, tmp_path / "revoked", *ca, *own)
    assert bench.log().count(refused) == 2


def test_a_server_with_an_expired_certificate_does_not_start(bench: Bench, tmp_path: Path, capfd):
    other = prepared(tmp_path, samples=20)
    certificates.make_certificate(other.server.path, certificates.SERVER, ["localhost"], -1)
    with pytest.raises(SystemExit) as ended:
        main(["deploy", "server", "-f", str(other.server.path)])
    assert ended.value.code == 2
    assert "expired" in capfd.readouterr().err


def test_a_certificate_that_expires_while_the_server_runs_is_refused_until_it_is_renewed(bench: Bench, tmp_path: Path):
    until(lambda: "nodes are served" in bench.log(), "the server")
    ca = ("--root-certificates", str(bench.folder.path / "ca.crt"))
    own = ("--auth-supernode-private-key", str(bench.nodes["north"].path / "node.key"))
    certificates.make_certificate(bench.folder.path, certificates.SERVER, ["localhost"], 8 / 86400)
    until(lambda: "server.crt expires in 0 days; run 'parley deploy renew'" in bench.log(), "the warning")
    until(lambda: "server.crt expired on" in bench.log(), "the end of the certificate")
    assert "certificate has expired" in supernode(bench, tmp_path / "late", *ca, *own)
    bench.folder.renew()
    until(lambda: bench.log().count("the renewed certificate is in use") == 2, "the renewal")
    line = http.client.HTTPSConnection("localhost", bench.folder.settings.port, context=trusted(bench), timeout=30)
    line.request("POST", "/")
    assert line.getresponse().status == 403
    line.close()
    assert bench.log().count("expired on") == 1
