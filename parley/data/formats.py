"""Readers of official file formats; a damaged file gives one clear sentence."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from parley.core.errors import InputError

IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


@contextmanager
def readable(file: Path, what: str) -> Iterator[None]:
    """Turns what goes wrong while `file` is read into an InputError."""
    try:
        yield
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"'{file}' is not a whole {what} file ({reason}); fetch or make it again.") from error


def read_bytes(file: Path) -> bytes:
    """The content of a file, unpacked if it ends in .gz."""
    data = file.read_bytes()
    return gzip.decompress(data) if file.suffix == ".gz" else data


def read_idx(file: Path) -> np.ndarray:
    """An array in LeCun's idx format (big-endian), packed or not; the result is in native byte order."""
    with readable(file, "idx"):
        data = read_bytes(file)
        if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in IDX_TYPES:
            raise ValueError("it does not start with an idx header")
        shape = np.frombuffer(data, ">i4", data[3], offset=4)
        kind = np.dtype(IDX_TYPES[data[2]])
        start = 4 + 4 * data[3]
        expected = start + int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        if len(data) != expected:
            raise ValueError(f"it has {len(data)} bytes, expected {expected}")
        return np.frombuffer(data, kind, offset=start).reshape(shape).astype(kind.newbyteorder("="), copy=False)


def read_records(file: Path, labels: int, pixels: int) -> tuple[np.ndarray, np.ndarray]:
    """CIFAR's binary format: (labels [n, labels], pixels [n, pixels]), all bytes."""
    with readable(file, "CIFAR binary"):
        data = np.frombuffer(read_bytes(file), np.uint8)
        if len(data) == 0 or len(data) % (labels + pixels):
            raise ValueError(f"{len(data)} bytes are not a whole number of records of {labels + pixels}")
        rows = data.reshape(-1, labels + pixels)
        return rows[:, :labels], rows[:, labels:]


def read_json(file: Path) -> Any:
    """A JSON file, packed or not."""
    with readable(file, "JSON"):
        return json.loads(read_bytes(file))


def read_lines(file: Path) -> list[str]:
    """The lines of a UTF-8 text file, packed or not, without their ends."""
    with readable(file, "text"):
        return read_bytes(file).decode("utf-8").removesuffix("\n").split("\n")
