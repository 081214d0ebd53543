"""Exports to disks that are full and by processes that are killed: one sentence, and nothing half-written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from torch import nn

from parley import models
from parley.core.errors import InputError
from parley.models.folder import new_folder
from parley.store.runs import RunStore
from parley.study.toml import study_from_dict
from parley.study.train import train

LIMITED = """
import resource, sys
size = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
from parley.cli.main import main
main(sys.argv[2:])
"""
LARGEST = 300_000
"""Bytes that a file may have: the store's need less, the model's more."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    table = {"rounds": 1, "data": {"name": "iris", "clients": 2}, "model": {"name": "mlp", "hidden": [400, 400]}}
    path = tmp_path_factory.mktemp("store") / "runs.db"
    with RunStore(path) as runs:
        train(study_from_dict(table | {"algorithm": {"name": "fedavg"}}), store=runs)
    return path


def export(store: Path, folder: Path, *more: str, size: int = LARGEST) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LIMITED, str(size), "export", "last", str(folder), "--store", str(store), *more]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def refused(done: subprocess.CompletedProcess[str], why: str) -> None:
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert done.stderr.splitlines() == [done.stderr.strip()]
    assert f"cannot be written: {why}" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("formats", [("torchscript",), ("onnx",), ("safetensors",), ()])
def test_a_file_that_may_not_grow_is_an_error_and_leaves_nothing(store: Path, tmp_path: Path, formats: tuple[str, ...]):
    refused(export(store, tmp_path / "model", *(f"--format={name}" for name in formats)), "File too large")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    with suppress(OSError):  # there is no such program
        mounting = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
        subprocess.run(mounting, capture_output=True, check=False)
    if not folder.is_mount():
        pytest.skip("this user may not mount a small file system to fill it")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("free", [20_000, 700_000])
def test_a_full_disk_keeps_the_earlier_export(store: Path, small_disk: Path, free: int):
    """With 700,000 bytes the weights fit and the second file does not."""
    models.export_module(nn.Linear(4, 2), torch.ones(2, 4), small_disk / "model", ("safetensors",))
    before = (small_disk / "model" / "card.json").read_bytes()
    size = os.statvfs(small_disk)
    (small_disk / "filling").write_bytes(bytes(size.f_bavail * size.f_bsize - free))
    refused(export(store, small_disk / "model", size=2**40), "No space left on device")
    assert sorted(path.name for path in small_disk.iterdir()) == ["filling", "model"]
    assert (small_disk / "model" / "card.json").read_bytes() == before


class Unwritable(nn.Linear):
    """Writes the folders of transformers as that package does where a disk is full, or fails for its own reasons."""

    def __init__(self, error: Exception) -> None:
        super().__init__(4, 2)
        self.error = error

    def __deepcopy__(self, memo: object) -> Unwritable:
        return self

    def save_pretrained(self, folder: Path) -> None:
        raise self.error

    def reloaded(self, folder: Path) -> Unwritable:
        return self


def test_what_safetensors_says_of_a_full_disk_is_understood(tmp_path: Path):
    full = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    for error in (full, OSError(28, "No space left on device")):
        with pytest.raises(InputError, match=r"cannot be written: No space left on device\."):
            models.export_module(Unwritable(error), torch.ones(2, 4), tmp_path / "model")
    for error in (SafetensorError("Error while serializing: odd"), OSError("could not get source code")):
        with pytest.raises(InputError, match="could not be exported"):
            models.export_module(Unwritable(error), torch.ones(2, 4), tmp_path / "model", ("transformers",))
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from parley.models import folder
real = Path.rename
def rename(path, target):
    real(path, target)
    if sys.argv[2] == "swapping":
        os.kill(os.getpid(), signal.SIGKILL)
Path.rename = rename
with folder.new_folder(Path(sys.argv[1]), marker="card") as draft:
    (draft / "card").write_text("new")
    if sys.argv[2] == "writing":
        os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(target: Path, when: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(target), when], check=False)
    assert done.returncode == -signal.SIGKILL


def write(target: Path, text: str) -> None:
    with new_folder(target, marker="card") as draft:
        (draft / "card").write_text(text)


@pytest.mark.parametrize("then", ["out", "other"])
def test_what_killed_exports_left_is_cleared_by_the_next(tmp_path: Path, then: str):
    killed(tmp_path / "out", "writing")
    assert len(list(tmp_path.iterdir())) == 1
    (tmp_path / ".mine.draft").mkdir()
    write(tmp_path / then, "next")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mine.draft", then]


def test_a_kill_between_two_names_loses_nothing(tmp_path: Path):
    write(tmp_path / "out", "old")
    killed(tmp_path / "out", "swapping")
    assert not (tmp_path / "out").exists()
    with pytest.raises(RuntimeError, match="power"), new_folder(tmp_path / "out", marker="card"):
        raise RuntimeError("power")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "card").read_text() == "old"


def test_the_draft_of_a_living_export_stays(tmp_path: Path):
    with new_folder(tmp_path / "one", marker="card") as draft:
        write(tmp_path / "two", "second")
        (draft / "card").write_text("first")
    assert {path.name: (path / "card").read_text() for path in tmp_path.iterdir()} == {"one": "first", "two": "second"}
