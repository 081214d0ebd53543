"""SVHN: house numbers from street views (Netzer et al. 2011), the official 32x32 .mat files."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.data.dataset import Dataset
from parley.data.fetch import Remote
from parley.data.formats import readable
from parley.data.sets.base import dataset, images

HOME = "http://ufldl.stanford.edu/housenumbers/"
FILES = tuple(
    Remote(f"svhn/{part}_32x32.mat", (f"{HOME}{part}_32x32.mat",), f"md5:{md5}", size)
    for part, md5, size in (
        ("train", "e26dedcc434d2e4c54c9b2d4a06d8373", 182.0),
        ("test", "eb5a983be6a315427106f1b164d9cef3", 64.3),
    )
)


@dataset("svhn", source=HOME, license="non-commercial use only", files=FILES)
def svhn(verify: bool = True) -> Dataset:
    """99,289 colour digits of 32x32 pixels from house numbers; the official 73,257 / 26,032 split."""
    train, test = (_read(svhn.locate(remote.path, verify)) for remote in FILES)
    return images(svhn, train, test, tuple(string.digits))


def _read(file: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    with readable(file, "MATLAB"):
        try:
            content = loadmat(file)
        except (MatReadError, RuntimeError) as error:
            raise ValueError(str(error)) from error
        pixels, labels = content["X"], content["y"][:, 0]
        if pixels.ndim != 4 or pixels.shape[2] != 3:
            raise ValueError(f"X has shape {pixels.shape}")
    # Height, width, channel, sample -> sample, channel, height, width; the files write digit 0 as label 10.
    return np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), labels % 10
