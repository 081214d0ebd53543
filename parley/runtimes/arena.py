"""Arenas: memory that processes of one machine share, for tensors that would be slow to send through a pipe.

An arena is an unnamed file, so nothing is left behind whatever happens to the processes. One side writes, the others
map it.
"""

from __future__ import annotations

import io
import mmap
import os
import tempfile
from dataclasses import dataclass
from typing import Any, Protocol

import cloudpickle
import torch
from torch import Tensor

from parley.runtimes.pickling import modules_by_name

_ALIGN = 64
_SMALL = 256
"""Tensors below this many bytes are pickled as they are."""


@dataclass(frozen=True, slots=True)
class Ref:
    """Where in an arena a tensor lies."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class Space(Protocol):
    """Where tensors are put, and found again by their place."""

    def put(self, value: Tensor) -> Ref: ...

    def get(self, ref: Ref) -> Tensor: ...


def place(value: Tensor, used: int) -> tuple[Ref, int]:
    """Where a tensor lies behind so many bytes, and where the next one begins."""
    size = value.numel() * value.element_size()
    return Ref(used, value.dtype, tuple(value.shape)), used + -(-size // _ALIGN) * _ALIGN


class Arena:
    """A growing buffer over a file descriptor."""

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            if hasattr(os, "memfd_create"):
                descriptor = os.memfd_create("parley", 0)
            else:
                with tempfile.TemporaryFile() as file:
                    descriptor = os.dup(file.fileno())
        self.descriptor = descriptor
        self._used = 0
        self._map: mmap.mmap | None = None

    def rewind(self) -> None:
        """Forget what was written; the space is used again."""
        self._used = 0

    def put(self, value: Tensor) -> Ref:
        ref, self._used = place(value, self._used)
        if self._used > (len(self._map) if self._map is not None else 0):
            os.ftruncate(self.descriptor, max(self._used * 2, 1 << 20))
        if value.numel():
            self.get(ref).copy_(value.detach())
        return ref

    def get(self, ref: Ref) -> Tensor:
        """A view of the arena; copy it if it is to outlive the next `rewind`."""
        count = 1
        for side in ref.shape:
            count *= side
        if count == 0:
            return torch.empty(ref.shape, dtype=ref.dtype)
        end = ref.offset + count * ref.dtype.itemsize
        if self._map is None or end > len(self._map):
            self._map = mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size)
        return torch.frombuffer(self._map, dtype=ref.dtype, count=count, offset=ref.offset).view(ref.shape)

    def close(self) -> None:
        """Give the memory back once the last view of it is gone; closing twice does no harm."""
        self._map = None
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


_reading: list[Space] = []


class _Pickler(cloudpickle.Pickler):
    """The user's own objects by value, their tensors through an arena or another space."""

    def __init__(self, file: io.BytesIO, arena: Space) -> None:
        super().__init__(file)
        self.arena = arena
        self.seen: dict[int, tuple[Tensor, Ref]] = {}

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Tensor and obj.device.type == "cpu" and obj.layout is torch.strided:
            if obj.numel() * obj.element_size() < _SMALL or obj.requires_grad:
                return NotImplemented
            if id(obj) not in self.seen:
                self.seen[id(obj)] = (obj, self.arena.put(obj))
            return _fetch, (self.seen[id(obj)][1],)
        return super().reducer_override(obj)


def _fetch(ref: Ref) -> Tensor:
    return _reading[-1].get(ref)


def dumps(thing: object, arena: Space) -> bytes:
    """For a worker that we start ourselves: pickled, with the tensors in the arena."""
    modules_by_name()
    file = io.BytesIO()
    _Pickler(file, arena).dump(thing)
    return file.getvalue()


def loads(data: bytes, arena: Space) -> Any:
    """The other end of `dumps`, in the worker."""
    _reading.append(arena)
    try:
        return cloudpickle.loads(data)
    finally:
        _reading.pop()
