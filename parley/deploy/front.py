"""The front: the only port of a deployment that others reach. TLS, and of HTTP no more than nodes need.

A request must be a POST to one of ten paths under /v1/fleet/, with a registered key (Flower checks its signature) and
a length that is stated and allowed. Everything else gets a status and a closed connection; in particular the control
interface of Flower, which shares a port with the interface for nodes and would let anybody start programs. What is
passed on is written anew, so that nothing which this side reads in one way can be read in another behind it. While
Flower is down the answer is 502, 503 or 504, which nodes take as a reason to try again later.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate

PATHS = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "get-run",
        "get-fab",
        "push-object",
        "pull-object",
        "confirm-message-received",
    )
)
KEY = "flwr-public-key"
LARGEST_HEAD = 16 * 1024
MOST_HEADERS = 40
LARGEST_BODY = 32 * 2**20
"""Bytes of one request; Flower sends what is large in pieces of 5 MB."""
MOST_CONNECTIONS = 512
MOST_FROM_ONE = 128
"""Connections of one address; several nodes may share a proxy."""
MOST_LINES, LINES_SECONDS = 10, 60.0
"""Refusals of one address that get a line of their own in so many seconds; the others are counted."""
HEAD_SECONDS, BODY_SECONDS, IDLE_SECONDS, UPSTREAM_SECONDS, CONNECT_SECONDS = 10.0, 120.0, 75.0, 60.0, 5.0
_LINE = re.compile(r"([A-Z]{1,10}) (/[!-~]{0,200}) HTTP/1\.1")
_HEADER, _VALUE = re.compile(r"([A-Za-z0-9-]{1,64}):([ -~\t]*)"), re.compile(r"[ -~]{0,4096}")
"""A value may have spaces around it; one expression for both would try all ways to share them out."""
_PASSED = ("content-type", "accept")
_REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 408: "Request Timeout",
    411: "Length Required", 413: "Content Too Large", 431: "Request Header Fields Too Large",
    502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Timeout",
}  # fmt: skip


class Refused(Exception):
    """A request that is not passed on."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True)
class Head:
    """The beginning of a request."""

    method: str
    path: str
    headers: Mapping[str, str]
    """By their names in lower case."""

    @classmethod
    def read(cls, data: bytes) -> Head:
        """From bytes up to the empty line; `Refused` says what is wrong with them."""
        try:
            lines = data.decode("ascii").split("\r\n")
        except UnicodeDecodeError:
            raise Refused(400, "a head that is no ASCII") from None
        match = _LINE.fullmatch(lines[0])
        if match is None:
            raise Refused(400, "a malformed request line")
        headers: dict[str, str] = {}
        if len(lines) > MOST_HEADERS:
            raise Refused(431, "too many headers")
        for line in lines[1:]:
            if not line:
                continue
            header = _HEADER.fullmatch(line)
            value = header and _VALUE.fullmatch(header[2].strip(" \t"))
            if header is None or value is None:
                raise Refused(400, "a malformed header")
            name = header[1].lower()
            if name in headers:
                raise Refused(400, f"two headers {name}")
            headers[name] = value[0]
        return cls(match[1], match[2], headers)

    def length(self) -> int:
        """The bytes that follow."""
        if "transfer-encoding" in self.headers:
            raise Refused(411, "a body without a stated length")
        text = self.headers.get("content-length", "0")
        if not text.isdecimal() or len(text) > 12:
            raise Refused(400, "an invalid length")
        if int(text) > LARGEST_BODY:
            raise Refused(413, f"a body of {text} bytes")
        return int(text)


