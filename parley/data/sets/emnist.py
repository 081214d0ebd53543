"""EMNIST: handwritten letters and digits (Cohen et al. 2017), idx files inside one large archive."""

from __future__ import annotations

import string
from typing import Any

from parley.data.dataset import Dataset
from parley.data.fetch import Remote
from parley.data.formats import read_idx
from parley.data.sets.base import Loader, dataset, images

HOME = "https://www.nist.gov/itl/products-and-services/emnist-dataset"
LICENSE = "public domain (NIST Special Database 19)"


def _files(split: str) -> tuple[str, ...]:
    kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
    return tuple(f"emnist-{split}-{part}-{kind}.gz" for part in ("train", "test") for kind in kinds)


ARCHIVE = Remote(
    "emnist/gzip.zip",
    (
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/gzip.zip",
    ),
    "md5:58c8d27c78d21e728a6bc7b3cc06412e",
    562.0,
    {f"gzip/{name}": f"emnist/{name}" for split in ("letters", "digits") for name in _files(split)},
)


@dataset("emnist-letters", source=HOME, license=LICENSE, files=(ARCHIVE,))
def emnist_letters() -> Dataset:
    """145,600 handwritten letters of 28x28 pixels, 26 classes (upper and lower case together)."""
    return _load(emnist_letters, "letters", tuple(string.ascii_lowercase), first_label=1)


@dataset("emnist-digits", source=HOME, license=LICENSE, files=(ARCHIVE,))
def emnist_digits() -> Dataset:
    """280,000 handwritten digits of 28x28 pixels, ten balanced classes."""
    return _load(emnist_digits, "digits", tuple(string.digits), first_label=0)


def _load(loader: Loader[Any], split: str, classes: tuple[str, ...], first_label: int) -> Dataset:
    x, y, z, w = (read_idx(loader.locate(f"emnist/{name}")) for name in _files(split))
    # The files hold each image column by column; swapping the axes turns it upright, as in MNIST.
    train, test = (
        (pixels.swapaxes(1, 2)[:, None], labels.astype(int) - first_label) for pixels, labels in ((x, y), (z, w))
    )
    return images(loader, train, test, classes)
