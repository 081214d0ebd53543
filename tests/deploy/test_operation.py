"""Running a server or a node for years: logs, health, backups, services."""

from __future__ import annotations

import configparser
import os
import shlex
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

import parley.deploy.node_folder as node_folder
from parley.cli.main import main
from parley.core.errors import InputError
from parley.core.processes import free_port
from parley.deploy import health, logs
from parley.deploy.answering import answer
from parley.deploy.client import Client
from parley.deploy.node_folder import NodeFolder
from parley.deploy.server_folder import ServerFolder
from parley.deploy.supervisor import Supervisor
from parley.runtimes.frame import unpack
from parley.store.runs import RunStore

from .conftest import ALL, proposed, table
from .test_consent import asked, invited
from .test_runs import Place, identity, place  # noqa: F401 (fixtures)


def run(*words: str) -> int:
    try:
        main(list(words))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


# --- logs ---


def test_the_log_of_a_node_is_archived_and_its_chain_goes_on(make_node, monkeypatch: pytest.MonkeyPatch):
    node: NodeFolder = make_node("a")
    monkeypatch.setattr(node_folder, "LARGEST_LOG", 2000)
    for number in range(100):
        node.log("test", number=number)
    archives = sorted(path.name for path in node.path.glob("audit-*"))
    assert len(archives) > 3
    assert all(name.endswith(".jsonl.gz") for name in archives)
    assert [line["number"] for line in node.logged()] == list(range(100))
    assert (node.path / "audit.jsonl").stat().st_size < 2200
    # Killed after the file was compressed and before the plain one went.
    plain = node.path / archives[-1].removesuffix(".gz")
    plain.write_bytes(b"".join(line + b"\n" for line in node_folder._lines(node.path / archives[-1])))
    assert [line["number"] for line in node.logged()] == list(range(100))
    plain.unlink()
    (node.path / archives[1]).unlink()
    with pytest.raises(InputError, match="it was changed"):
        list(node.logged())
    (node.path / archives[-1]).write_bytes(b"x")
    with pytest.raises(InputError, match="it was changed"):
        list(node.logged())


