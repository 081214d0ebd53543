"""Files are whole or not there, for their user alone where it is said, and what the system refuses is one sentence."""

import errno
import os
from pathlib import Path

import pytest

from parley.core import files
from parley.core.errors import InputError


def modes(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_file_replaces_the_one_before_as_a_whole(tmp_path: Path):
    path = tmp_path / "new" / "folder" / "file"
    files.write_atomically(path, b"one")
    files.write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_everything_is_on_disk_before_and_after_the_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The content before the name, then the name; and the names of new folders."""
    order: list[str] = []
    sync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        order.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        sync(descriptor)

    def replaced(self: Path, target: Path) -> Path:
        order.append("moved")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    files.write_atomically(tmp_path / "new" / "file", b"content")
    assert order[0] == tmp_path.name
    assert order[1].endswith(".part")
    assert order[2:] == ["moved", "new"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
def test_a_disk_that_takes_no_more_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int):
    def full(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    (tmp_path / "file").write_bytes(b"before")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=f"file cannot be written: {os.strerror(code)}"):
        files.write_atomically(tmp_path / "file", b"after")
    assert (tmp_path / "file").read_bytes() == b"before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path):
    def interrupted() -> None:
        with files.replacing(tmp_path / "file") as part:
            part.write_bytes(b"half of it")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_folders_in_the_way_are_one_sentence(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "below", tmp_path / "folder", tmp_path / ("x" * 300)):
        with pytest.raises(InputError, match="cannot be written"):
            files.write_atomically(path, b"")
    assert {entry.name for entry in tmp_path.rglob("*")} == {"file", "folder"}


def test_private_means_private(tmp_path: Path):
    before = os.umask(0)
    try:
        files.write_atomically(tmp_path / "open", b"")
        files.write_atomically(tmp_path / "private", b"", private=True)
        files.make_folder(tmp_path / "a" / "b", private=True)
    finally:
        os.umask(before)
    assert (modes(tmp_path / "open"), modes(tmp_path / "private")) == (0o666, 0o600)
    assert (modes(tmp_path / "a"), modes(tmp_path / "a" / "b")) == (0o700, 0o700)


def test_links_and_devices_are_not_followed(tmp_path: Path):
    (tmp_path / "real").write_bytes(b"real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe")
    assert files.read_regular(tmp_path / "real") == b"real"
    for name in ("link", "pipe", "none"):
        with pytest.raises(OSError):
            files.read_regular(tmp_path / name)
