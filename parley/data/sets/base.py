"""The registry of data sets: a loading function, its official source, license and files."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, ParamSpec

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.core.errors import InputError, nearest
from parley.core.registry import Registry
from parley.data.client import ClientData, DataInfo, Kind
from parley.data.dataset import Dataset
from parley.data.fetch import Progress, Remote, cache_dir, fetch_files, locate

P = ParamSpec("P")


class Loader(Generic[P]):
    """A function that loads a data set, with what can be known before loading."""

    def __init__(
        self,
        load: Callable[P, Dataset],
        name: str,
        source: str,
        license: str,
        files: tuple[Remote, ...],
        manual: str,
        substitute: str,
    ) -> None:
        self.load = load
        self.name = name
        self.source = source
        """Official address."""
        self.license = license
        self.files = files
        """What `fetch` downloads; empty if nothing is to be downloaded."""
        self.manual = manual
        """How to get the files where they cannot be downloaded ready for use."""
        self.substitute = substitute
        """A smaller file in the cache that will do as well."""
        self.__doc__ = load.__doc__
        self.__wrapped__ = load

    @property
    def title(self) -> str:
        """One line about the data set."""
        return (self.__doc__ or "").partition("\n")[0]

    @property
    def embedded(self) -> bool:
        """Comes with an installed package."""
        return not self.files and not self.manual

    @property
    def present(self) -> bool:
        """Whether it can be loaded from the cache (for manual ones: whether its folder is there)."""
        if self.manual:
            return (cache_dir() / self.name).is_dir()
        if self.substitute and (cache_dir() / self.substitute).is_file():
            return True
        return all((cache_dir() / file).is_file() for remote in self.files for file in remote.paths)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Dataset:
        try:
            inspect.signature(self.load).bind(*args, **kwargs)
        except TypeError as error:
            options = list(inspect.signature(self.load).parameters)
            wrong = next((name for name in kwargs if name not in options), None)
            if wrong is None:
                raise InputError(f"data set '{self.name}': {error}.") from None
            hint = nearest(wrong, options) if options else "it has no options."
            raise InputError(f"data set '{self.name}' has no option '{wrong}': {hint}") from None
        return self.load(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<data set '{self.name}'>"

    def folder(self) -> Path:
        """The folder in the cache with files that had to be put there by hand."""
        if not self.present:
            raise InputError(f"the data set '{self.name}' is not in '{cache_dir()}' ($PARLEY_DATA): {self.manual}")
        return cache_dir() / self.name

    def fetch(self, progress: Progress | None = None) -> list[Path]:
        """Downloads and verifies what is missing; returns the files."""
        if self.manual:
            return sorted(file for file in self.folder().rglob("*") if file.is_file())
        return fetch_files(self.files, progress)

    def locate(self, path: str, verified: bool = True) -> Path:
        """A file of this data set in the cache, verified if its own checksum is known."""
        sums = (remote.checksum_of(path) for remote in self.files if path in remote.paths)
        return locate(self.name, path, next(sums, "") if verified else "")

    def info(
        self, shape: tuple[int, ...], outputs: int, kind: Kind, classes: tuple[str, ...] = (), vocabulary: int = 0
    ) -> DataInfo:
        """`DataInfo` with this loader's name, source and license."""
        return DataInfo(self.name, shape, outputs, kind, classes, self.source, self.license, vocabulary)


datasets: Registry[Loader[Any]] = Registry("data set")


def dataset(
    name: str,
    *,
    source: str,
    license: str,
    files: tuple[Remote, ...] = (),
    manual: str = "",
    substitute: str = "",
) -> Callable[[Callable[P, Dataset]], Loader[P]]:
    """Registers a loading function as data set `name`; the first line of its docstring is its title."""

    def register(load: Callable[P, Dataset]) -> Loader[P]:
        loader = Loader(load, name, source, license, files, manual, substitute)
        datasets(name)(loader)
        return loader

    return register


def standardise(train: NDArray[Any], test: NDArray[Any], axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """float32 tensors with mean 0 and deviation 1 over `axes` (0 among them) of the training array.

    Works in place on one float32 copy per array: image sets are large.
    """
    x, z = (torch.from_numpy(np.array(array, np.float32, order="C")) for array in (train, test))
    mean = _mean(x, axes)
    x -= mean
    z -= mean
    deviation = _mean(x, axes, square=True).sqrt().clamp_min(1e-12)
    x /= deviation
    z /= deviation
    return x, z


def _mean(x: Tensor, axes: tuple[int, ...], square: bool = False) -> Tensor:
    """Mean (of squares): float32 sums over pieces that fit the cache, added in float64 to keep the digits."""
    total = torch.zeros([1 if axis in axes else size for axis, size in enumerate(x.shape)], dtype=torch.float64)
    for piece in x.split(256):
        total += (piece.square() if square else piece).sum(dim=axes, keepdim=True)
    return (total * (total.numel() / x.numel())).to(torch.float32)


def images(
    loader: Loader[Any],
    train: tuple[NDArray[Any], NDArray[Any]],
    test: tuple[NDArray[Any], NDArray[Any]],
    classes: tuple[str, ...],
    **extra: Any,
) -> Dataset:
    """A data set of [n, channels, height, width] images, standardised per channel by the training set."""
    for what, (pixels, labels) in (("training", train), ("test", test)):
        if len(pixels) != len(labels):
            raise InputError(
                f"'{loader.name}' has {len(pixels)} {what} images but {len(labels)} labels; fetch it again."
            )
        if len(labels) and not 0 <= labels.min() <= labels.max() < len(classes):
            raise InputError(f"'{loader.name}' has a label outside 0 to {len(classes) - 1}; fetch it again.")
    x, z = standardise(train[0], test[0], (0, 2, 3))
    y, w = (torch.from_numpy(labels.astype(np.int64)) for labels in (train[1], test[1]))
    info = loader.info(tuple(x.shape[1:]), len(classes), "classification", classes)
    return Dataset(info, x, y, ClientData(z, w), **extra)
