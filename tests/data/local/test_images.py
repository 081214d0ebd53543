"""Folders of images by client and class."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from parley.core.errors import InputError, ParleyWarning
from parley.data import Federation

Image = pytest.importorskip("PIL.Image")


def save(file: Path, colour: tuple[int, int, int], size: tuple[int, int] = (4, 3)) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(file)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "scans"
    save(root / "north/cat/1.png", (255, 0, 0))
    save(root / "north/dog/1.PNG", (0, 255, 0))
    save(root / "north/dog/2.bmp", (0, 0, 255))
    save(root / "south/eel/1.png", (51, 51, 51))
    (root / ".hidden").mkdir()
    return root


def test_clients_and_classes_are_folders(root):
    federation = Federation.from_image_folders(root)
    assert tuple(federation.ids) == ("north", "south")
    assert federation.info.classes == ("cat", "dog", "eel")
    assert federation.info.shape == (3, 3, 4)
    north = federation.client("north")
    assert north.y.tolist() == [0, 1, 1]
    np.testing.assert_array_equal(north.x[:, :, 0, 0], np.eye(3))
    assert federation.client("south").x.unique().tolist() == pytest.approx([0.2])
    assert federation.sizes().tolist() == [3, 1]


def test_what_is_left_out_is_named(root):
    (root / "south/eel/2.dcm").write_text("a format that is not read")
    save(root / "south/3.png", (0, 0, 0))
    with pytest.warns(ParleyWarning, match=r"leaves out 'south/3\.png' and 'south/eel/2\.dcm': only \.png, ") as said:
        assert Federation.from_image_folders(root).sizes().tolist() == [3, 1]
    assert len(said) == 1


def test_images_of_several_sizes_are_resized_or_refused(root):
    save(root / "south/cat/9.png", (0, 0, 0), (8, 8))
    with pytest.raises(InputError, match=r"has 3 x 4 pixels, but '.*9\.png' 8 x 8; give size"):
        Federation.from_image_folders(root)
    federation = Federation.from_image_folders(root, size=(6, 5), grey=True)
    assert federation.client("south").x.shape == (2, 1, 6, 5)
    assert Federation.from_image_folders(root, size=7).info.shape == (3, 7, 7)
    with pytest.raises(InputError, match="cannot be had"):
        Federation.from_image_folders(root, size=0)


def test_what_is_no_image_is_named(root):
    bad = root / "south/cat/9.png"
    bad.parent.mkdir()
    bad.write_bytes(b"\x89PNG nothing")
    with pytest.raises(InputError, match=r"9\.png' is not a usable image file"):
        Federation.from_image_folders(root)
    save(bad, (0, 0, 0))
    whole = bad.read_bytes()
    bad.write_bytes(whole[:45])
    with pytest.raises(InputError, match=r"9\.png'"):
        Federation.from_image_folders(root).client("south")
    bad.unlink()
    os.mkfifo(bad)
    with pytest.raises(InputError, match="is a pipe"):
        Federation.from_image_folders(root)
    bad.unlink()
    header = bytearray(whole)
    header[16:24] = (100_000).to_bytes(4, "big") * 2
    bad.write_bytes(header)
    with pytest.raises(InputError, match=r"9\.png'"):
        Federation.from_image_folders(root)


def test_folders_without_what_is_needed(tmp_path, root, monkeypatch):
    with pytest.raises(InputError, match="is not a folder"):
        Federation.from_image_folders(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="has no folders; give one per client"):
        Federation.from_image_folders(tmp_path / "empty")
    (root / "west").mkdir()
    with pytest.raises(InputError, match=r"'.*west' has no images"):
        Federation.from_image_folders(root)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InputError, match="needs the package Pillow: pip install pillow"):
        Federation.from_image_folders(root)
