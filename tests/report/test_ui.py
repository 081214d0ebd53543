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

from parley.core.errors import InputError
from parley.report import ui
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
    assert (first["metric"], first["result"], first["megabytes"]) == ("central/accuracy", "50.00%", "5")
    assert (first["seed"], first["group"]) == (0, None)
    code, headers, report = ask(server, f"/report?run={first['id']}")
    assert code == 200
    assert "fedavg" in report
    assert "sandbox allow-scripts;" in headers["Content-Security-Policy"]
    assert "allow-same-origin" not in headers["Content-Security-Policy"]
    assert ask(server, f"/report?run={first['id']}&run={newest['id']}")[0] == 200
    assert NASTY not in ask(server, "/report")[2]
    assert ask(server, "/report?run=nobody")[0] == 404
    for wrong in ("rnu=x", "run=", f"run={first['id']}&x="):
        assert ask(server, f"/report?{wrong}")[0] == 404
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


CLICKED = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_link_with_the_token_may_be_clicked_elsewhere(server: Server, site: str):
    """As in a terminal that is itself a page of a browser."""
    came = CLICKED | {"Sec_Fetch_Site": site, "Cookie": None}
    code, headers, body = ask(server, f"/?token={server.token}", **came)
    assert (code, "Location" in headers, "runs.db" in body) == (200, False, False)
    assert "SameSite=Strict" in headers["Set-Cookie"]
    assert "default-src 'none'" in headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    "changes",
    [
        {"path": "/"}, {"path": "/?token=wrong"}, {"path": "/?token="}, {"path": "/report?token=TOKEN"},
        {"path": "/runs.json?token=TOKEN"}, {"method": "HEAD"}, {"Sec_Fetch_Dest": "iframe"},
        {"Sec_Fetch_Dest": "embed"}, {"Sec_Fetch_Dest": "empty"}, {"Sec_Fetch_Dest": None},
        {"Sec_Fetch_Mode": "no-cors"}, {"Sec_Fetch_Mode": "cors"}, {"Sec_Fetch_Mode": None},
        {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Host": "evil.example"},
    ],
)  # fmt: skip
def test_nothing_else_that_another_site_causes_is_answered(server: Server, changes: dict[str, str | None]):
    sent = CLICKED | changes
    path = (sent.pop("path", None) or "/?token=TOKEN").replace("TOKEN", server.token)
    code, headers, body = ask(server, path, sent.pop("method", None) or "GET", **sent)
    assert (code, "Set-Cookie" in headers, "runs.db" in body) == (403, False, False)


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
    code, headers, body = ask(server, "/runs.json", method)
    assert (code, body) == (501, "This server only reads: it answers GET and HEAD.")
    assert headers["Content-Type"].startswith("text/plain")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    ask(server, "/report")
    assert hashlib.sha256(server.store.read_bytes()).digest() == before


def test_a_store_that_comes_later_is_shown(tmp_path: Path):
    with serve(tmp_path / "runs.db") as server:
        assert "no store yet" in json.loads(ask(server, "/runs.json")[2])["note"]
        assert not (tmp_path / "runs.db").exists()
        fill(tmp_path / "runs.db")
        assert len(json.loads(ask(server, "/runs.json")[2])["runs"]) == 2
        (tmp_path / "runs.db").unlink()
        assert "The store is gone" in json.loads(ask(server, "/runs.json")[2])["note"]


def test_a_store_that_cannot_be_read_is_said_at_once(tmp_path: Path):
    (tmp_path / "runs.db").write_bytes(b"no database " * 100)
    with pytest.raises(InputError, match=r"runs\.db"), serve(tmp_path / "runs.db"):
        pass