@dataclass
class Front:
    """A TLS server that passes on what nodes may ask."""

    upstream: int
    """The port on this machine where Flower listens."""
    upstream_tls: ssl.SSLContext | None
    admits: Callable[[str], bool]
    """Whether a public key, as requests carry it, is registered."""
    note: Callable[[str], None]
    """Told in one line of what was refused."""
    _open: dict[asyncio.Task[None], str] = field(default_factory=dict)
    """Connections, and the addresses that they come from."""
    _lines: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Address -> since when its refusals are counted, and how many there were."""

    async def serve(self, host: str, port: int, tls: ssl.SSLContext) -> asyncio.Server:
        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._accepted(reader, writer, tls)

        return await asyncio.start_server(accepted, host, port, limit=LARGEST_HEAD, backlog=128)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tls: ssl.SSLContext) -> None:
        task = asyncio.current_task()
        assert task is not None
        peer = str((writer.get_extra_info("peername") or ["?"])[0])
        try:
            theirs = sum(address == peer for address in self._open.values())
            if len(self._open) >= MOST_CONNECTIONS or theirs >= MOST_FROM_ONE:
                self._refused(peer, f"refused: {theirs} connections of it and {len(self._open)} in all are open")
                return
            self._open[task] = peer
            # Counted before the handshake, which begins before anything is read and must end within seconds.
            await writer.start_tls(tls, ssl_handshake_timeout=HEAD_SECONDS)
            await self._requests(reader, writer, peer)
        except (ConnectionError, ssl.SSLError, asyncio.IncompleteReadError, TimeoutError, asyncio.CancelledError):
            pass
        finally:
            self._open.pop(task, None)
            writer.close()
            with suppress(Exception, asyncio.CancelledError):
                await asyncio.wait_for(writer.wait_closed(), 2)

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
        patience = HEAD_SECONDS  # of a connection on which nothing was asked yet
        while True:
            head: Head | None = None
            try:
                head = await _head(reader, patience)
                if head is None:
                    return
                self._check(head)
                left = head.length()
                if not await self._passed_on(head, left, reader, writer):
                    return
            except Refused as refusal:
                what = "" if head is None else f" {head.method} {head.path}"
                self._refused(peer, f"{what} refused with {refusal.status}: {refusal}".lstrip())
                await _status(writer, refusal.status)
                return
            patience = IDLE_SECONDS

    def _refused(self, peer: str, text: str) -> None:
        """A line for what was refused, or a number in one: nobody fills the disk by asking."""
        now = time.monotonic()
        since, count = self._lines.get(peer, (now, 0))
        if now - since >= LINES_SECONDS:
            for address, (begun, refused) in list(self._lines.items()):
                if now - begun >= LINES_SECONDS:
                    del self._lines[address]
                    if refused > MOST_LINES:
                        self.note(f"{address} was refused {refused - MOST_LINES} more times")
            since, count = now, 0
        if len(self._lines) < MOST_CONNECTIONS or peer in self._lines:
            self._lines[peer] = (since, count + 1)
        if count < MOST_LINES:
            more = "; further refusals of it are counted" if count + 1 == MOST_LINES else ""
            self.note(f"{peer} {text}{more}")

    def _check(self, head: Head) -> None:
        if head.path not in PATHS or head.method != "POST":
            raise Refused(403, "nodes do not need it")
        if not self.admits(head.headers.get(KEY, "")):
            raise Refused(401, "no registered key")

    async def _passed_on(
        self, head: Head, length: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Whether the connection can be used again after the answer."""
        try:
            upstream, back = await asyncio.wait_for(
                asyncio.open_connection(
                    "127.0.0.1",
                    self.upstream,
                    ssl=self.upstream_tls,
                    limit=LARGEST_HEAD,
                    server_hostname="localhost" if self.upstream_tls else None,
                ),
                CONNECT_SECONDS,
            )
        except TimeoutError:
            raise Refused(504, "Flower does not answer") from None
        except OSError:
            raise Refused(502, "Flower does not run") from None
        try:
            back.write(_rewritten(head, length))
            await asyncio.wait_for(_copied(reader, back, length), BODY_SECONDS)
            try:
                answer = await asyncio.wait_for(upstream.readuntil(b"\r\n\r\n"), UPSTREAM_SECONDS)
                status, kind, size = _answer_head(answer)
            except TimeoutError:
                raise Refused(504, "Flower does not answer") from None
            except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, LookupError):
                raise Refused(502, "Flower gave no answer") from None
            if status == 500:  # nodes would stop for good
                raise Refused(503, "Flower failed")
            writer.write(
                f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}\r\ncontent-type: {kind}\r\n"
                f"content-length: {size}\r\n\r\n".encode("ascii")
            )
            await asyncio.wait_for(_copied(upstream, writer, size), BODY_SECONDS)
            return True
        finally:
            back.close()


async def _head(reader: asyncio.StreamReader, patience: float) -> Head | None:
    """The next request's head; None where the connection ends or stays silent. It must come within seconds."""
    try:
        first = await asyncio.wait_for(reader.readexactly(1), patience)
    except (asyncio.IncompleteReadError, TimeoutError, ConnectionError):
        return None
    try:
        rest = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_SECONDS)
    except asyncio.LimitOverrunError:
        raise Refused(431, "a head that is too long") from None
    except TimeoutError:
        raise Refused(408, "a head that does not come to an end") from None
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return Head.read((first + rest)[:-4])


def _rewritten(head: Head, length: int) -> bytes:
    """The request as Flower gets it: only what it needs, each header once."""
    kept = {name: value for name, value in head.headers.items() if name in _PASSED or name.startswith("flwr-")}
    lines = [f"POST {head.path} HTTP/1.1", "host: localhost", "connection: close", f"content-length: {length}"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in kept.items()), "", ""]).encode("ascii")


def _answer_head(data: bytes) -> tuple[int, str, int]:
    """Status, type and length of Flower's answer."""
    lines = data.decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
    kind = headers.get("content-type", "application/octet-stream")
    if _VALUE.fullmatch(kind) is None:
        raise ValueError(kind)
    return int(lines[0].split(" ")[1]), kind, int(headers["content-length"])


async def _copied(source: asyncio.StreamReader, to: asyncio.StreamWriter, length: int) -> None:
    """So many bytes, a little at a time."""
    left = length
    while left:
        part = await source.read(min(left, 65536))
        if not part:
            raise asyncio.IncompleteReadError(b"", left)
        to.write(part)
        await to.drain()
        left -= len(part)
    await to.drain()


async def _status(writer: asyncio.StreamWriter, status: int) -> None:
    text = _REASONS.get(status, "Status")
    date = formatdate(usegmt=True)  # for nodes to compare their clocks with
    head = f"HTTP/1.1 {status} {text}\r\ndate: {date}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    writer.write(head.encode("ascii"))
    await asyncio.wait_for(writer.drain(), 5)
