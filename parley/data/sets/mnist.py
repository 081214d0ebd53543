"""The MNIST family: idx files of 28x28 grey images."""

from __future__ import annotations

import string
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from parley.core.errors import InputError
from parley.data.dataset import Dataset
from parley.data.fetch import Remote
from parley.data.formats import read_idx
from parley.data.sets.base import Loader, dataset, images

PARTS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
DIGITS = tuple(string.digits)
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def _idx_files(
    folder: str, bases: tuple[str, ...], md5: tuple[str, ...], sizes: tuple[float, ...]
) -> tuple[Remote, ...]:
    return tuple(
        Remote(f"{folder}/{part}.gz", tuple(f"{base}{part}.gz" for base in bases), f"md5:{sum_}", size)
        for part, sum_, size in zip(PARTS, md5, sizes, strict=True)
    )


MNIST_FILES = _idx_files(
    "mnist",
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
    (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    (9.9, 0.03, 1.6, 0.005),
)
FASHION_FILES = _idx_files(
    "fashion-mnist",
    ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    (26.4, 0.03, 4.4, 0.005),
)
QMNIST_FILES = tuple(
    Remote(
        f"qmnist/qmnist-{part}-labels-idx2-int.gz",
        (f"https://raw.githubusercontent.com/facebookresearch/qmnist/master/qmnist-{part}-labels-idx2-int.gz",),
        f"md5:{md5}",
        0.5,
    )
    for part, md5 in (("train", "0058f8dd561b90ffdd0f734c6a30e5e4"), ("test", "5b5b05890a5e13444e108efe57b788aa"))
)
Pair = tuple[NDArray[Any], NDArray[Any]]


def _read(loader: Loader[Any], folder: str, verify: bool) -> tuple[Pair, Pair]:
    x, y, z, w = (read_idx(loader.locate(f"{folder}/{part}.gz", verify)) for part in PARTS)
    return (x[:, None], y), (z[:, None], w)


@dataset("mnist", source="http://yann.lecun.com/exdb/mnist/", license="CC BY-SA 3.0", files=MNIST_FILES)
def mnist(verify: bool = True) -> Dataset:
    """70,000 handwritten digits of 28x28 pixels, ten classes; the official 60,000 / 10,000 split."""
    return images(mnist, *_read(mnist, "mnist", verify), DIGITS)


@dataset("fashion-mnist", source="https://github.com/zalandoresearch/fashion-mnist", license="MIT", files=FASHION_FILES)
def fashion_mnist(verify: bool = True) -> Dataset:
    """70,000 pictures of clothes of 28x28 pixels, ten classes; the official 60,000 / 10,000 split."""
    return images(fashion_mnist, *_read(fashion_mnist, "fashion-mnist", verify), CLOTHES)


@dataset(
    "mnist-writers",
    source="https://github.com/facebookresearch/qmnist",
    license="CC BY-SA 3.0 (images), BSD 3-Clause (QMNIST writer ids)",
    files=MNIST_FILES + QMNIST_FILES,
)
def mnist_writers(writers: Literal["train", "test"] = "train", verify: bool = True) -> Dataset:
    """MNIST with its writers as natural clients: 539 wrote the training set, others the test set.

    No writer of the test set wrote training digits: `writers="test"` gives the 297 new writers (with the official
    test images as their samples and as the test set), to evaluate on clients that were never seen.
    """
    if writers not in ("train", "test"):
        raise InputError(f"mnist-writers has writers='train' or 'test', not '{writers}'.")
    train, test = _read(mnist_writers, "mnist", verify)
    tables = [read_idx(mnist_writers.locate(remote.path, verify)) for remote in QMNIST_FILES]
    # Column 0 is the class, column 2 the writer; the first 10,000 rows of the test table are MNIST's test set.
    chosen, table = (train, tables[0]) if writers == "train" else (test, tables[1][: len(test[1])])
    if len(table) != len(chosen[1]) or not np.array_equal(table[:, 0], chosen[1]):
        raise InputError(
            "the QMNIST table does not belong to these MNIST labels; run `parley data fetch mnist-writers`."
        )
    ids, groups = np.unique(table[:, 2], return_inverse=True)
    names = tuple(f"writer-{id}" for id in ids)
    if writers == "train":
        return images(mnist_writers, train, test, DIGITS, groups=groups, group_names=names)
    whole = images(mnist_writers, train, test, DIGITS)
    assert whole.test is not None
    return Dataset(whole.info, whole.test.x, whole.test.y, whole.test, groups=groups, group_names=names)
