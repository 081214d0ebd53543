"""The registry of data sets: a loader, its official source, license and files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

from parley.core.registry import Registry
from parley.data.dataset import Dataset

P = ParamSpec("P")


class Loader(Generic[P]):
    """A function that loads a data set, together with what must be known before loading."""

    def __init__(self, load: Callable[P, Dataset], name: str, title: str, source: str, license: str) -> None:
        self.load = load
        self.name = name
        self.title = title
        self.source = source
        self.license = license
        self.__doc__ = load.__doc__
        self.__wrapped__ = load

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Dataset:
        return self.load(*args, **kwargs)


datasets: Registry[Loader[...]] = Registry("data set")


def dataset(name: str, *, title: str, source: str, license: str) -> Callable[[Callable[P, Dataset]], Loader[P]]:
    """Registers a loading function as data set `name`."""

    def register(load: Callable[P, Dataset]) -> Loader[P]:
        loader = Loader(load, name, title, source, license)
        datasets(name)(loader)
        return loader

    return register