def test_a_run_that_goes_on_and_one_that_was_killed_show_their_last_numbers(tmp_path: Path):
    config = {"name": "a", "rounds": 9, "algorithm": {"name": "fedavg"}}
    rows = [RoundRecord(n, {"central/accuracy": Metric(n / 8), "up/bytes": Metric(1e6)}) for n in range(5)]
    with RunStore(tmp_path / "runs.db") as made, serve(tmp_path / "runs.db") as server:
        ids = [made.create("a", config | {"seed": seed}, "a") for seed in range(4)]
        for run in ids[:2]:
            made.commit(run, rows, status="finished", summary={"central/accuracy": 0.5, "up/bytes": 5e6})
        made.claim(ids[2])
        for run in ids[2:]:
            made.commit(run, rows[:3])

        def shown() -> list[tuple[str, ...]]:
            found = json.loads(ask(server, "/runs.json")[2])
            assert [run["seed"] for run in found["runs"]] == [0, 1, 2, 3]
            assert {run["group"] for run in found["runs"]} == {0}
            (group,) = found["groups"]
            assert (group["title"], group["done"]) == ("a, seeds 0-3", "2 of 4 done")
            assert (group["result"], group["megabytes"]) == ("50.00% ±0.00%", "5")
            return [(run["status"], run["result"], run["megabytes"]) for run in found["runs"]]

        done = ("finished", "50.00%", "5")
        assert shown() == [done, done, ("running", "25.00%", "3"), ("interrupted", "25.00%", "3")]
        made.commit(ids[2], rows[3:])
        assert shown() == [done, done, ("running", "50.00%", "5"), ("interrupted", "25.00%", "3")]


def test_a_port_can_be_used_again_at_once(tmp_path: Path):
    """The server closes its connections first, which leaves them waiting on its port."""
    with serve(tmp_path / "runs.db") as server:
        port = server.server_port
        ask(server, "/")
    with serve(tmp_path / "runs.db", port) as server:
        assert ask(server, "/")[0] == 200


def test_a_port_that_is_taken_is_said(server: Server):
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
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout, done.stderr


def test_a_browser_follows_the_store(server: Server, tmp_path: Path):
    dom, said = browsed(server.address, tmp_path / "profile")
    assert 'data-rows="2"' in dom
    assert "2 runs, 0 running" in dom
    assert dom.count('<tr class="alone"><td><input type="checkbox"') == 2
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


def test_a_link_on_another_page_leads_in(server: Server, tmp_path: Path):
    page = tmp_path / "terminal.html"
    page.write_text(f"""<a href="{server.address}" rel="noreferrer">here</a>
        <script>document.querySelector("a").click()</script>""")
    dom, _ = browsed(page.as_uri(), tmp_path / "profile")
    assert "2 runs, 0 running" in dom
    assert server.token not in dom


def test_choices_follow_the_list(tmp_path: Path):
    """What is chosen is counted, also where the filter hides it, and forgotten once it is deleted."""
    assets = Path(ui.__file__).parent / "assets"
    runs = [
        {
            "id": name,
            "name": name,
            "seed": seed,
            "status": "finished",
            "round": 4,
            "rounds": 4,
            "metric": "loss",
            "result": "0.5",
            "megabytes": "5",
            "begun": "",
            "group": 0 if name[0] == "a" else None,
        }
        for seed, name in enumerate(["a1", "a2", "b"])
    ]
    group = {"title": "a, seeds 0-1", "done": "2 of 2 done", "metric": "", "result": "", "megabytes": ""}
    later = [{**runs[1], "group": None}, runs[2]]
    script = f"""
        const told = [], lists = [{json.dumps([runs, [group]])}, {json.dumps([later, []])}];
        window.fetch = async () => {{
          const [runs, groups] = lists.length > 1 ? lists.shift() : lists[0];
          return {{ ok: true, json: async () => ({{ runs, groups, note: "" }}) }};
        }};
        const note = () => told.push(byId("chosen").textContent, byId("said").textContent);
        const filter = (words) => {{
          byId("filter").value = words;
          byId("filter").dispatchEvent(new Event("input"));
        }};
        setTimeout(() => {{
          document.querySelector(".seeds input").click();
          note();
          filter("seed 2");
          note();
          filter("nothing");
          told.push(byId("runs").textContent);
          filter("");
        }}, 500);
        setTimeout(() => {{
          note();
          byId("none").click();
          note();
          document.title = JSON.stringify(told);
        }}, 2800);"""
    page = (assets / "index.html").read_text()
    page = page.replace('<script src="/ui.js" defer></script>', "")
    page = page.replace("</body>", f"<script>{script}</script><script>{(assets / 'ui.js').read_text()}</script></body>")
    (tmp_path / "page.html").write_text(page)
    dom, _ = browsed((tmp_path / "page.html").as_uri(), tmp_path / "profile")
    (title,) = re.findall("<title>(.*)</title>", dom)
    assert json.loads(title) == [
        "Report of 2 chosen runs",
        "3 runs, 0 running",
        "Report of 2 chosen runs (2 not shown)",
        "3 runs, 0 running; 1 shown",
        "No run matches.",
        "Report of 1 chosen run",
        "2 runs, 0 running",
        "Report of the chosen runs",
        "2 runs, 0 running",
    ]
