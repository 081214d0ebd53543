"""The ids of a population that is too large for a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload


class NumberedIds(Sequence[str]):
    """The ids '0', '1', ... `count - 1`, formatted on demand.

    >>> ids = NumberedIds(1_000_000)
    >>> ids[7], len(ids), "999999" in ids
    ('7', 1000000, True)
    """

    def __init__(self, count: int) -> None:
        self._range = range(count)

    def __len__(self) -> int:
        return len(self._range)

    @overload
    def __getitem__(self, item: int) -> str: ...
    @overload
    def __getitem__(self, item: slice) -> Sequence[str]: ...
    def __getitem__(self, item: int | slice) -> str | Sequence[str]:
        if isinstance(item, slice):
            return tuple(str(i) for i in self._range[item])
        return str(self._range[item])

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else -1
        within = self._range if start == 0 and stop is None else self._range[start:stop]
        if str(number) != value or number not in within:
            raise ValueError(f"{value!r} is not in {self}")
        return number

    def __contains__(self, value: object) -> bool:
        try:
            self.index(value)
        except ValueError:
            return False
        return True

    def __repr__(self) -> str:
        return f"NumberedIds({len(self)})"
