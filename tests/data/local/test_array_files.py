"""Arrays in files: headers that lie, archives that explode, things that are not files."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from parley.core.errors import InputError
from parley.data import DataInfo, Federation
from parley.study.predict import read_inputs

X, Y = np.arange(6.0, dtype=np.float32).reshape(3, 2), np.array([0, 1, 1])


def npy(array: np.ndarray, claimed: tuple[int, ...] | None = None) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array)
    content = buffer.getvalue()
    if claimed is None:
        return content
    old, new = f"'shape': {array.shape}".encode(), f"'shape': {claimed}".encode()
    return content.replace(old + b", }" + b" " * (len(new) - len(old)), new + b", }")


def archive(file: Path, compression: int = zipfile.ZIP_STORED, **members: bytes) -> Path:
    with zipfile.ZipFile(file, "w", compression) as zipped:
        for name, content in members.items():
            zipped.writestr(f"{name}.npy", content)
    return file


def refused(folder: Path, match: str) -> None:
    with pytest.raises(InputError, match=match) as caught:
        Federation.from_folder(folder)
    assert str(caught.value).isprintable()


def test_arrays_of_all_kinds_of_numbers(tmp_path):
    for dtype in (np.int8, np.uint16, np.uint64, bool, ">i4"):
        np.savez_compressed(tmp_path / "a.npz", x=np.asfortranarray(X), y=Y.astype(dtype))
        federation = Federation.from_folder(tmp_path)
        assert federation.client("a").x.tolist() == X.tolist()
        assert federation.client("a").y.tolist() == Y.tolist()
    np.savez(tmp_path / "a.npz", x=X, y=np.array(["no", "yes", "no"]))
    assert Federation.from_folder(tmp_path).info.classes == ("no", "yes")
    (tmp_path / "a.npz").unlink()
    save_file({"x": torch.ones(2, 2).bfloat16(), "y": torch.tensor([0.5, 1.0]).bfloat16()}, tmp_path / "a.safetensors")
    assert Federation.from_folder(tmp_path).client("a").y.tolist() == [0.5, 1.0]


def test_all_files_decide_together(tmp_path):
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    np.savez(tmp_path / "b.npz", x=X, y=Y + 0.5)
    assert Federation.from_folder(tmp_path).info.kind == "regression"
    np.savez(tmp_path / "b.npz", x=X, y=np.array(["a", "b", "c"]))
    refused(tmp_path, r"y\[0\] of '.*b\.npz' holds 'a', but y\[0\] of '.*a\.npz' holds '0'")


@pytest.mark.parametrize(
    ("x", "y", "match"),
    [
        (X[:, :1], Y, r"b\.npz' has inputs of shape \(1,\) and torch.float32, but '.*a\.npz' has \(2,\)"),
        (X.astype(float), Y, "torch.float64, but .* torch.float32"),
        (X, Y[:2], "3 rows of x but 2 of y"),
        (X, np.array(1), "'y' of .* is a single number"),
        (np.array(1.0), Y, "'x' of .* is a single number"),
        (X[:0], Y[:0], "has no samples"),
        (X, np.array([b"a", b"b", b"c"]), r"b\.npz': samples must be numbers"),
        (X, Y.astype(complex), "must be numbers"),
        (X, np.array([0, 1, 2**63], np.uint64), "too large for a class"),
        (X, np.array([0, -1, 1]), r"y\[1\] of .* holds '-1', which is no class number"),
        (X, np.array([0, 1, 10**9]), "no class number"),
        (X, np.array([0.5, np.nan, 1]), r"y\[1\] of .* holds 'nan', which is no target"),
        (X, np.zeros((3, 2), int), r"targets of shape \(2,\)"),
        (np.where(X == 3, np.nan, X), Y, r"b\.npz' has the input nan at x\[1, 1\]"),
        (X.astype("m8[s]"), Y, "must be numbers"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, x, y, match):
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    np.savez(tmp_path / "b.npz", x=x, y=y)
    refused(tmp_path, match)


def test_damaged_and_lying_files(tmp_path):
    good = npy(Y)
    np.save(tmp_path / "a.npy", X)
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    refused(tmp_path, r"not a usable \.npz file")
    for claimed in ((3, 2_000_000), (10**9, 10**9), (-3, 2), (2, 2)):
        archive(tmp_path / "a.npz", x=npy(X, claimed), y=good)
        refused(tmp_path, r"not a usable \.npz file \(its header says|not a usable \.npz")
    archive(tmp_path / "a.npz", x=npy(X)[:-1], y=good)
    refused(tmp_path, "its header says 24 bytes, but 23 follow")
    archive(tmp_path / "a.npz", x=b"\x93NUMPY\x01\x00\x10\x00" + b"(" * 16, y=good)
    refused(tmp_path, "not a usable")
    archive(tmp_path / "a.npz", x=b"\x93NUMPY\x09\x00", y=good)
    refused(tmp_path, "not a usable")
    (tmp_path / "a.npz").unlink()
    header = b'{"x":{"dtype":"F32","shape":[1000000],"data_offsets":[0,8]}}'
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    refused(tmp_path, "not a usable")


BOMB = """
import resource, sys
from pathlib import Path
from parley.core.errors import InputError
from parley.data import DataInfo, Federation
from parley.study.predict import read_inputs
import psutil
limit = psutil.Process().memory_info().vms + (400 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for call in (
    lambda: Federation.from_folder(sys.argv[1]),
    lambda: read_inputs(Path(sys.argv[1], "a.npz"), DataInfo("a", (4,), 2, "classification")),
):
    try:
        call()
    except InputError as error:
        print(error)
"""


def test_an_archive_that_explodes_is_refused_before_it_does(tmp_path):
    rows = 640_000_000 // 16
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, head in (("x", np.zeros((0, 4), np.float32)), ("y", np.zeros(0, np.int64))):
            claimed = rows if name == "x" else 1
            with zipped.open(f"{name}.npy", "w", force_zip64=True) as member:
                member.write(npy(head, (claimed, *head.shape[1:])))
                left = claimed * int(np.prod(head.shape[1:])) * head.itemsize
                zeros = bytes(1 << 24)
                while left:
                    left -= member.write(zeros[: min(left, len(zeros))])
    assert (tmp_path / "a.npz").stat().st_size < 1_000_000
    said = subprocess.run(
        [sys.executable, "-c", BOMB, str(tmp_path)], capture_output=True, text=True, timeout=100, check=True
    )
    lines = said.stdout.splitlines()
    assert len(lines) == 2
    assert all("would unpack from 0.6 MB to 640 MB" in line for line in lines), said.stdout


def test_large_data_that_are_not_packed_are_no_bomb(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((1_000_000, 8), np.float32), y=np.zeros(1_000_000, int))
    assert Federation.from_folder(tmp_path).size("a") == 1_000_000


def test_only_regular_files_are_opened(tmp_path):
    info = DataInfo("a", (2,), 2, "classification")
    for name in ("a.csv", "a.npz", "a.safetensors", "a.parquet"):
        os.mkfifo(tmp_path / name)
        refused(tmp_path, "is a pipe, not a regular file")
        with pytest.raises(InputError, match="is a pipe"):
            read_inputs(tmp_path / name, info)
        (tmp_path / name).unlink()
    (tmp_path / "a.csv").mkdir()
    refused(tmp_path, "is a folder, not a regular file")
    (tmp_path / "a.csv").rmdir()
    (tmp_path / "a.csv").symlink_to(tmp_path / "gone")
    refused(tmp_path, "there is no file")
    for path in ("a\0b", tmp_path / ("n" * 5000), tmp_path / "no" / "where"):
        refused(path, "is not a folder")
    with pytest.raises(InputError, match="no file can have such a name"):
        read_inputs(Path("a\0b.csv"), info)
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "is not a folder")


def test_a_client_with_a_name_that_steers_the_terminal_is_refused(tmp_path):
    np.savez(tmp_path / "a\x1b[2J.npz", x=X, y=Y)
    refused(tmp_path, "control characters in its name")


@pytest.mark.parametrize("targets", [int, float])
def test_a_client_without_samples_is_named(tmp_path, targets):
    np.savez(tmp_path / "a.npz", x=np.ones((3, 2)), y=np.zeros(3, targets))
    np.savez(tmp_path / "b.npz", x=np.ones((0, 2)), y=np.zeros(0, targets))
    with pytest.raises(InputError, match=r"b\.npz' has no samples; every client needs at least one"):
        Federation.from_folder(tmp_path)
