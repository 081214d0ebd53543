"""A local page that follows a run store, lists its runs and opens their reports.

    with serve(store="runs.db", port=0) as server:
        print(server.address)          # with the token that lets a browser in

It reads and never writes, listens on the loopback address alone, and answers only requests that name it (`Host`), that
no other site has caused (`Origin`, `Sec-Fetch-Site`), and that bring the token of this start: in the address once, then
as a cookie that other sites cannot send. One thing another site may cause: that its user, who clicks the whole address
in a terminal that is itself a page, comes here. Reports run in a sandbox without an origin.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from math import isnan
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from parley.core.errors import InputError, ParleyError
from parley.core.numbers import megabytes, metric_text
from parley.core.text import printable
from parley.engine.roll_call import over_clients
from parley.report.page import report_page
from parley.report.page.markup import text
from parley.store.runs import RunStore, store_path
from parley.study.seeds import Entry, Seeds, Seen, listing

LOOPBACK = "127.0.0.1"
MOST_IN_REPORT = 500
_PAGE = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'"
_REPORT = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; sandbox allow-scripts"
)
_COMMON = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
_ASSETS = {"/ui.js": "text/javascript", "/ui.css": "text/css", "/page.css": "text/css"}


class Server(ThreadingHTTPServer):
    """The page's server; `address` is what to open."""

    daemon_threads = True
    allow_reuse_address = os.name == "posix"
    """There it lets a port be used again at once, as by the next start; on Windows it would let others share it."""
    allow_reuse_port = False

    def __init__(self, store: Path | str | None, port: int, names: bool) -> None:
        self.store, self.names, self.token = store_path(store), names, secrets.token_urlsafe(24)
        self.drawing = threading.Lock()  # one report at a time: each takes a core and some memory
        self.seen: Seen = {}
        self.has_store = self.store.is_file()
        """Whether there has been a store."""
        if self.has_store:
            with RunStore(self.store, create=False) as kept:
                kept.runs()  # a store that cannot be read is said before a page is opened
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(f"port {port} cannot be used: {reason}; name another with --port.") from None

    @property
    def hosts(self) -> tuple[str, str]:
        """How a browser may name this server."""
        return f"{LOOPBACK}:{self.server_port}", f"localhost:{self.server_port}"

    @property
    def address(self) -> str:
        return f"http://{self.hosts[0]}/?token={self.token}"

    @property
    def cookie(self) -> str:
        return f"parley-ui-{self.server_port}"