def test_many_write_the_log_of_a_node_at_once(make_node, monkeypatch: pytest.MonkeyPatch):
    """An owner decides while a message is answered: no line is sealed by the same one as another."""
    node: NodeFolder = make_node("a")
    monkeypatch.setattr(node_folder, "LARGEST_LOG", 3000)

    def write(who: int) -> None:
        for number in range(30):
            node.log("test", who=who, number=number)

    threads = [threading.Thread(target=write, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = list(node.logged())
    assert len(lines) == 120
    for who in range(4):
        assert [line["number"] for line in lines if line["who"] == who] == list(range(30))


def test_files_that_flower_writes_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logs, "LARGEST", 1000)
    path = tmp_path / "supernode.log"
    writes = "import sys\nfor n in range(3): print('x' * 600, flush=True); sys.stdin.readline()\n"
    with path.open("ab") as output:
        child = subprocess.Popen([sys.executable, "-c", writes], stdin=subprocess.PIPE, stdout=output)
    assert child.stdin is not None
    for _ in range(3):
        while path.stat().st_size % 601 or not path.stat().st_size:
            pass
        logs.cut(path)
        child.stdin.write(b"\n")
        child.stdin.flush()
    child.stdin.close()
    child.wait()
    logs.cut(path)
    assert path.stat().st_size <= 1202
    logs.cut(tmp_path / "none")


# --- health ---


def test_health_is_told_at_a_port_of_this_machine(tmp_path: Path):
    works = {"flower": True}
    with health.served(port := free_port(), lambda: health.facts_of(tmp_path, **works)):
        said = health.asked(port)
        assert said["healthy"] is True
        assert said["flower"] is True
        works["flower"] = False
        assert health.asked(port)["healthy"] is False
        from http.client import HTTPConnection

        with closing(HTTPConnection("127.0.0.1", port)) as line:
            line.request("GET", "/health")
            assert line.getresponse().status == 503
        with closing(HTTPConnection("127.0.0.1", port)) as line:
            line.request("GET", "/other")
            assert line.getresponse().status == 404
        with pytest.raises(InputError, match="cannot be used"), health.served(port, dict):
            pass
    with pytest.raises(InputError, match="nothing answers"):
        health.asked(port)


def test_health_of_a_server_and_a_node(server: ServerFolder, make_node, capsys: pytest.CaptureFixture[str]):
    node: NodeFolder = make_node("a")
    supervisor, client = Supervisor(server, print), Client(node, print)
    assert supervisor._health() == supervisor._health() | {"healthy": False, "flower": False, "certificate": True}
    assert client._health() == client._health() | {"healthy": False, "answering": False, "log": True}
    assert run("deploy", "health", "-f", str(server.path)) == 2
    assert "set health" in capsys.readouterr().err
    node.set(health=free_port())
    works = {"healthy": True, "flower": True}
    with health.served(node.settings.health, lambda: works):
        assert run("deploy", "health", "--node", str(node.path)) == 0
        works["healthy"] = False
        assert run("deploy", "health", "--node", str(node.path)) == 1


# --- backups ---


def test_a_server_is_restored_with_its_runs(place: Place, tmp_path: Path):  # noqa: F811
    one = place.run(table())
    assert run("deploy", "backup", str(tmp_path / "b.tar.gz"), "-f", str(place.folder.path)) == 0
    assert (tmp_path / "b.tar.gz").stat().st_mode & 0o077 == 0
    assert run("deploy", "restore", str(tmp_path / "b.tar.gz"), str(tmp_path / "again")) == 0
    again = ServerFolder.open(tmp_path / "again")
    assert again.nodes() == place.folder.nodes()
    for folder in (again, place.folder):
        with RunStore(folder.store, create=False) as store:
            assert len(store.records(str(one.run))) == 4
    assert {path.name for path in again.path.rglob("*.safetensors")} == {
        path.name for path in place.folder.path.rglob("*.safetensors")
    }
    (again.path / "server.key").read_bytes()
    assert not (again.path / "flower").exists()


def test_a_restored_node_approves_nothing_and_answers_nothing_of_before(make_node, tmp_path: Path):
    """It does not know what it has answered since: a policy would let the same study in once more, with fresh noise."""
    node, first, second = make_node("a", ALL), proposed(seed=1), proposed(seed=2)
    assert unpack(answer(node, asked(node, first)))[0]["kind"] == "reply"
    node.keep(third := proposed(seed=3))
    node.decide(third.hash, "approved")
    assert run("deploy", "backup", str(tmp_path / "b.tar.gz"), "--node", str(node.path)) == 0
    assert invited(node, second, "since")["kind"] == "enrolled"
    assert run("deploy", "restore", str(tmp_path / "b.tar.gz"), str(tmp_path / "again")) == 0
    again = NodeFolder.open(tmp_path / "again")
    assert again.path.stat().st_mode & 0o077 == 0
    assert (again.path / "node.key").read_bytes() == (node.path / "node.key").read_bytes()
    assert unpack(answer(again, asked(node, first)))[0]["kind"] == "failure"
    for study, run_ in ((first, "r"), (second, "since"), (third, "other")):
        assert invited(again, study, run_)["kind"] == "pending"
    again.decide(third.hash, "approved")
    assert invited(again, third, "other")["kind"] == "enrolled"
    assert (again.path / "policy-before-restore.toml").read_text() == ALL
    assert "restored" in [line["event"] for line in again.logged()]


def test_what_is_no_backup_is_refused(server: ServerFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "x").write_text("no")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    at = {name: str(tmp_path / name) for name in ("none", "b", "x", "y", "no", "full")}
    for words in (
        ("backup", at["b"], "-f", at["none"]), ("backup", at["x"], "-f", str(server.path)),
        ("backup", str(server.path / "b"), "-f", str(server.path)), ("restore", at["x"], at["y"]),
        ("restore", at["x"], at["full"]), ("restore", at["no"], at["y"]),
    ):  # fmt: skip
        assert run("deploy", *words) == 2
    assert "Traceback" not in capsys.readouterr().err


# --- services ---


def test_units_start_what_they_should(server: ServerFolder, make_node):
    node: NodeFolder = make_node("a")
    for path, words in (
        (server.path / "parley-server.service", ["deploy", "server", "-f", str(server.path)]),
        (node.path / "parley-node.service", ["deploy", "client", "--node", str(node.path)]),
    ):
        unit = configparser.ConfigParser(interpolation=None, strict=True)
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read_string(path.read_text())
        command = shlex.split(unit["Service"]["ExecStart"])
        assert command[1:] == words
        assert os.access(command[0], os.X_OK)
        assert unit["Service"]["ReadWritePaths"] == str(path.parent)
