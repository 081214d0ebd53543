"""Names for the things a user can choose: algorithms, models, partitioners, data sets, runtimes, studies."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar, cast

from parley.core.checks import checked_at_birth
from parley.core.errors import InputError, ParleyWarning, nearest
from parley.core.plugins import from_file, is_file_name

T = TypeVar("T")
S = TypeVar("S")


class Registry(Generic[T]):
    """Name -> thing, filled by a decorator or by other packages' entry points in the group `parley.<kind>s`.

    A dataclass that is registered checks its settings from then on when it is made (`core.checks`). A name of the form
    `file.py:thing` is looked for in that file.

    >>> models = Registry[type]("model")
    >>> @models("mlp")
    ... class MLP: ...
    >>> models["mlp"] is MLP
    True
    """

    def __init__(self, kind: str, homes: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self.homes = dict(homes or {})
        """Name -> the module that registers it, imported when somebody asks for the name."""
        self.broken: dict[str, str] = {}
        """Entry points of other packages that cannot be loaded, and why."""
        self._items: dict[str, T] = {}
        self._discovered = False

    def __call__(self, name: str) -> Callable[[S], S]:
        """The decorator that registers a thing and leaves its type to editors as it is."""

        def register(decorated: S) -> S:
            thing = cast(T, decorated)
            known = self._items.get(name, thing)
            if known is not thing and not _same_source(known, thing):
                raise InputError(f"two things call themselves {self.kind} '{name}'; rename one of them.")
            if known is not thing or name not in self._items:
                self._items[name] = thing
                if isinstance(thing, type) and is_dataclass(thing):
                    checked_at_birth(thing)
            return decorated

        return register

    def __getitem__(self, name: str) -> T:
        if is_file_name(name):
            self._items[name] = from_file(name)
            return self._items[name]
        self._discover()
        if name in self.broken:
            raise InputError(f"{self.kind} '{name}' cannot be loaded: {self.broken[name]}")
        if name not in self._items and name in self.homes:
            import_module(self.homes[name])
        if name not in self._items:
            raise InputError(f"unknown {self.kind} '{name}': {nearest(name, self)}")
        return self._items[name]

    def __contains__(self, name: object) -> bool:
        self._discover()
        return name in self._items or name in self.homes

    def __iter__(self) -> Iterator[str]:
        self._discover()
        names = self._items.keys() | self.homes.keys()
        return iter(sorted(name for name in names if not is_file_name(name)))

    def name_of(self, thing: T) -> str:
        """The name under which exactly this thing is registered."""
        for name, item in self._items.items():
            if item is thing:
                return name
        raise InputError(f"{thing!r} is not a registered {self.kind}.")

    def knows(self, thing: object) -> bool:
        """Whether exactly this thing is registered."""
        return any(item is thing for item in self._items.values())

    @property
    def group(self) -> str:
        """The group of entry points by which other packages add to it."""
        return f"parley.{self.kind.replace(' ', '_')}s"

    def _discover(self) -> None:
        if self._discovered:
            return
        self._discovered = True
        for point in _entry_points().select(group=self.group):
            if point.name in self._items or point.name in self.homes:
                continue
            try:
                self(point.name)(point.load())
            except (Exception, SystemExit) as error:  # another package's mistake must not take everything else down
                reason = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
                self.broken[point.name] = f"its entry point {point.value} raises {reason}."
                warnings.warn(
                    f"{self.kind} '{point.name}' of another package is left out: {self.broken[point.name]}",
                    ParleyWarning,
                    stacklevel=3,
                )


@cache
def _entry_points() -> Any:
    """Those of all installed packages, read once: it takes longer than everything else about a name."""
    return entry_points()


def _same_source(old: Any, new: Any) -> bool:
    """Whether `new` is `old` written again: a cell of a notebook run twice, a module reloaded."""
    same = all(
        getattr(old, name, None) is not None and getattr(old, name, None) == getattr(new, name, None)
        for name in ("__module__", "__qualname__")
    )
    return same and "<locals>" not in old.__qualname__
