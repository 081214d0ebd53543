"""Names for the things a user can choose: algorithms, models, partitioners, data sets, runtimes, studies."""

from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from parley.core.errors import InputError, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    """Name -> thing, filled by a decorator or by other packages' entry points in the group `parley.<kind>`.

    >>> models = Registry[type]("model")
    >>> @models("mlp")
    ... class MLP: ...
    >>> models["mlp"] is MLP
    True
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._items: dict[str, T] = {}
        self._discovered = False

    def __call__(self, name: str) -> Callable[[T], T]:
        def register(thing: T) -> T:
            if self._items.setdefault(name, thing) is not thing:
                raise InputError(f"two things call themselves {self.kind} '{name}'; rename one of them.")
            return thing

        return register

    def __getitem__(self, name: str) -> T:
        self._discover()
        if name not in self._items:
            raise InputError(f"unknown {self.kind} '{name}': {nearest(name, self._items)}")
        return self._items[name]

    def __contains__(self, name: object) -> bool:
        self._discover()
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        self._discover()
        return iter(sorted(self._items))

    def name_of(self, thing: T) -> str:
        """The name under which exactly this thing is registered."""
        for name, item in self._items.items():
            if item is thing:
                return name
        raise InputError(f"{thing!r} is not a registered {self.kind}.")

    def _discover(self) -> None:
        if not self._discovered:
            self._discovered = True
            for point in entry_points(group=f"parley.{self.kind.replace(' ', '_')}s"):
                self._items.setdefault(point.name, point.load())