@contextmanager
def serve(store: Path | str | None = None, port: int = 0, *, names: bool = False) -> Iterator[Server]:
    """A server in a thread of its own, until the block ends; port 0 takes a free one."""
    server = Server(store, port, names)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    """One request. What it is not sure of it refuses."""

    server: Server
    server_version, sys_version = "parley", ""
    timeout = 10

    def do_GET(self) -> None:
        where = urlsplit(self.path)
        asked = parse_qs(where.query, keep_blank_values=True)
        entering = where.path == "/" and "token" in asked
        if (reason := self._refused(entering)) is not None:
            self._answer(403, "text/plain", reason)
        elif entering:
            self._enter(asked["token"][-1])
        elif not self._known():
            self._answer(403, "text/plain", "Open the address that 'parley ui' has printed: it holds the token.")
        else:
            self._page(where.path, asked)

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Anything but GET and HEAD, and what is no request at all."""
        other = "This is no request that a browser makes."
        self._answer(code, "text/plain", "This server only reads: it answers GET and HEAD." if code == 501 else other)

    def _refused(self, entering: bool) -> str | None:
        """Why a request is none of a browser that was sent here by its user."""
        origin = self.headers.get("Origin")
        if self.headers.get("Host", "") not in self.server.hosts or len(self.headers.get_all("Host") or ()) != 1:
            return "This server answers only to its own name."
        if origin is not None and origin not in [f"http://{host}" for host in self.server.hosts]:
            return "This server answers no other site."
        if self._own() or (entering and origin is None and self._navigated()):
            return None
        return "This server answers no other site."

    def _own(self) -> bool:
        """Whether no other site has caused the request."""
        return self.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")

    def _navigated(self) -> bool:
        """Whether the browser's user comes here in a window of its own, as by clicking a link."""
        asked = self.command, self.headers.get("Sec-Fetch-Mode"), self.headers.get("Sec-Fetch-Dest")
        return asked == ("GET", "navigate", "document")

    def _enter(self, token: str) -> None:
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self._answer(403, "text/plain", "This is not the token of this start of 'parley ui'.")
            return
        cookie = f"{self.server.cookie}={self.server.token}; HttpOnly; SameSite=Strict; Path=/"
        if self._own():
            self._answer(303, "text/plain", "", {"Location": "/", "Set-Cookie": cookie})
        else:  # a redirection would still be the other site's doing: the page itself must ask for the next one
            self._answer(200, "text/html", _asset("enter.html"), {"Set-Cookie": cookie})

    def _known(self) -> bool:
        try:
            sent = SimpleCookie(self.headers.get("Cookie", "")).get(self.server.cookie)
        except CookieError:
            return False
        return sent is not None and hmac.compare_digest(sent.value.encode(), self.server.token.encode())

    def _page(self, path: str, asked: dict[str, list[str]]) -> None:
        try:
            if path == "/":
                self._answer(200, "text/html", _index(self.server.store))
            elif path in _ASSETS:
                self._answer(200, _ASSETS[path], _asset(path[1:]))
            elif path == "/runs.json":
                self._answer(200, "application/json", json.dumps(self._runs()))
            elif path == "/report":
                self._answer(200, "text/html", self._report(asked), policy=_REPORT)
            else:
                self._answer(404, "text/plain", "There is no such page.")
        except ParleyError as error:
            self._answer(404, "text/plain", str(error))

    def _runs(self) -> dict[str, Any]:
        """All runs in groups of seeds, the newest first."""
        if not self.server.store.is_file():
            gone = "The store is gone; if it comes back, this page will show it."
            yet = "There is no store yet; 'parley run' makes it, and this page will show it."
            return {"runs": [], "groups": [], "note": gone if self.server.has_store else yet}
        self.server.has_store = True
        with RunStore(self.server.store, create=False) as store:
            return listed(listing(store, self.server.seen)) | {"note": ""}

    def _report(self, asked: dict[str, list[str]]) -> str:
        if wrong := next((name for name in asked if name != "run"), None):
            raise InputError(f"a report is asked for with run=ID, not with {printable(wrong)}.")
        runs = asked.get("run", [])
        if len(runs) > MOST_IN_REPORT:
            raise InputError(f"a report takes at most {MOST_IN_REPORT} runs here; 'parley report' takes all.")
        with self.server.drawing, RunStore(self.server.store, create=False) as store:
            return report_page(store, runs, names=self.server.names)

    def _answer(
        self, code: int, kind: str, body: str, more: dict[str, str] | None = None, *, policy: str = _PAGE
    ) -> None:
        data = body.encode()
        self.send_response(code)
        always = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(data))}
        closed = f"{policy}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        for name, value in (_COMMON | always | {"Content-Security-Policy": closed} | (more or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        """The terminal is the user's."""


def _index(store: Path) -> str:
    return _asset("index.html").replace("STORE", text(store))


def _asset(name: str) -> str:
    package = "parley.report.page" if name == "page.css" else __package__
    return resources.files(package).joinpath("assets", name).read_text(encoding="utf-8")


def listed(groups: Sequence[Seeds]) -> dict[str, Any]:
    """What the page shows, the newest first; texts are plain, the page's script never makes markup of them.

    A run says in which of `groups` it is, null if it is the only one of its kind.
    """
    newest_first = sorted(groups, key=lambda group: max(entry.info.created for entry in group.entries), reverse=True)
    runs, titles = [], []
    for group in newest_first:
        several = len(group.entries) > 1
        if several:
            titles.append(_title(group))
        runs += [_line(entry) | {"group": len(titles) - 1 if several else None} for entry in group.entries]
    return {"runs": runs, "groups": titles}


def _line(entry: Entry) -> dict[str, Any]:
    info, name = entry.info, entry.headline
    rounds, seed = info.config.get("rounds"), info.config.get("seed")
    return {
        "id": info.id,
        "name": printable(info.name),
        "seed": seed if isinstance(seed, int) else None,
        "status": info.status,
        "round": info.rounds,
        "rounds": rounds if isinstance(rounds, int) else None,
        "metric": printable(name),
        "result": (metric_text(name, entry.numbers[name]) if name else "") + over_clients(entry.coverage),
        "megabytes": "" if entry.sent is None else megabytes(entry.sent),
        "begun": f"{info.created:%Y-%m-%d %H:%M}",
    }


def _title(group: Seeds) -> dict[str, Any]:
    name = group.headline
    mean = group.mean(name)
    result = "" if mean is None else metric_text(name, mean.value)
    result += "" if mean is None or isnan(mean.half) else f" ±{metric_text(name, mean.half)}"
    return {
        "title": printable(group.title),
        "done": group.done,
        "metric": printable(name),
        "result": result + over_clients(group.coverage),
        "megabytes": "" if group.sent is None else megabytes(group.sent),
    }
