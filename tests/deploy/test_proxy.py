"""A node behind an HTTP proxy that is stopped in the middle of a run and started again, with real processes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread

import pytest

from parley.core.processes import free_port

from .processes import Bench, federation, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


class Proxy:
    """A proxy that knows CONNECT alone, as a hospital may have; it can be stopped and started again."""

    def __init__(self) -> None:
        self.port, self.connections = free_port(), 0
        self.start()

    def start(self) -> None:
        self.door = socket.create_server(("127.0.0.1", self.port), reuse_port=False)
        self.lines: list[socket.socket] = []
        Thread(target=self._accept, args=(self.door,), daemon=True).start()

    def stop(self) -> None:
        self.door.shutdown(socket.SHUT_RDWR)
        self.door.close()
        for line in self.lines:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def _accept(self, door: socket.socket) -> None:
        with suppress(OSError):
            while True:
                line, _ = door.accept()
                Thread(target=self._tunnel, args=(line,), daemon=True).start()

    def _tunnel(self, line: socket.socket) -> None:
        with suppress(OSError):
            head = line.recv(65536).decode()
            method, place, _ = head.split(" ", 2)
            assert method == "CONNECT"
            host, _, port = place.rpartition(":")
            there = socket.create_connection((host, int(port)))
            self.connections += 1
            self.lines += [line, there]
            line.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            Thread(target=self._copy, args=(there, line), daemon=True).start()
            self._copy(line, there)

    @staticmethod
    def _copy(source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                to.sendall(data)
        with suppress(OSError):
            to.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made = Proxy()
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def bench(tmp_path_factory: pytest.TempPathFactory, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with federation(tmp_path_factory.mktemp("federation"), "server", "north", "south") as made:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        made.start("west")
        monkeypatch.delenv("HTTPS_PROXY")
        yield made


def test_nothing_is_lost_while_the_proxy_is_stopped(bench: Bench, proxy: Proxy):
    slow = {"name": "scaffold", "lr": 0.01, "steps": 1500}
    table = bench.table("scaffold", 3, algorithm=slow, faults={"quorum": 1.0})
    one = bench.submit(table)
    bench.reaches(one, "round 1: asked 3, answered 3")
    heard, connections = bench.nodes["west"].path / "supernode.log", proxy.connections
    failed = heard.read_text().count("Connection attempt failed")
    proxy.stop()
    until(lambda: heard.read_text().count("Connection attempt failed") > failed, "the node to notice")
    proxy.start()
    bench.same_as_inline(bench.ended(one), table)
    assert proxy.connections > connections > 0
    assert bench.said(one).count("asked 3, answered 3") == 3
