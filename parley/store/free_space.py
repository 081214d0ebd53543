"""Room in a file: which stretches of it are taken, and where the next record goes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable


class FreeSpace:
    """Gives out stretches of a file that grows only where no gap is wide enough; neighbouring gaps become one.

    `_gaps` is what counts; the other two only help to find a gap and are checked against it. So an interrupt in the
    middle of a change may lose a gap until the file is opened again, but no stretch is ever given out twice.
    """

    def __init__(self, taken: Iterable[tuple[int, int]] = ()) -> None:
        """`taken`: (offset, length) of what the file holds, in the order of their offsets."""
        self.end = 0
        """Where the last stretch ends; the file need not be longer."""
        self._gaps: dict[int, int] = {}
        """Offset -> length."""
        self._widths: list[tuple[int, int]] = []
        """(length, offset) in this order: the narrowest gap that is wide enough is found by bisection."""
        self._starts: dict[int, int] = {}
        """Where a gap ends -> its offset."""
        for offset, length in taken:
            if offset > self.end:
                self._open(self.end, offset - self.end)
            self.end = offset + length

    @property
    def free(self) -> int:
        """Bytes in gaps."""
        return sum(self._gaps.values())

    def take(self, length: int) -> int:
        """The offset of a stretch that is the caller's from now on."""
        index = bisect_left(self._widths, (length, -1))
        while index < len(self._widths):
            width, offset = self._widths.pop(index)
            if self._gaps.get(offset) == width:
                self._close(offset)
                if width > length:
                    self._open(offset + length, width - length)
                return offset
        offset = self.end
        self.end += length
        return offset

    def give(self, offset: int, length: int) -> None:
        """A stretch is free again."""
        before = self._starts.get(offset, -1)
        if before + self._gaps.get(before, 0) == offset:
            self._close(before)
            offset, length = before, offset + length - before
        after = offset + length
        if after in self._gaps:
            length += self._close(after)
        if offset + length == self.end:
            self.end = offset
        else:
            self._open(offset, length)

    def _open(self, offset: int, length: int) -> None:
        insort(self._widths, (length, offset))
        self._starts[offset + length] = offset
        self._gaps[offset] = length

    def _close(self, offset: int) -> int:
        """The gap is none any more; its length."""
        length = self._gaps.pop(offset)
        self._starts.pop(offset + length, None)
        index = bisect_left(self._widths, (length, offset))
        if index < len(self._widths) and self._widths[index] == (length, offset):
            del self._widths[index]
        return length
