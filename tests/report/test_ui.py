"""The local page: it follows the store in a real browser, writes nothing, and answers nobody but its user."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from parley.report.ui import Server, serve
from parley.store.records import Metric, RoundRecord
from parley.store.runs import RunStore

NASTY = '</td><script>document.title="owned"</script>'
CHROMIUM = shutil.which("chromium")


def fill(path: Path) -> list[str]:
    with RunStore(path) as made:
        ids = []
        for name in ("fedavg", NASTY):
            config = {
                "name": name,
                "seed": 0,
                "rounds": 4,
                "algorithm": {"name": "fedavg"},
                "data": {"name": "nowhere"},
            }
            ids.append(made.create(name, config, name))
            rows = [RoundRecord(n, {"central/accuracy": Metric(n / 8), "up/bytes": Metric(1e6)}) for n in range(5)]
            made.commit(ids[-1], rows, status="finished", summary={"central/accuracy": 0.5, "up/bytes": 5e6})
    return ids


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("store") / "runs.db"
    fill(path)
    with serve(path) as made:
        yield made


def ask(server: Server, path: str, method: str = "GET", **headers: str | None) -> tuple[int, dict[str, str], str]:
    """A request as a browser that has been let in makes it, some headers changed or (None) left out."""
    sent = {"Host": server.hosts[0], "Cookie": f"{server.cookie}={server.token}"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in sent.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def test_it_lists_runs_and_opens_reports(server: Server):
    code, _, body = ask(server, "/runs.json")
    newest, first = json.loads(body)["runs"]
    assert code == 200
    assert (first["status"], first["round"], first["rounds"]) == ("finished", 4, 4)
    assert (first["result"], first["megabytes"]) == ("central/accuracy 50.00%", "5")
    code, headers, report = ask(server, f"/report?run={first['id']}")
    assert code == 200
    assert "fedavg" in report
    assert "sandbox allow-scripts;" in headers["Content-Security-Policy"]
    assert "allow-same-origin" not in headers["Content-Security-Policy"]
    assert ask(server, f"/report?run={first['id']}&run={newest['id']}")[0] == 200
    assert NASTY not in ask(server, "/report")[2]
    assert ask(server, "/report?run=nobody")[0] == 404
    assert ask(server, "/../../etc/passwd")[0] == 404


def test_it_only_listens_to_this_machine(server: Server):
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize("host", [None, "", "evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", "localhost"])
def test_other_names_are_refused(server: Server, host: str | None):
    """A page of another site whose name was made to point here (DNS rebinding) sends its own name."""
    for path in ("/", "/runs.json", "/report", f"/?token={server.token}"):
        code, headers, body = ask(server, path, Host=host)
        assert code == 403
        assert "Set-Cookie" not in headers
        assert "fedavg" not in body


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_requests_that_other_sites_cause_are_refused(server: Server, headers: dict[str, str]):
    for path in ("/runs.json", "/report", f"/?token={server.token}"):
        assert ask(server, path, **headers)[0] == 403


@pytest.mark.parametrize("cookie", [None, "", "x=y", "parley-ui-PORT=", "parley-ui-PORT=wrong", "parley-ui-PORT=\xe9"])
def test_without_the_token_nothing_is_told(server: Server, cookie: str | None):
    sent = None if cookie is None else cookie.replace("PORT", str(server.server_port))
    for path in ("/", "/runs.json", "/report", "/ui.js"):
        code, _, body = ask(server, path, Cookie=sent)
        assert (code, "runs.db" in body) == (403, False)
    assert ask(server, "/?token=wrong", Cookie=sent)[0] == 403


def test_the_token_becomes_a_cookie_that_other_sites_cannot_send(server: Server):
    code, headers, _ = ask(server, f"/?token={server.token}", Cookie=None)
    assert (code, headers["Location"]) == (303, "/")
    assert re.fullmatch(r"parley-ui-\d+=[\w-]{32}; HttpOnly; SameSite=Strict; Path=/", headers["Set-Cookie"])


@pytest.mark.parametrize("path", ["/", "/runs.json", "/report", "/ui.js", "/ui.css", "/page.css", "/nothing"])
def test_every_answer_is_closed(server: Server, path: str):
    _, headers, _ = ask(server, path)
    assert not any(name.lower().startswith("access-control") for name in headers)
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == ("nosniff", "no-referrer")
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "Python" not in headers["Server"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_there_is_nothing_but_reading(server: Server, method: str):
    before = hashlib.sha256(server.store.read_bytes()).digest()
    assert ask(server, "/runs.json", method)[0] == 501
    ask(server, "/report")
    assert hashlib.sha256(server.store.read_bytes()).digest() == before


def test_a_store_that_comes_later_is_shown(tmp_path: Path):
    with serve(tmp_path / "runs.db") as server:
        assert "no store yet" in json.loads(ask(server, "/runs.json")[2])["note"]
        assert not (tmp_path / "runs.db").exists()
        fill(tmp_path / "runs.db")
        assert len(json.loads(ask(server, "/runs.json")[2])["runs"]) == 2


def test_a_port_that_is_taken_is_said(server: Server):
    from parley.core.errors import InputError

    with pytest.raises(InputError, match=f"port {server.server_port} cannot be used"), serve(port=server.server_port):
        pass


FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--enable-logging=stderr", "--virtual-time-budget=4000",
)  # fmt: skip


def browsed(address: str, folder: Path) -> tuple[str, str]:
    if CHROMIUM is None:
        (pytest.fail if "chromium" in os.environ.get("PARLEY_REQUIRE", "") else pytest.skip)("needs Chromium")
    done = subprocess.run(
        [CHROMIUM, *FLAGS, f"--user-data-dir={folder}", "--dump-dom", address],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done.stdout, done.stderr


def test_a_browser_follows_the_store(server: Server, tmp_path: Path):
    dom, said = browsed(server.address, tmp_path / "profile")
    assert 'data-rows="2"' in dom
    assert "2 runs, 0 running" in dom
    assert dom.count('<tr><td><input type="checkbox"') == 2
    assert "<title>Runs in " in dom
    assert "<script>document" not in dom
    assert "CONSOLE" not in said


def test_a_page_of_another_site_learns_nothing(server: Server, tmp_path: Path):
    """A page elsewhere tries a script, a picture, a frame and fetch, with the browser that has been let in."""
    browsed(server.address, tmp_path / "profile")
    page = tmp_path / "evil.html"
    place = f"http://{server.hosts[0]}"
    page.write_text(f"""<script>document.title = "tried";</script>
        <script src="{place}/ui.js"></script><iframe src="{place}/"></iframe><div id="found"></div>
        <script>fetch("{place}/runs.json", {{credentials: "include"}}).then(r => r.text())
        .then(t => found.textContent = "told " + t, e => found.textContent = "nothing")</script>""")
    dom, _ = browsed(page.as_uri(), tmp_path / "profile")
    assert "<title>tried</title>" in dom
    assert '<div id="found">nothing</div>' in dom
