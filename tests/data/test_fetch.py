"""Downloads, against a real HTTP server on this machine."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from parley.core.errors import InputError
from parley.data import datasets
from parley.data.fetch import Remote, cache_dir, fetch_files, locate

BODY = bytes(range(256)) * 5000


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def tar_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def zip_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


FILES = {
    "good": BODY,
    "damaged": BODY[:-1] + b"!",
    "endless": BODY * 3,
    "tar": tar_of({"in/a.bin": b"aa", "../evil": b"x"}),
    "zip": zip_of({"in/a.bin": b"aa"}),
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        name = self.path.strip("/")
        if name not in (*FILES, "short", "silent"):
            self.send_error(404)
            return
        self.send_response(200)
        if name != "silent":
            self.send_header("Content-Length", str(len(FILES.get(name, BODY))))
        self.end_headers()
        self.wfile.write(FILES.get(name, BODY) if name != "short" else BODY[:1000])

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def url(server, monkeypatch) -> str:
    server.asked.clear()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return f"http://127.0.0.1:{server.server_port}/"


def remote(url: str, *names: str, checksum: str = "", members: dict[str, str] | None = None) -> Remote:
    return Remote("set/file.bin", tuple(url + n for n in names), checksum or sha256(BODY), 1.0, members or {})


def leftovers(cache) -> list[str]:
    return [file.name for file in cache.rglob("*.part")]


def test_a_file_arrives_whole_with_progress_and_only_once(cache, url, server):
    seen = []
    [file] = fetch_files((remote(url, "good"),), lambda *args: seen.append(args))
    assert file == cache / "set/file.bin"
    assert file.read_bytes() == BODY
    assert seen[-1] == ("file.bin", len(BODY), len(BODY))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    fetch_files((remote(url, "good"),))
    assert server.asked == ["/good"]
    assert not leftovers(cache)


def test_a_server_that_does_not_say_the_length_will_do(cache, url):
    seen = []
    fetch_files((remote(url, "silent"),), lambda *args: seen.append(args))
    assert seen[-1] == ("file.bin", len(BODY), None)


def test_a_damaged_file_in_the_cache_is_replaced(cache, url):
    (cache / "set").mkdir()
    (cache / "set/file.bin").write_bytes(BODY[:-1])
    fetch_files((remote(url, "good"),))
    assert (cache / "set/file.bin").read_bytes() == BODY


def test_mirrors_are_tried_in_turn(cache, url, server):
    fetch_files((remote(url, "missing", "short", "good"),))
    assert server.asked == ["/missing", "/short", "/good"]
    assert (cache / "set/file.bin").read_bytes() == BODY


def test_a_damaged_mirror_is_passed_over(cache, url, server):
    fetch_files((remote(url, "damaged", "good"),))
    assert server.asked == ["/damaged", "/good"]
    assert (cache / "set/file.bin").read_bytes() == BODY
    assert not leftovers(cache)


def test_a_download_that_does_not_end_is_given_up(cache, url):
    seen = []
    with pytest.raises(InputError, match=r"more than .* bytes came"):
        fetch_files((remote(url, "endless"),), lambda *args: seen.append(args))
    assert max(done for _, done, _ in seen) < 3_000_000
    assert not leftovers(cache)


def test_what_a_killed_download_left_is_cleared(cache, url):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    (cache / "set").mkdir()
    (cache / f"set/file.bin.{child.pid}.part").write_bytes(b"half")
    (cache / f"set/file.bin.{os.getppid()}.part").write_bytes(b"still coming")
    fetch_files((remote(url, "good"),))
    assert leftovers(cache) == [f"file.bin.{os.getppid()}.part"]


@pytest.mark.parametrize(
    ("name", "match"),
    [("missing", "404"), ("short", "cannot be downloaded"), ("good", "damaged or not the official file")],
)
def test_what_goes_wrong_is_one_sentence_and_leaves_nothing(cache, url, name, match):
    checksum = "md5:" + "0" * 32 if name == "good" else ""
    with pytest.raises(InputError, match=match) as caught:
        fetch_files((remote(url, name, checksum=checksum),))
    if name == "good":
        assert "0" * 32 in str(caught.value)
        assert hashlib.md5(BODY).hexdigest() in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (cache / "set/file.bin").exists()
    assert not leftovers(cache)


def test_nobody_listens(cache):
    with pytest.raises(InputError, match="cannot be downloaded"):
        fetch_files((remote("http://127.0.0.1:9/", "good"),))


def test_an_unwritable_cache_is_named(url, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PARLEY_DATA", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"cannot be written.*\$PARLEY_DATA"):
        fetch_files((remote(url, "good"),))


@pytest.mark.parametrize("name", ["tar", "zip"])
def test_archives_give_the_named_members_and_nothing_else(cache, url, name):
    members = {"in/a.bin": "set/a.bin"}
    assert fetch_files((remote(url, name, checksum=sha256(FILES[name]), members=members),)) == [cache / "set/a.bin"]
    assert [file.name for file in cache.rglob("*") if file.is_file()] == ["a.bin"]
    assert (cache / "set/a.bin").read_bytes() == b"aa"


def test_a_damaged_member_is_fetched_again(cache, url, server):
    members, sums = {"in/a.bin": "set/a.bin"}, {"set/a.bin": sha256(b"aa")}
    archive = Remote("set/file.zip", (f"{url}zip",), sha256(FILES["zip"]), 1.0, members, sums)
    fetch_files((archive,))
    (cache / "set/a.bin").write_bytes(b"ab")
    fetch_files((archive,))
    assert (cache / "set/a.bin").read_bytes() == b"aa"
    fetch_files((archive,))
    assert server.asked == ["/zip", "/zip"]


@pytest.mark.parametrize("name", ["tar", "zip", "good"])
def test_an_archive_without_the_member_is_refused(cache, url, name):
    with pytest.raises(InputError, match="not as expected"):
        fetch_files((remote(url, name, checksum=sha256(FILES[name]), members={"in/b.bin": "set/b.bin"}),))
    assert not leftovers(cache)


def test_missing_data_say_what_to_do(cache):
    with pytest.raises(InputError, match=r"`parley data fetch mnist`.*\$PARLEY_DATA"):
        locate("mnist", "mnist/train-images-idx3-ubyte.gz")


def test_an_unpacked_file_will_do(cache):
    (cache / "plain").write_text("x")
    assert locate("some", "plain.gz") == cache / "plain"


def test_the_default_cache_is_in_the_home_folder(monkeypatch):
    monkeypatch.delenv("PARLEY_DATA", raising=False)
    assert cache_dir().parts[-2:] == (".cache", "parley")


@pytest.mark.parametrize("name", sorted(datasets))
def test_every_data_set_says_where_it_comes_from(name):
    loader = datasets[name]
    assert loader.source.startswith("http")
    assert loader.license
    assert loader.title.endswith((".", ")")) or loader.title
    for file in loader.files:
        kind, _, digest = file.checksum.partition(":")
        assert len(digest) == {"md5": 32, "sha1": 40, "sha256": 64}[kind]
        assert all(address.startswith("http") for address in file.urls)


@pytest.mark.parametrize("name", ["femnist", "shakespeare"])
def test_sets_made_by_hand_say_how(cache, name):
    assert not datasets[name].present
    with pytest.raises(InputError, match="LEAF"):
        datasets[name].fetch()
    with pytest.raises(InputError, match="LEAF"):
        datasets[name]()


def test_embedded_sets_need_no_fetch(cache):
    assert datasets["digits"].embedded
    assert datasets["digits"].fetch() == []
