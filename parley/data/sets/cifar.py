"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009) in their binary version."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.core.errors import InputError
from parley.data.dataset import Dataset
from parley.data.fetch import Remote
from parley.data.formats import read_lines, read_records
from parley.data.sets.base import dataset, images

HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"
LICENSE = "no explicit license; for research, cite Krizhevsky (2009)"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHA1 = {
    "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
    "test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c",
}
TEN = Remote(
    "cifar-10-binary.tar.gz",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    "md5:c32a1d4ab5d03f1284b67883e8d87530",
    170.1,
    {f"cifar-10-batches-bin/{name}": f"cifar-10-batches-bin/{name}" for name in SHA1},
    {f"cifar-10-batches-bin/{name}": f"sha1:{sha1}" for name, sha1 in SHA1.items()},
)
HUNDRED = Remote(
    "cifar-100-binary.tar.gz",
    ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
    "md5:03b5dce01913d631647c71ecec9e9cb8",
    168.5,
    {
        f"cifar-100-binary/{name}": f"cifar-100-binary/{name}"
        for name in ("train.bin", "test.bin", "fine_label_names.txt")
    },
)


@dataset("cifar10", source=HOME, license=LICENSE, files=(TEN,))
def cifar10(verify: bool = True) -> Dataset:
    """60,000 colour pictures of 32x32 pixels, ten classes; the official 50,000 / 10,000 split."""
    parts = []
    for file in TEN.paths:
        labels, pixels = read_records(cifar10.locate(file, verify), 1, 3072)
        parts.append((_pictures(pixels), labels[:, 0]))
    train = tuple(np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
    return images(cifar10, (train[0], train[1]), parts[-1], CLASSES)


@dataset("cifar100", source=HOME, license=LICENSE, files=(HUNDRED,))
def cifar100() -> Dataset:
    """60,000 colour pictures of 32x32 pixels, 100 classes in 20 coarse ones (for Pachinko)."""
    labels, pixels = read_records(cifar100.locate("cifar-100-binary/train.bin"), 2, 3072)
    test_labels, test_pixels = read_records(cifar100.locate("cifar-100-binary/test.bin"), 2, 3072)
    names = cifar100.locate("cifar-100-binary/fine_label_names.txt")
    classes = tuple(line.strip() for line in read_lines(names) if line.strip())
    if len(classes) != 100:
        raise InputError(f"'{names}' has {len(classes)} names instead of 100; fetch cifar100 again.")
    # Each record: coarse label, fine label, pixels.
    train = (_pictures(pixels), labels[:, 1])
    return images(
        cifar100, train, (_pictures(test_pixels), test_labels[:, 1]), classes, coarse=labels[:, 0].astype(np.int64)
    )


def _pictures(pixels: NDArray[Any]) -> NDArray[Any]:
    return pixels.reshape(-1, 3, 32, 32)
