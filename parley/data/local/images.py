"""Folders of images: one per client, with a sub-folder per class."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parley.core.errors import InputError
from parley.core.files import regular_file
from parley.core.text import shown
from parley.data.checks import SampleForm
from parley.data.client import ClientData, DataInfo
from parley.data.local.bounds import parsed
from parley.data.local.entries import entries, warn_left_out
from parley.data.sources import Source

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
MOST_PIXELS = 1 << 26


@dataclass(frozen=True)
class ImageSource(Source):
    """Image files with their classes; pixels are read on demand."""

    files: tuple[tuple[Path, ...], ...]
    labels: tuple[Tensor, ...]
    size_: tuple[int, int]
    """Height and width."""
    resize: bool
    grey: bool

    def size(self, i: int) -> int:
        return len(self.files[i])

    def form(self) -> SampleForm:
        shape = torch.Size((1 if self.grey else 3, *self.size_))
        return SampleForm(shape, torch.float32, torch.Size(), torch.int64)

    def load(self, i: int) -> ClientData:
        return ClientData(torch.stack([self._pixels(file) for file in self.files[i]]), self.labels[i])

    def _pixels(self, file: Path) -> Tensor:
        height, width = self.size_
        with _opened(file) as image:
            plain = image.convert("L" if self.grey else "RGB")
            if plain.size != (width, height):
                if not self.resize:
                    raise InputError(f"'{shown(file)}' has changed its size; give size=... to resize all images.")
                plain = plain.resize((width, height))
            pixels = np.asarray(plain, np.float32) / 255
        return torch.from_numpy(pixels.reshape(height, width, -1).transpose(2, 0, 1).copy())


def open_image_folders(
    path: Path, size: int | tuple[int, int] | None, grey: bool
) -> tuple[ImageSource, tuple[str, ...], DataInfo]:
    """The source, client ids (folder names, sorted) and what the folders tell; only the images' headers are read."""
    folders = {folder.name: folder for folder in subfolders(path)}
    return open_images(folders, shown(path.resolve().name), size, grey, path)


def open_images(
    folders: Mapping[str, Path], name: str, size: int | tuple[int, int] | None, grey: bool, path: Path
) -> tuple[ImageSource, tuple[str, ...], DataInfo]:
    """The same for folders of images by class wherever they are, by client; `path` is named where there are none."""
    pillow()
    left_out: list[Path] = []
    clients = {client: _by_class(folder, left_out) for client, folder in folders.items()}
    if not clients:
        raise InputError(
            f"'{shown(path)}' has no folders; give one per client, each with a folder of images per class."
        )
    classes = tuple(sorted({name for by_class in clients.values() for name in by_class}))
    bad = next((name for name in (*clients, *classes) if not name.isprintable()), None)
    if bad is not None:
        raise InputError(
            f"the folder '{shown(bad)}' has control characters in its name, which becomes a client or class."
        )
    files = tuple(tuple(file for name in sorted(by_class) for file in by_class[name]) for by_class in clients.values())
    labels = tuple(
        torch.tensor([classes.index(name) for name in sorted(by_class) for _ in by_class[name]])
        for by_class in clients.values()
    )
    if size is None:
        height, width = _common_size([file for client_images in files for file in client_images])
    else:
        height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < 1 or height * width > MOST_PIXELS:
        raise InputError(f"images of {height} x {width} pixels cannot be had.")
    warn_left_out(path, left_out, SUFFIXES)
    info = DataInfo(name, (1 if grey else 3, height, width), len(classes), "classification", classes)
    return ImageSource(files, labels, (height, width), size is not None, grey), tuple(clients), info


def holds_images(path: Path) -> bool:
    """Whether a folder has folders of folders in it, and so images by client and class."""
    return path.is_dir() and any(subfolders(folder) for folder in subfolders(path))


def subfolders(path: Path) -> list[Path]:
    """The folders in a folder, by name, hidden ones left out."""
    return [entry for entry in entries(path, "one folder per client") if entry.is_dir()]


def pillow() -> Any:
    """Pillow's Image module, or a sentence."""
    try:
        from PIL import Image
    except ImportError:
        raise InputError("reading images needs the package Pillow: pip install pillow.") from None
    return Image


def _by_class(client: Path, left_out: list[Path]) -> dict[str, list[Path]]:
    """Images by class; what is none of them is added to `left_out`."""
    by_class = {}
    for folder in entries(client, "one folder per class"):
        if not folder.is_dir():
            left_out.append(folder)
            continue
        inside = entries(folder, "images")
        left_out += [entry for entry in inside if entry.suffix.lower() not in SUFFIXES]
        if files := [entry for entry in inside if entry.suffix.lower() in SUFFIXES]:
            by_class[folder.name] = files
    if not by_class:
        raise InputError(f"'{shown(client)}' has no images in folders of their classes ({', '.join(SUFFIXES)}).")
    return by_class


def _common_size(files: list[Path]) -> tuple[int, int]:
    sizes: dict[tuple[int, int], Path] = {}
    for file in files:
        with _opened(file) as image:
            sizes.setdefault((image.height, image.width), file)
        if len(sizes) > 1:
            (a, first), (b, second) = sizes.items()
            raise InputError(
                f"'{shown(first)}' has {a[0]} x {a[1]} pixels, but '{shown(second)}' {b[0]} x {b[1]}; "
                "give size=... to resize all images."
            )
    return next(iter(sizes))


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """An image, opened; whatever is wrong with it is one sentence."""
    regular_file(file)
    with parsed(f"'{shown(file)}'", "image"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's hints about profiles; sizes are checked here
        with pillow().open(file) as image:
            if image.width * image.height > MOST_PIXELS:
                raise InputError(f"'{shown(file)}' has {image.width} x {image.height} pixels, more than any picture.")
            yield image
