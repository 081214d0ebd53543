"""Whether a server or a node works, for whoever watches it: GET /health at a port of this machine alone.

200 or 503, and a few facts as JSON; no names, no data.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from parley.core.errors import InputError

_SECONDS = 5.0
LEAST_SPACE = 100 * 2**20
"""Bytes that must be free."""


def facts_of(path: Path, **works: bool) -> dict[str, Any]:
    """What is said: each part that must work, and the disk."""
    try:
        free = shutil.disk_usage(path).free
    except OSError:
        free = 0
    works["disk"] = free >= LEAST_SPACE
    return {"healthy": all(works.values()), **works, "free_megabytes": free // 2**20}


@contextmanager
def served(port: int | None, look: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
    """Answer at the port while the block lasts; nothing without one. `look`: what to say, with `healthy`."""
    if port is None:
        yield
        return

    class Handler(BaseHTTPRequestHandler):
        timeout = _SECONDS

        def do_GET(self) -> None:
            known = self.path == "/health"
            health = look() if known else {}
            body = json.dumps(dict(health)).encode() + b"\n" if known else b""
            self.send_response((200 if health["healthy"] else 503) if known else 404)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise InputError(f"the port {port} for the health endpoint cannot be used: {error.strerror}.") from None
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def asked(port: int | None) -> dict[str, Any]:
    """What the endpoint of this machine says; an InputError if it is not there."""
    if port is None:
        raise InputError("there is no health endpoint: set health, a port of this machine, in the settings.")
    line = HTTPConnection("127.0.0.1", port, timeout=_SECONDS)
    try:
        line.request("GET", "/health")
        answer: dict[str, Any] = json.loads(line.getresponse().read(65536))
        return answer
    except (OSError, HTTPException, ValueError) as error:
        raise InputError(f"nothing answers at port {port} of this machine: {error}.") from None
    finally:
        line.close()
